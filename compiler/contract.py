"""Contract form: units as an ONNX model whose bytes are those of the arithmetic contract.

onnxruntime's optimiser may turn a fused int8 QDQ layer into unsigned x signed kernels, which
saturate in int16 on x86 CPUs without VNNI; so plain sessions of one model differ from machine to
machine. Here every unit is written with operators whose kernels follow the formula
`y = clamp(rint(f32(sum) * m) + zp, lo, hi)` everywhere:

==================  ==========================================================================
Conv                QLinearConv, int8 x int8 or uint8 x uint8 (weights shifted by 128)
Gemm, MatMul        QLinearMatMul, or QGemm where there is a bias
AveragePool         QLinearConv, depthwise, weights 1: exact sums, any count, padding included
MaxPool             MaxPool on the bytes
Add, Sub            DequantizeLinear, Add or Sub, QuantizeLinear in float32
clamp               Clip on the bytes
table               Gather; a negative index counts from the end, as the bit pattern does
view, other         the model's own nodes
==================  ==========================================================================

The scale `m` of a layer goes in as it is (input and output scale 1, weight scale m), so no
kernel's order of multiplications matters. Reorder, fold or fuse nothing: sessions of these models
are created with graph optimisation at `SESSION_LEVEL`, which the model's metadata repeat.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .errors import CompileError
from .excerpt import Excerpt, rename
from .units import AddSpec, Array, ConvSpec, Graph, PoolSpec, Quant, TableSpec, Tensor, Unit

__all__ = ["LEVEL_KEY", "SESSION_LEVEL", "edges", "stage_model"]

SESSION_LEVEL = "ORT_DISABLE_ALL"  # a member of onnxruntime.GraphOptimizationLevel
LEVEL_KEY = "trivet.session_level"

_LOWEST_OPSET = 13  # Clip and MaxPool on int8, per-channel scales
_DEFAULT_OPSET = 17
_LOWEST_IR = 8  # functions
_HIGHEST_IR = 10  # what the oldest onnxruntime in pyproject.toml opens
_BYTES_LIMIT = 2**31 - 2**20  # protobuf's message limit, with room for the nodes


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
    between the units becomes another output, in ONNX order. A contract node is named after its
    unit, or unit/part; nodes copied from the model keep their names. The same arguments give the
    same bytes of ``SerializeToString(deterministic=True)``.

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
    writer = _Writer(graph, inside, nhwc)
    for name in inputs:
        if name in nhwc:
            writer.node("Transpose", [name], writer.local(name), f"{name}/nchw", perm=[0, 3, 1, 2])
    for unit in inside:
        writer.unit(unit)
    for name in outputs:
        if name in nhwc:
            writer.node("Transpose", [writer.local(name)], name, f"{name}/nhwc", perm=[0, 2, 3, 1])
    return writer.model(inputs, outputs)


def _chosen(graph: Graph, unit_names: Collection[str]) -> list[Unit]:
    names = set(unit_names)
    unknown = sorted(names - {unit.name for unit in graph.units})
    if unknown or not names:
        what = f"unit {unknown[0]!r} is not in the graph" if unknown else "no unit given"
        raise CompileError(f"stage of {graph.name!r}: {what}; take names from graph.units")
    return [unit for unit in graph.units if unit.name in names]


class _Writer:
    """Collects the nodes and constants of one stage model."""

    def __init__(self, graph: Graph, inside: list[Unit], nhwc: frozenset[str]) -> None:
        self.graph = graph
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.excerpt: Excerpt | None = None
        self.taken = set(graph.tensors)
        self.opsets = {"": _DEFAULT_OPSET, "com.microsoft": 1}
        if graph.model is not None:
            self.excerpt = Excerpt(graph.model)
            self.taken.update(self.excerpt.values)
            self._choose_opset(any(unit.spec is None for unit in inside))
        # A transposed edge keeps its name outside; inside, its NCHW form needs another.
        self.locals = {name: self.fresh(f"{name}/nchw") for name in sorted(nhwc)}

    def _choose_opset(self, copies: bool) -> None:
        imports: dict[str, int] = dict(self.graph.model.opset_imports)
        version = imports.get("") or imports.get("ai.onnx") or _DEFAULT_OPSET
        if version < _LOWEST_OPSET and copies:
            raise CompileError(
                f"model {self.graph.name!r}: opset {version} cannot hold int8 Clip and MaxPool "
                f"beside its own nodes; the lowest is {_LOWEST_OPSET}: convert it with "
                "onnx.version_converter"
            )
        imports.pop("ai.onnx", None)
        self.opsets.update(imports)
        self.opsets[""] = max(version, _LOWEST_OPSET)

    # Names, constants, nodes

    def fresh(self, base: str) -> str:
        name, count = base, 1
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name

    def local(self, tensor: str) -> str:
        return self.locals.get(tensor, tensor)

    def constant(self, base: str, value: Array) -> str:
        name = self.fresh(base)
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def scalar(self, value: float, dtype: str) -> str:
        array = np.asarray(value, dtype)
        name = f"trivet/{dtype}/{array[()]!r}"
        if name not in self.constants:
            self.taken.add(name)
            self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def node(
        self,
        op: str,
        inputs: list[str],
        output: str,
        name: str,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        self.nodes.append(
            helper.make_node(op, inputs, [output], name=name, domain=domain, **attributes)
        )
        return output

    # Units

    def unit(self, unit: Unit) -> None:
        spec = unit.spec
        if spec is None:
            self.copy(unit)
            return
        sources = [self.local(name) for name in unit.inputs]
        (name,) = unit.outputs
        out = self.local(name)
        if isinstance(spec, TableSpec):
            self.lookup(unit.name, sources[0], spec.table, spec.y.dtype, out)
            return
        same = isinstance(spec, AddSpec) or spec.x.dtype == spec.y.dtype
        # QLinear operators keep their input's signedness; the last look-up flips it if need be.
        y = spec.y if same else _flipped(spec.y)
        shift = y.zero_point - spec.y.zero_point
        lo, hi = spec.lo + shift, spec.hi + shift
        if spec.table is not None or not same:
            raw = self.fresh(f"{name}/raw")
            self.compute(unit, spec, sources, y, raw)
            entries = _clamped(spec.table, lo, hi, y.dtype, spec.y.dtype)
            self.lookup(unit.name, raw, entries, spec.y.dtype, out)
        elif (lo, hi) != (y.lo, y.hi):
            raw = self.fresh(f"{name}/raw")
            self.compute(unit, spec, sources, y, raw)
            bounds = [self.scalar(v, y.dtype) for v in (lo, hi)]
            self.node("Clip", [raw, *bounds], out, f"{unit.name}/clamp")
        else:
            self.compute(unit, spec, sources, y, out)

    def compute(
        self,
        unit: Unit,
        spec: ConvSpec | AddSpec | PoolSpec,
        sources: list[str],
        y: Quant,
        out: str,
    ) -> None:
        """The unit without its clamp and table, quantised to ``y``."""
        if isinstance(spec, AddSpec):
            self.add(unit.name, spec, sources, out)
        elif isinstance(spec, ConvSpec) and spec.matrix:
            self.matrix(unit, spec, sources[0], y, out)
        elif isinstance(spec, ConvSpec):
            self.conv(unit.name, spec, sources[0], y, out)
        elif spec.op == "max":
            window: dict[str, Any] = {
                "kernel_shape": spec.kernel,
                "strides": spec.stride,
                "pads": spec.pads,
            }
            self.node("MaxPool", [sources[0]], out, unit.name, **window)
        else:
            depth = self.graph.tensors[unit.inputs[0]].shape[1]
            ones = ConvSpec(
                spec.x,
                y,
                weight=np.ones((depth, 1, *spec.kernel), np.int8),
                bias=np.zeros(depth, np.int32),
                w_scale=np.ones(depth, np.float32),
                m=np.full(depth, spec.m, np.float32),
                lo=y.lo,
                hi=y.hi,
                stride=spec.stride,
                pads=spec.pads,
                groups=depth,
            )
            self.conv(unit.name, ones, sources[0], y, out)

    def conv(self, name: str, spec: ConvSpec, source: str, y: Quant, out: str) -> None:
        one = self.scalar(1.0, "float32")
        weight, weight_zero = self.weights(name, spec)
        inputs = [source, one, self.scalar(spec.x.zero_point, spec.x.dtype), weight]
        inputs += [self.constant(f"{name}/m", spec.m), weight_zero, one]
        inputs += [self.scalar(y.zero_point, y.dtype)]
        if spec.bias.any():
            inputs.append(self.constant(f"{name}/bias", spec.bias.astype(np.int32)))
        self.node(
            "QLinearConv",
            inputs,
            out,
            name,
            kernel_shape=spec.weight.shape[2:],
            strides=spec.stride,
            dilations=spec.dilation,
            pads=spec.pads,
            group=spec.groups,
        )

    def matrix(self, unit: Unit, spec: ConvSpec, source: str, y: Quant, out: str) -> None:
        name = unit.name
        one = self.scalar(1.0, "float32")
        weight, _ = self.weights(name, spec, transposed=True)
        dtype = np.dtype(spec.x.dtype)
        zeros = np.full(len(spec.m), 0 if dtype == np.int8 else 128, dtype)
        head = [source, one, self.scalar(spec.x.zero_point, spec.x.dtype), weight]
        head += [self.constant(f"{name}/m", spec.m), self.constant(f"{name}/weight_zero", zeros)]
        tail = [one, self.scalar(y.zero_point, y.dtype)]
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

    def weights(self, name: str, spec: ConvSpec, transposed: bool = False) -> tuple[str, str]:
        """Weights of the activations' signedness, and their zero point; ``[K, N]`` on demand."""
        value = spec.weight[:, :, 0, 0].T if transposed else spec.weight
        if spec.x.dtype == "int8":
            return self.constant(f"{name}/weight", value), self.scalar(0, "int8")
        shifted = (value.astype(np.int16) + 128).astype(np.uint8)
        return self.constant(f"{name}/weight", shifted), self.scalar(128, "uint8")

    def add(self, name: str, spec: AddSpec, sources: list[str], out: str) -> None:
        reals = [
            self.node(
                "DequantizeLinear",
                [source, *self.quantisation(quant)],
                self.fresh(f"{out}/{part}"),
                f"{name}/{part}",
            )
            for source, quant, part in zip(sources, (spec.a, spec.b), "ab", strict=True)
        ]
        total = self.node("Sub" if spec.subtract else "Add", reals, self.fresh(f"{out}/sum"), name)
        self.node("QuantizeLinear", [total, *self.quantisation(spec.y)], out, f"{name}/quantise")

    def quantisation(self, quant: Quant) -> list[str]:
        zero = self.scalar(quant.zero_point, quant.dtype)
        return [self.constant("trivet/scale", np.asarray(quant.scale, np.float32)), zero]

    def lookup(self, name: str, source: str, entries: Array, dtype: str, out: str) -> None:
        table = self.constant(f"{name}/table", np.asarray(entries, np.uint8).view(dtype))
        index = self.fresh(f"{out}/index")
        self.node("Cast", [source], index, f"{name}/index", to=TensorProto.INT32)
        self.node("Gather", [table, index], out, f"{name}/table")

    # Nodes copied from the model

    def copy(self, unit: Unit) -> None:
        if self.excerpt is not None:
            for node in self.excerpt.take(f"unit {unit.name!r}", unit.inputs, unit.outputs):
                rename(node, self.locals)
                self.nodes.append(node)
            return
        if unit.kind != "view":
            raise CompileError(
                f"unit {unit.name!r}: a graph without a model cannot hold a unit of kind "
                f"{unit.kind!r}; give it the model that its nodes are copied from"
            )
        shape = np.array(self.graph.tensors[unit.outputs[0]].shape, np.int64)
        inputs = [self.local(unit.inputs[0]), self.constant(f"{unit.name}/shape", shape)]
        self.node("Reshape", inputs, self.local(unit.outputs[0]), unit.name)

    # The model

    def model(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> onnx.ModelProto:
        constants, functions = list(self.constants.values()), []
        used = {node.domain for node in self.nodes} | {"", "com.microsoft"}
        ir_version = _LOWEST_IR
        if self.excerpt is not None:
            constants += self.excerpt.constants.values()
            functions = self.excerpt.functions
            used |= {opset.domain for f in functions for opset in f.opset_import}
            ir_version = max(_LOWEST_IR, min(self.graph.model.ir_version, _HIGHEST_IR))
        size = sum(tensor.ByteSize() for tensor in constants)
        if size > _BYTES_LIMIT:
            raise CompileError(
                f"stage of {self.graph.name!r}: {size} bytes of weights in one ONNX file, above "
                f"the limit {_BYTES_LIMIT}; split the stage"
            )
        content = helper.make_graph(
            self.nodes,
            self.graph.name or "stage",
            [self.info(name) for name in inputs],
            [self.info(name) for name in outputs],
            constants,
        )
        opsets = [helper.make_opsetid(name, self.opsets.get(name, 1)) for name in sorted(used)]
        made = helper.make_model(
            content,
            opset_imports=opsets,
            functions=functions,
            ir_version=ir_version,
            producer_name="trivet",
        )
        helper.set_model_props(made, {LEVEL_KEY: SESSION_LEVEL})
        return made

    def info(self, name: str) -> onnx.ValueInfoProto:
        tensor: Tensor = self.graph.tensors[name]
        shape = list(tensor.shape)
        if name in self.locals:
            shape = [shape[0], *shape[2:], shape[1]]
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype)), shape
        )


def _flipped(quant: Quant) -> Quant:
    """The same real values in bytes of the other signedness."""
    if quant.dtype == "int8":
        return Quant(quant.scale, quant.zero_point + 128, "uint8")
    return Quant(quant.scale, quant.zero_point - 128, "int8")


def _clamped(table: Array | None, lo: int, hi: int, dtype: str, final: str) -> Array:
    """Entries for: clamp to lo..hi as ``dtype``, turn into ``final``, then ``table``."""
    values = np.arange(256, dtype=np.uint8).view(dtype).clip(lo, hi).view(np.uint8)
    if dtype != final:
        values = values ^ np.uint8(0x80)
    return values if table is None else np.asarray(table, np.uint8)[values]
