"""Contract form: units as an ONNX model whose bytes are those of the arithmetic contract.

onnxruntime's optimiser may turn a fused int8 QDQ layer into unsigned x signed kernels, which
saturate in int16 on x86 CPUs without VNNI; so plain sessions of one model differ from machine to
machine. Here every unit is written with operators whose kernels follow the formula
`y = clamp(rint(f32(sum) * m) + zp, lo, hi)` everywhere:

==================  ==========================================================================
Conv                QLinearConv
Gemm, MatMul        QLinearMatMul, or QGemm where there is a bias
AveragePool         QLinearConv, depthwise, weights 1: exact sums, any count, padding included
MaxPool             MaxPool on the bytes
Add, Sub            DequantizeLinear, Add or Sub, QuantizeLinear in float32
clamp               Clip on the bytes
table               Gather
Concat              Concat on the bytes, each input through a Gather where its scale differs
Resize              Resize of the bytes, nearest
Pad                 Pad with the zero point on the bytes
view, other         the model's own nodes
==================  ==========================================================================

Inside, every int8 tensor is stored as uint8, value and zero point 128 higher, and so are the
weights: unsigned x unsigned is exact everywhere, and on x86 three to eight times faster than
onnxruntime's signed x signed, which has no kernel of its own below AVX-VNNI-INT8.

The scale `m` of a layer goes in as it is (input and output scale 1, weight scale m), so no
kernel's order of multiplications matters. Sessions of these models are created with graph
optimisation at `SESSION_LEVEL`, which the model's metadata repeat.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from .errors import CompileError
from .excerpt import Excerpt, rename
from .onnx_writer import OnnxWriter
from .units import (
    AddSpec,
    Array,
    ConcatSpec,
    ConvSpec,
    Graph,
    MulSpec,
    PadSpec,
    PoolSpec,
    Quant,
    ResizeSpec,
    TableSpec,
    Unit,
)

__all__ = ["LEVEL_KEY", "SESSION_LEVEL", "edges", "stage_model"]

SESSION_LEVEL = "ORT_DISABLE_ALL"  # a member of onnxruntime.GraphOptimizationLevel
LEVEL_KEY = "trivet.session_level"

_LOWEST_OPSET = 13  # Clip and MaxPool on bytes, per-channel scales
_DEFAULT_OPSET = 17
_LOWEST_IR = 8  # model functions
_HIGHEST_IR = 10  # what the oldest onnxruntime in pyproject.toml opens
_BYTE_VIEWS = frozenset(
    {"Constant", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)


def edges(graph: Graph, unit_names: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tensors that enter and leave a set of units.

    The model's own inputs come first and in the model's order, then the others in the order of
    their first use. Outputs are what another unit or the user reads: in the order of the units,
    the model's own outputs last and in the model's order.
    """
    inside = _chosen(graph, unit_names)
    produced = [name for unit in inside for name in unit.outputs]
    made = set(produced)
    used = dict.fromkeys(n for unit in inside for n in unit.inputs if n not in made)
    names = {unit.name for unit in inside}
    wanted = {n for unit in graph.units if unit.name not in names for n in unit.inputs}
    inputs = [n for n in graph.inputs if n in used]
    inputs += [n for n in used if n not in graph.inputs]
    outputs = [n for n in produced if n in wanted and n not in graph.outputs]
    outputs += [n for n in graph.outputs if n in made]
    return tuple(inputs), tuple(outputs)


def stage_model(
    graph: Graph,
    unit_names: Collection[str],
    *,
    nhwc: frozenset[str] = frozenset(),
    taps: bool = False,
) -> onnx.ModelProto:
    """The units as an ONNX model in contract form, batch size as in the graph.

    Inputs and outputs are `edges`, with their names, dtypes and ONNX shapes; 4-D ones named in
    ``nhwc`` have NHWC shape and are transposed inside. With ``taps`` every quantised tensor
    between the units becomes another output, in ONNX order. A unit's main node has the unit's
    name, what belongs to it ``unit/part``; nodes copied from the model keep their names. The same
    arguments give the same bytes of ``SerializeToString(deterministic=True)``.

    Raises CompileError for an unknown unit, an ``nhwc`` tensor that is no 4-D edge, a model whose
    opset is too old, and weights beyond protobuf's 2 GiB.
    """
    inside = _chosen(graph, unit_names)
    inputs, outputs = edges(graph, unit_names)
    for name in sorted(nhwc):
        if name not in (*inputs, *outputs) or len(graph.tensors[name].shape) != 4:
            raise CompileError(
                f"tensor {name!r}: asked for in NHWC but not a 4-D edge of the stage; "
                f"its edges are {', '.join((*inputs, *outputs))}"
            )
    if taps:
        between = [n for u in inside for n in u.outputs if graph.tensors[n].quant is not None]
        outputs += tuple(n for n in between if n not in outputs)
    stage = _Stage(graph, inside, nhwc)
    for name in inputs:
        if name in nhwc:
            stage.node("Transpose", [name], stage.local(name), f"{name}/nchw", perm=[0, 3, 1, 2])
    for unit in inside:
        stage.unit(unit)
    for name in outputs:
        value = stage.own(name)
        if name in nhwc:
            stage.node("Transpose", [value], name, f"{name}/nhwc", perm=[0, 2, 3, 1])
    return stage.finish(inputs, outputs)


def _chosen(graph: Graph, unit_names: Collection[str]) -> list[Unit]:
    names = set(unit_names)
    unknown = sorted(names - {unit.name for unit in graph.units})
    if unknown or not names:
        what = f"unit {unknown[0]!r} is not in the graph" if unknown else "no unit given"
        raise CompileError(f"stage of {graph.name!r}: {what}; take names from graph.units")
    return [unit for unit in graph.units if unit.name in names]


class _Stage(OnnxWriter):
    """One stage model under construction.

    A tensor has up to two values in it: its own (`own`) and, if int8, its uint8 twin
    (`unsigned`). Whichever is asked for and missing is converted from the other.
    """

    def __init__(self, graph: Graph, inside: list[Unit], nhwc: frozenset[str]) -> None:
        self.graph = graph
        self.excerpt: Excerpt | None = None
        self.opsets = {"": _DEFAULT_OPSET, "com.microsoft": 1}
        taken = set(graph.tensors)
        if graph.model is not None:
            self.excerpt = Excerpt(graph.model)
            taken.update(self.excerpt.names)
            self.choose_opset(any(unit.spec is None for unit in inside))
        super().__init__(taken)
        # A transposed edge keeps its name outside; inside, its NCHW form needs another.
        self.locals = {name: self.fresh(f"{name}/nchw") for name in sorted(nhwc)}
        self.twins: dict[str, str] = {}  # int8 tensor -> the value that holds it as uint8
        self.made_by: dict[str, str] = {}  # int8 tensor that has only its twin -> its unit

    def choose_opset(self, copies: bool) -> None:
        imports: dict[str, int] = dict(self.graph.model.opset_imports)
        version = imports.get("") or imports.get("ai.onnx") or _DEFAULT_OPSET
        if version < _LOWEST_OPSET and copies:
            raise CompileError(
                f"model {self.graph.name!r}: opset {version} cannot hold Clip and MaxPool on "
                f"bytes beside its own nodes; the lowest is {_LOWEST_OPSET}: convert it with "
                "onnx.version_converter"
            )
        imports.pop("ai.onnx", None)
        self.opsets |= imports
        self.opsets[""] = max(version, _LOWEST_OPSET)

    # Tensors

    def local(self, tensor: str) -> str:
        return self.locals.get(tensor, tensor)

    def own(self, tensor: str) -> str:
        """The value with the tensor's own dtype, in ONNX order."""
        value = self.local(tensor)
        if tensor in self.made_by:
            unit = self.made_by.pop(tensor)
            self.convert(self.twins[tensor], ("uint8", 128), value, ("int8", 0), f"{unit}/int8")
        return value

    def unsigned(self, tensor: str) -> str:
        """The value with the tensor's bytes as uint8, in ONNX order."""
        if self.graph.tensors[tensor].dtype == "uint8":
            return self.local(tensor)
        if tensor not in self.twins:
            twin = self.fresh(f"{tensor}/uint8")
            here = self.local(tensor)
            self.convert(here, ("int8", 0), twin, ("uint8", 128), f"{tensor}/uint8")
            self.twins[tensor] = twin
        return self.twins[tensor]

    def produce(self, tensor: str, unit: Unit) -> str:
        """The value into which ``unit`` writes the tensor's bytes as uint8."""
        if self.graph.tensors[tensor].dtype == "uint8":
            return self.local(tensor)
        self.twins[tensor] = self.fresh(f"{tensor}/uint8")
        self.made_by[tensor] = unit.name
        return self.twins[tensor]

    def convert(
        self, source: str, have: tuple[str, int], out: str, want: tuple[str, int], name: str
    ) -> None:
        # Through float32 with scale 1: exact, and two vectorised kernels.
        one = self.scalar(1.0, "float32")
        real = self.fresh(f"{out}/real")
        zero = self.scalar(have[1], have[0])
        self.node("DequantizeLinear", [source, one, zero], real, f"{name}/real")
        self.node("QuantizeLinear", [real, one, self.scalar(want[1], want[0])], out, name)

    # Units

    def unit(self, unit: Unit) -> None:
        spec = unit.spec
        if spec is None:
            self.copy(unit)
            return
        sources = [self.unsigned(name) for name in unit.inputs]
        (tensor,) = unit.outputs
        out = self.produce(tensor, unit)
        if isinstance(spec, TableSpec):
            entries = _entries(spec.table, spec.x, 0, 255, spec.y)
            self.lookup(unit.name, sources[0], entries, out)
            return
        if isinstance(spec, ConcatSpec):
            self.concat(unit, spec, sources, out)
            return
        if isinstance(spec, PadSpec):
            top, left, bottom, right = spec.pads
            pads = np.array([0, 0, top, left, 0, 0, bottom, right], np.int64)
            level = spec.value + _twin(spec.x).zero_point - spec.x.zero_point
            ends = [sources[0], self.constant(f"{unit.name}/pads", pads)]
            ends.append(self.scalar(level, "uint8"))
            self.node("Pad", ends, out, unit.name)
            return
        if isinstance(spec, ResizeSpec):
            scales = self.constant(
                f"{unit.name}/scales", np.array([1, 1, *spec.factors], np.float32)
            )
            self.node(
                "Resize", [sources[0], "", scales], out, unit.name, mode="nearest",
                coordinate_transformation_mode="asymmetric", nearest_mode="floor",
            )  # fmt: skip
            return
        y = _twin(spec.y)
        lo, hi = (bound + y.zero_point - spec.y.zero_point for bound in (spec.lo, spec.hi))
        plain = spec.table is None and (lo, hi) == (0, 255)
        raw = out if plain else self.fresh(f"{tensor}/raw")
        if isinstance(spec, AddSpec | MulSpec):
            self.add(unit.name, spec, sources, y, raw)
        elif isinstance(spec, ConvSpec) and spec.matrix:
            self.matrix(unit, spec, sources[0], y, raw)
        elif isinstance(spec, ConvSpec):
            self.conv(unit.name, spec, sources[0], y, raw)
        else:
            self.pool(unit, spec, sources[0], y, raw)
        if spec.table is not None:
            entries = _entries(spec.table, spec.y, lo, hi, spec.y)
            self.lookup(unit.name, raw, entries, out)
        elif not plain:
            bounds = [self.scalar(bound, "uint8") for bound in (lo, hi)]
            self.node("Clip", [raw, *bounds], out, f"{unit.name}/clamp")

    def conv(self, name: str, spec: ConvSpec, source: str, y: Quant, out: str) -> None:
        one = self.scalar(1.0, "float32")
        weight = self.constant(f"{name}/weight", _shifted(spec.weight))
        inputs = [source, one, self.scalar(_twin(spec.x).zero_point, "uint8"), weight]
        inputs += [self.constant(f"{name}/m", spec.m), self.scalar(128, "uint8")]
        inputs += [one, self.scalar(y.zero_point, "uint8")]
        if spec.bias.any():
            inputs.append(self.constant(f"{name}/bias", spec.bias.astype(np.int32)))
        window: dict[str, Any] = {"kernel_shape": spec.weight.shape[2:], "strides": spec.stride}
        window |= {"dilations": spec.dilation, "pads": spec.pads, "group": spec.groups}
        self.node("QLinearConv", inputs, out, name, **window)

    def matrix(self, unit: Unit, spec: ConvSpec, source: str, y: Quant, out: str) -> None:
        name = unit.name
        one = self.scalar(1.0, "float32")
        weight = self.constant(f"{name}/weight", _shifted(spec.weight[:, :, 0, 0].T))
        # One zero point per column: both operators want as many as there are scales.
        zeros = self.constant(f"{name}/weight_zero", np.full(len(spec.m), 128, np.uint8))
        head = [source, one, self.scalar(_twin(spec.x).zero_point, "uint8"), weight]
        head += [self.constant(f"{name}/m", spec.m), zeros]
        tail = [one, self.scalar(y.zero_point, "uint8")]
        if not spec.bias.any():
            self.node("QLinearMatMul", head + tail, out, name)
            return
        head.append(self.constant(f"{name}/bias", spec.bias.astype(np.int32)))
        shape = self.graph.tensors[unit.inputs[0]].shape
        if len(shape) == 2:
            self.node("QGemm", head + tail, out, name, "com.microsoft")
            return
        flat = self.constant(f"{name}/rows", np.array([-1, shape[-1]], np.int64))
        back = self.constant(f"{name}/shape", np.array([*shape[:-1], len(spec.m)], np.int64))
        head[0] = self.node("Reshape", [source, flat], self.fresh(f"{out}/in"), f"{name}/rows")
        made = self.node("QGemm", head + tail, self.fresh(f"{out}/rows"), name, "com.microsoft")
        self.node("Reshape", [made, back], out, f"{name}/shape")

    def pool(self, unit: Unit, spec: PoolSpec, source: str, y: Quant, out: str) -> None:
        if spec.op == "max":
            window: dict[str, Any] = {"kernel_shape": spec.kernel, "strides": spec.stride}
            self.node("MaxPool", [source], out, unit.name, pads=spec.pads, **window)
            return
        depth = self.graph.tensors[unit.inputs[0]].shape[1]
        ones = ConvSpec(
            spec.x,
            spec.y,
            weight=np.ones((depth, 1, *spec.kernel), np.int8),
            bias=np.zeros(depth, np.int32),
            w_scale=np.ones(depth, np.float32),
            m=np.full(depth, spec.m, np.float32),
            lo=spec.lo,
            hi=spec.hi,
            stride=spec.stride,
            pads=spec.pads,
            groups=depth,
        )
        self.conv(unit.name, ones, source, y, out)

    def add(
        self, name: str, spec: AddSpec | MulSpec, sources: list[str], y: Quant, out: str
    ) -> None:
        reals = []
        for source, quant, part in zip(sources, (spec.a, spec.b), "ab", strict=True):
            inputs = [source, *self.quantisation(name, part, _twin(quant))]
            real = self.fresh(f"{out}/{part}")
            reals.append(self.node("DequantizeLinear", inputs, real, f"{name}/{part}"))
        kind = "Mul" if isinstance(spec, MulSpec) else "Sub" if spec.subtract else "Add"
        total = self.node(kind, reals, self.fresh(f"{out}/sum"), name)
        inputs = [total, *self.quantisation(name, "y", y)]
        self.node("QuantizeLinear", inputs, out, f"{name}/quantise")

    def concat(self, unit: Unit, spec: ConcatSpec, sources: list[str], out: str) -> None:
        parts = []
        for k, (source, table) in enumerate(zip(sources, spec.tables, strict=True)):
            if table is not None:
                entries = _entries(table, spec.x[k], 0, 255, spec.y)
                part = self.fresh(f"{out}/part{k}")
                self.lookup(f"{unit.name}/part{k}", source, entries, part)
                source = part
            parts.append(source)
        rank = len(self.graph.tensors[unit.inputs[0]].shape)
        self.node("Concat", parts, out, unit.name, axis=1 if rank == 4 else rank - 1)

    def quantisation(self, name: str, part: str, quant: Quant) -> list[str]:
        scale = self.constant(f"{name}/scale_{part}", np.asarray(quant.scale, np.float32))
        return [scale, self.scalar(quant.zero_point, "uint8")]

    def lookup(self, name: str, source: str, entries: Array, out: str) -> None:
        table = self.constant(f"{name}/entries", entries)
        index = self.fresh(f"{out}/index")
        self.node("Cast", [source], index, f"{name}/index", to=TensorProto.INT32)
        self.node("Gather", [table, index], out, f"{name}/table")

    def copy(self, unit: Unit) -> None:
        """A view or another unit as its own nodes, or as a Reshape if there is no model."""
        if self.excerpt is not None:
            nodes = self.excerpt.take(f"unit {unit.name!r}", unit.inputs, unit.outputs)
        elif unit.kind == "view":
            shape = np.array(self.graph.tensors[unit.outputs[0]].shape, np.int64)
            ends = ([unit.inputs[0], self.constant(f"{unit.name}/shape", shape)], unit.outputs)
            nodes = [helper.make_node("Reshape", *ends, name=unit.name)]
        else:
            raise CompileError(
                f"unit {unit.name!r}: a graph without a model cannot hold a unit of kind "
                f"{unit.kind!r}; give it the model that its nodes are copied from"
            )
        names = dict(self.locals)
        if self.moves_twin(unit, nodes):
            names[unit.inputs[0]] = self.twins[unit.inputs[0]]
            names[unit.outputs[0]] = self.produce(unit.outputs[0], unit)
        else:
            for name in unit.inputs:
                self.own(name)
        for node in nodes:
            rename(node, names)
            self.nodes.append(node)

    def moves_twin(self, unit: Unit, nodes: list[onnx.NodeProto]) -> bool:
        """A view of one int8 tensor that exists as uint8: its nodes take that as well."""
        ends = (*unit.inputs, *unit.outputs)
        return (
            unit.kind == "view"
            and len(ends) == 2
            and ends[0] in self.twins
            and all(self.graph.tensors[name].dtype == "int8" for name in ends)
            and all(node.op_type in _BYTE_VIEWS for node in nodes)
        )

    # The model

    def finish(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> onnx.ModelProto:
        ir_version, functions = _LOWEST_IR, []
        if self.excerpt is not None:
            self.constants |= self.excerpt.constants
            functions = self.excerpt.functions
            ir_version = max(_LOWEST_IR, min(self.graph.model.ir_version, _HIGHEST_IR))
        return self.model(
            self.graph.name or "stage",
            [self.info(name) for name in inputs],
            [self.info(name) for name in outputs],
            opsets=self.opsets,
            ir_version=ir_version,
            properties={LEVEL_KEY: SESSION_LEVEL},
            functions=functions,
        )

    def info(self, name: str) -> onnx.ValueInfoProto:
        tensor = self.graph.tensors[name]
        shape = list(tensor.shape)
        if name in self.locals:
            shape = [shape[0], *shape[2:], shape[1]]
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
        return helper.make_tensor_value_info(name, dtype, shape)


def _twin(quant: Quant) -> Quant:
    """The quantisation of the uint8 form."""
    if quant.dtype == "uint8":
        return quant
    return replace(quant, zero_point=quant.zero_point + 128, dtype="uint8")


def _shifted(weight: Array) -> Array:
    """int8 weights as uint8 with zero point 128."""
    return (weight.astype(np.int16) + 128).astype(np.uint8)


def _entries(table: Array, index: Quant, lo: int, hi: int, value: Quant) -> Array:
    """``table``, which maps bit patterns, for uint8 forms clamped to ``lo..hi`` first."""
    flip_index, flip_value = (np.uint8(0x80 if q.dtype == "int8" else 0) for q in (index, value))
    clamped = np.arange(256).clip(lo, hi).astype(np.uint8)
    found: Array = np.asarray(table, np.uint8)[clamped ^ flip_index] ^ flip_value
    return found
