"""Quantise: float models become int8 QDQ models by onnxruntime's own quantiser.

Only with the user's calibration data: ranges of activations are the minimum and maximum that it
produces. Activations int8 with one scale a tensor, weights int8 with one a channel, zero point 0.
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from .errors import CompileError
from .load import Loaded
from .normalise import normalise
from .passes.graph import STANDARD_DOMAINS, attribute, constant, is_op, shape_of
from .units import Array

__all__ = ["is_quantised", "quantise"]

_QUANTISED = ("QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger",
              "MatMulInteger", "DynamicQuantizeLinear")  # fmt: skip
# What carries the arithmetic, and what may stand between two of these as int8.
_CORE = ("Conv", "Gemm", "MatMul")
_ACTIVATIONS = ("Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Sigmoid", "Tanh")
_AROUND = (
    *_ACTIVATIONS, "Add", "AveragePool", "Clip", "Flatten", "GlobalAveragePool", "MaxPool", "Relu",
    "Reshape", "Squeeze", "Sub", "Transpose", "Unsqueeze",
)  # fmt: skip
# Above this size the model goes to the quantiser with its weights in a file of their own.
_EXTERNAL_BYTES = 1 << 30


def is_quantised(model: ir.Model) -> bool:
    """Whether the model has quantised operators already."""
    return any(
        (node.domain in STANDARD_DOMAINS and node.op_type in _QUANTISED)
        or (
            node.domain == "com.microsoft"
            and node.op_type.startswith(("QLinear", "QGemm", "QAttention"))
        )
        for node in model.graph
    )


def quantise(loaded: Loaded, calibration: dict[str, Array] | None) -> Loaded:
    """Return a normalised model in QDQ form; quantised ones and those without Conv, Gemm or
    MatMul of constant weights as they are.

    ``calibration``: an array for each model input, first axis samples, the others the input's
    shape (without its leading axis where that is 1). CompileError: a float model without
    calibration data, or data whose names, shapes, dtypes or values do not fit.
    """
    if is_quantised(loaded.model):
        if calibration is None:
            return loaded
        note = "the model is quantised already: the calibration data was not used"
        return dataclasses.replace(loaded, notes=(*loaded.notes, note))
    nodes = _candidates(loaded.model)
    if not any(is_op(n, *_CORE) for n in nodes):
        return loaded
    if calibration is None:
        raise CompileError(
            f"{loaded.name}: the model is float and there is no calibration data; pass "
            "--calibrate DATA.npz with an array of real samples for each input"
        )
    samples = _samples(loaded, calibration)
    _check_weights(loaded)
    model = _quantise(loaded, [str(n.name) for n in nodes], samples)
    count = len(next(iter(samples.values())))
    note = f"quantised to int8 with {count} calibration samples by onnxruntime.quantization"
    result = dataclasses.replace(loaded, model=model, notes=(*loaded.notes, note))
    return normalise(result)


def _check_weights(loaded: Loaded) -> None:
    for name, value in loaded.model.graph.initializers.items():
        weights = value.const_value
        if weights is None or weights.dtype != ir.DataType.FLOAT:
            continue
        if not np.isfinite(weights.numpy()).all():
            raise CompileError(
                f"{loaded.name}: weights '{name}' have infinite or undefined values; "
                "train or export the model again"
            )


def _candidates(model: ir.Model) -> list[ir.Node]:
    """Nodes that gain an integer form: products with constant weights and what is around them.

    An activation counts only where something quantised reads it: in x * Sigmoid(x) the Sigmoid
    stays float, so that the whole chain becomes one table without a rounding inside.
    """
    chosen: set[int] = set()
    for node in reversed(list(model.graph)):
        if not _gains(node):
            continue
        readers = (reader for value in node.outputs for reader in value.consumers())
        if not is_op(node, *_ACTIVATIONS) or any(id(reader) in chosen for reader in readers):
            chosen.add(id(node))
    return [node for node in model.graph if id(node) in chosen]


def _gains(node: ir.Node) -> bool:
    if is_op(node, *_CORE):
        x = shape_of(node.inputs[0]) if node.inputs[0] is not None else None
        rank = 4 if node.op_type == "Conv" else 2
        plain = all(float(attribute(node, a, 1.0)) == 1.0 for a in ("alpha", "beta"))
        weighted = constant(node.inputs[1]) is not None
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        fixed = bias is None or constant(bias) is not None
        return weighted and fixed and plain and x is not None and len(x) == rank
    if is_op(node, "Relu", "Clip"):
        # The quantiser merges it into what is before it, also where the world sees that value.
        value = node.inputs[0]
        if value is None or value.is_graph_output() or not _bounds_in_order(node):
            return False
    if is_op(node, "Add", "Sub"):
        # A constant operand would be rounded to 8 bits for nothing: that Add has no integer form.
        shapes = [shape_of(v) for v in node.inputs if v is not None and constant(v) is None]
        return len(shapes) == 2 and shapes[0] == shapes[1] and _is_float(node)
    return is_op(node, *_AROUND) and _is_float(node)


def _bounds_in_order(node: ir.Node) -> bool:
    """Not a Clip whose lower bound is above its upper one, or no number."""
    bounds = [constant(v) for v in node.inputs[1:3] if v is not None]
    known = [float(b.reshape(-1)[0]) for b in bounds if b is not None and b.size == 1]
    return all(not np.isnan(b) for b in known) and (len(known) < 2 or known[0] <= known[1])


def _is_float(node: ir.Node) -> bool:
    value = node.inputs[0]
    return value is not None and value.dtype == ir.DataType.FLOAT


def _samples(loaded: Loaded, calibration: dict[str, Array]) -> dict[str, Array]:
    """Arrays of shape [samples, *input shape]; CompileError names the one that does not fit."""
    inputs = {str(v.name): v for v in loaded.model.graph.inputs}
    known = ", ".join(f"'{n}'" for n in inputs)
    for name in calibration:
        if name not in inputs:
            raise CompileError(
                f"calibration data: there is no model input '{name}'; name the arrays {known}"
            )
    samples: dict[str, Array] = {}
    for name, value in inputs.items():
        if name not in calibration:
            raise CompileError(
                f"calibration data: model input '{name}' has no array; add one of that name"
            )
        array = calibration[name]
        where = f"calibration data '{name}'"
        shape = shape_of(value)
        assert shape is not None
        assert value.dtype is not None
        dtype = value.dtype.numpy()
        if array.dtype != dtype:
            raise CompileError(
                f"{where}: dtype {array.dtype}, the model takes {dtype}; convert the array"
            )
        if shape and shape[0] == 1 and array.shape[1:] == shape[1:] and array.ndim == len(shape):
            array = array.reshape(array.shape[0], *shape)
        elif array.shape[1:] != shape or array.ndim != len(shape) + 1:
            item = shape[1:] if shape and shape[0] == 1 else shape
            raise CompileError(
                f"{where}: shape {list(array.shape)}, must be [samples, "
                + ", ".join(map(str, item))
                + "]; store one sample for each index of the first axis"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CompileError(f"{where}: has infinite or undefined values; remove those samples")
        samples[name] = array
    counts = {name: len(array) for name, array in samples.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        raise CompileError(
            f"calibration data: samples for each input are {counts}, must be one number above 0"
        )
    return samples


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Feeds one sample after the other to onnxruntime's calibrator."""

    def __init__(self, samples: dict[str, Array]) -> None:
        count = len(next(iter(samples.values())))
        self._feeds: Iterator[dict[str, Array]] = (
            {name: array[k] for name, array in samples.items()} for k in range(count)
        )

    def get_next(self) -> dict[str, Array] | None:
        return next(self._feeds, None)


def _quantise(loaded: Loaded, nodes: list[str], samples: dict[str, Array]) -> ir.Model:
    large = sum(v.const_value.nbytes for v in loaded.model.graph.initializers.values()
                if v.const_value is not None) > _EXTERNAL_BYTES  # fmt: skip
    logger = logging.getLogger()
    level = logger.level
    with tempfile.TemporaryDirectory(prefix="trivet-quantise-") as folder:
        source, result = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        # A copy: saving moves large weights into a file beside the model. Small ones that lie in a
        # file beside the user's model go into this one.
        copy = loaded.model.clone()
        if not large:
            copy = ir.external_data.load_to_model(copy)
        ir.save(copy, source, external_data="float.data" if large else None)
        options: dict[str, Any] = {
            "ActivationSymmetric": False,
            "WeightSymmetric": True,
            "MatMulConstBOnly": True,
        }
        try:
            logger.setLevel(logging.ERROR)  # it advises a pre-processing that normalise has done
            ort.set_default_logger_severity(4)  # what fails is raised, and told in one line
            quantize_static(
                source,
                result,
                _Reader(samples),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=[*_CORE, *_AROUND],
                nodes_to_quantize=nodes,
                per_channel=True,
                activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
                use_external_data_format=large,
                extra_options=options,
            )
        except Exception as e:
            first = (str(e).strip().splitlines() or [type(e).__name__])[0]
            raise CompileError(
                f"{loaded.name}: onnxruntime's quantiser failed ({first}); quantise the model "
                "yourself and compile the QDQ model"
            ) from e
        finally:
            logger.setLevel(level)
            ort.set_default_logger_severity(2)  # onnxruntime's default
        return ir.from_proto(onnx.load(result))
