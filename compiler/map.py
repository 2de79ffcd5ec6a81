"""Map: the normalised model as units, each with its integer form or the reason why it has none.

Every node that is not constant belongs to exactly one unit. All inputs of a unit enter at or
before its anchor node and all outputs leave at or after it, so the anchors' topological order is
one of the units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from math import prod
from typing import Literal, cast

import numpy as np
import onnx_ir as ir

from .errors import CompileError
from .load import Loaded
from .passes.graph import VIEWS, attribute, is_op, reads, shape_of
from .patterns.add import match_add
from .patterns.concat import match_concat
from .patterns.conv import match_conv
from .patterns.pad import match_pad
from .patterns.pool import match_pool
from .patterns.quant import Match, Refused, quant_of
from .patterns.resize import match_resize
from .patterns.table import ELEMENTWISE, match_table
from .units import ConvSpec, Graph, Quant, Spec, Tensor, Unit

__all__ = ["map_units"]

_CONV = ("Conv", "Gemm", "MatMul")
_POOL = ("MaxPool", "GlobalMaxPool", "AveragePool", "GlobalAveragePool")
_INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8)
# Of one tensor: costs are measured on real arrays, which must fit a machine's memory.
_MOST_BYTES = 1 << 31

FpgaRefusal = Callable[[Graph, Unit], "str | None"]


def map_units(loaded: Loaded, fpga_refusal: FpgaRefusal | None = None) -> Graph:
    """Units of a normalised model in topological order.

    ``fpga_refusal`` may add the reason why a unit with an integer form does not fit an FPGA.
    CompileError: a tensor between units has no static shape.
    """
    return _Mapper(loaded).graph(fpga_refusal)


class _Mapper:
    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.model = loaded.model
        self.nodes = list(loaded.model.graph)
        self.order = {id(n): i for i, n in enumerate(self.nodes)}
        self.owner: dict[int, int] = {}  # node -> index into `drafts`
        self.drafts: list[tuple[ir.Node, Unit]] = []
        self.reasons: dict[int, str] = {}
        self.quants: dict[str, Quant] = {}
        self.constant = self._constant_nodes()
        self.readers: dict[int, list[ir.Node]] = {}
        for node in self.nodes:
            for value in reads(node):
                self.readers.setdefault(id(value), []).append(node)

    def graph(self, fpga_refusal: FpgaRefusal | None) -> Graph:
        self._read_quants()
        for node in self.nodes:
            self._match(node)
        for node in self.nodes:
            if is_op(node, "QuantizeLinear") and id(node) not in self.owner:
                self._match_table(node)
        for node in self.nodes:
            self._view(node)
        self._others()
        units = [u for _, u in sorted(self.drafts, key=lambda d: self.order[id(d[0])])]
        graph = Graph(
            name=self.loaded.name,
            model_sha256=self.loaded.sha256,
            units=tuple(units),
            tensors=self._tensors(units),
            inputs=tuple(str(v.name) for v in self.model.graph.inputs),
            outputs=tuple(str(v.name) for v in self.model.graph.outputs),
            model=self.model,
            batch_axis=self.loaded.batch_axis,
        )
        graph = dataclasses.replace(graph, units=tuple(_view_refusal(graph, u) for u in units))
        if fpga_refusal is None:
            return graph
        judged = []
        for unit in graph.units:
            reason = fpga_refusal(graph, unit) if "fpga" not in unit.refusals else None
            if reason is not None:
                unit = dataclasses.replace(unit, refusals={**unit.refusals, "fpga": reason})
            judged.append(unit)
        return dataclasses.replace(graph, units=tuple(judged))

    # What is known before matching

    def _constant_nodes(self) -> set[int]:
        found: set[int] = set()
        for node in self.nodes:
            if any(v.is_graph_output() for v in node.outputs):
                continue
            values = list(reads(node))
            if values and all(
                v.is_initializer() or (v.producer() is not None and id(v.producer()) in found)
                for v in values
            ):
                found.add(id(node))
        return found

    def _read_quants(self) -> None:
        """Scale of every int8 tensor: from its QuantizeLinear, or from who dequantises it."""
        for node in self.nodes:
            if id(node) in self.constant or not is_op(node, "QuantizeLinear", "DequantizeLinear"):
                continue
            try:
                quant = quant_of(node)
            except Refused:
                continue
            writes = node.op_type == "QuantizeLinear"
            value = node.outputs[0] if writes else node.inputs[0]
            if value is not None and (writes or value.name not in self.quants):
                self.quants[str(value.name)] = quant
        keeps = (*VIEWS, "MaxPool", "GlobalMaxPool", "Resize")
        for node in (*self.nodes, *reversed(self.nodes)):
            if is_op(node, *keeps) and node.inputs[0] is not None:
                if node.outputs[0].dtype not in _INTEGERS:
                    continue
                a, b = str(node.inputs[0].name), str(node.outputs[0].name)
                for known, unknown in ((a, b), (b, a)):
                    if known in self.quants:
                        self.quants.setdefault(unknown, self.quants[known])

    # Units with an integer form

    def _match(self, node: ir.Node) -> None:
        if id(node) in self.owner or id(node) in self.constant:
            return
        try:
            if is_op(node, *_CONV):
                self._take(match_conv(node))
            elif is_op(node, *_POOL):
                name = node.inputs[0].name if node.inputs[0] is not None else None
                self._take(match_pool(node, self.quants.get(str(name))))
            elif is_op(node, "Add", "Sub") and not self._is_unary(node):
                self._take(match_add(node))
            elif is_op(node, "Concat"):
                self._take(match_concat(node))
            elif is_op(node, "Pad"):
                self._take(match_pad(node))
            elif is_op(node, "Resize"):
                name = node.inputs[0].name if node.inputs[0] is not None else None
                self._take(match_resize(node, self.quants.get(str(name))))
            elif is_op(node, "Mul") and self._joins(node):
                self._take(match_add(node))
            elif is_op(node, "Div") and self._joins(node):
                raise Refused("it takes two tensors; the engine divides none")
        except Refused as e:
            self.reasons[id(node)] = f"{node.op_type}: {e}"

    @staticmethod
    def _is_unary(node: ir.Node) -> bool:
        """Whether both operands come from one int8 tensor (a table) or one is a number."""
        origins = set()
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if value is not None and value.is_initializer():
                continue
            if producer is None or not is_op(producer, "DequantizeLinear"):
                return False
            origins.add(id(producer.inputs[0]))
        return len(origins) == 1

    @staticmethod
    def _joins(node: ir.Node) -> bool:
        """Whether both operands are int8 tensors, not one and the same."""
        producers = [v.producer() for v in node.inputs if v is not None]
        origins = [p.inputs[0] for p in producers if p is not None]
        return (
            all(is_op(p, "DequantizeLinear") for p in producers)
            and len({id(v) for v in origins}) == 2
            and not any(v is None or v.is_initializer() for v in origins)
        )

    def _match_table(self, quantise: ir.Node) -> None:
        if id(quantise) in self.constant:
            return
        try:
            match = match_table(quantise, self.model)
        except Refused as e:
            value = quantise.inputs[0]
            producer = value.producer() if value is not None else None
            if producer is not None and is_op(producer, *ELEMENTWISE):
                self.reasons.setdefault(id(producer), f"{producer.op_type}: {e}")
            return
        if all(id(n) not in self.owner for n in match.nodes):
            self._take(match)

    def _take(self, match: Match) -> None:
        self._draft(
            match.anchor,
            match.nodes,
            match.kind,
            inputs=tuple(str(v.name) for v in match.inputs),
            outputs=(str(match.output.name),),
            spec=cast(Spec, match.spec),
            macs=match.macs,
        )

    def _draft(
        self,
        anchor: ir.Node,
        nodes: tuple[ir.Node, ...],
        kind: Literal[
            "conv", "add", "mul", "pool", "table", "concat", "pad", "resize", "view", "other"
        ],
        *,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        spec: Spec | None = None,
        refusals: dict[str, str] | None = None,
        macs: int = 0,
    ) -> None:
        for node in nodes:
            if id(node) not in self.constant:
                self.owner[id(node)] = len(self.drafts)
        unique = {id(n): n for n in nodes}
        ordered = sorted(unique.values(), key=lambda n: self.order[id(n)])
        names = tuple(str(n.name) for n in ordered)
        unit = Unit(str(anchor.name), kind, names, inputs, outputs, spec, refusals or {}, macs)
        self.drafts.append((anchor, unit))

    def _view(self, node: ir.Node) -> None:
        """A view between int8 tensors; constants beside it are shapes and axes."""
        source = node.inputs[0] if node.inputs else None
        if id(node) in self.owner or not is_op(node, *VIEWS) or source is None:
            return
        if source.dtype not in _INTEGERS or id(node) in self.constant:
            return
        if any(v is not None and not v.is_initializer() for v in node.inputs[1:]):
            self.reasons[id(node)] = f"{node.op_type}: its shape is computed at run time"
            return
        self._draft(
            node,
            (node,),
            "view",
            inputs=(str(source.name),),
            outputs=(str(node.outputs[0].name),),
        )

    # Everything else

    def _others(self) -> None:
        """A unit for each operator left, with its own DequantizeLinear and QuantizeLinear."""
        for node in self.nodes:
            if not self._is_left(node) or is_op(node, "QuantizeLinear", "DequantizeLinear"):
                continue
            group = [node, *self._own_dequantise(node)]
            for value in node.outputs:
                readers = self.readers.get(id(value), [])
                group += [n for n in readers if is_op(n, "QuantizeLinear") and self._is_left(n)]
            self._other(node, group)
        for node in self.nodes:
            if self._is_left(node) and is_op(node, "QuantizeLinear"):
                self._other(node, [node, *self._own_dequantise(node)])
        for node in self.nodes:
            if self._is_left(node):
                self._other(node, [node])

    def _is_left(self, node: ir.Node) -> bool:
        return id(node) not in self.owner and id(node) not in self.constant

    def _own_dequantise(self, node: ir.Node) -> list[ir.Node]:
        found = []
        for value in reads(node):
            producer = value.producer()
            if producer is None or not is_op(producer, "DequantizeLinear"):
                continue
            alone = all(n is node for n in self.readers[id(value)]) and not value.is_graph_output()
            if alone and self._is_left(producer):
                found.append(producer)
        return found

    def _other(self, anchor: ir.Node, group: list[ir.Node]) -> None:
        nodes = list(group)
        for node in nodes:  # grows: constants of constants
            for value in reads(node):
                producer = value.producer()
                if producer is not None and id(producer) in self.constant and producer not in nodes:
                    nodes.append(producer)
        members = {id(n) for n in nodes}
        inputs: dict[str, None] = {}
        outputs: dict[str, None] = {}
        for node in sorted(nodes, key=lambda n: self.order[id(n)]):
            for value in reads(node):
                producer = value.producer()
                inside = producer is not None and id(producer) in members
                if not inside and not value.is_initializer():
                    inputs[str(value.name)] = None
            for value in node.outputs:
                outside = any(id(n) not in members for n in self.readers.get(id(value), []))
                if (outside and id(node) not in self.constant) or value.is_graph_output():
                    outputs[str(value.name)] = None
        reason = self.reasons.get(id(anchor)) or _default_reason(anchor)
        self._draft(
            anchor,
            tuple(nodes),
            "other",
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            refusals={"fpga": reason},
            macs=_float_macs(anchor),
        )

    def _tensors(self, units: list[Unit]) -> dict[str, Tensor]:
        graph = self.model.graph
        values = {v.name: v for v in graph.inputs}
        values |= {v.name: v for n in self.nodes for v in n.outputs}
        names = [str(v.name) for v in graph.inputs]
        names += [t for u in units for t in (*u.inputs, *u.outputs)]
        names += [str(v.name) for v in graph.outputs]
        tensors: dict[str, Tensor] = {}
        for name in dict.fromkeys(names):
            value = values.get(name)
            if value is None:
                raise CompileError(
                    f"{self.loaded.name}: output '{name}' is a constant; remove it from the model"
                )
            shape = shape_of(value)
            if shape is None or value.dtype is None:
                raise CompileError(
                    f"{self.loaded.name}: tensor '{name}' has no static shape; "
                    "fix the model's dimensions with --shape or remove data-dependent shapes"
                )
            nbytes = prod(shape) * value.dtype.itemsize
            if nbytes > _MOST_BYTES:
                raise CompileError(
                    f"{self.loaded.name}: tensor '{name}' has shape {list(shape)}, "
                    f"{nbytes:,.0f} bytes, above the limit {_MOST_BYTES:,}; fix smaller dimensions "
                    "with --shape and stream more items"
                )
            quant = self.quants.get(name) if value.dtype in _INTEGERS else None
            tensors[name] = Tensor(name, value.dtype.numpy().name, shape, quant)
        return tensors


def _default_reason(node: ir.Node) -> str:
    if is_op(node, "QuantizeLinear"):
        return "QuantizeLinear: takes float values, the engine has none"
    if is_op(node, "DequantizeLinear"):
        return "DequantizeLinear: makes float values, the engine has none"
    domain = f"{node.domain}." if node.domain else ""
    return f"{domain}{node.op_type}: has no integer form here; it runs in float"


def _float_macs(node: ir.Node) -> int:
    """Multiplications of a Conv, Gemm or MatMul that runs in float; 0 for other operators."""
    if not is_op(node, *_CONV):
        return 0
    shapes = [
        shape_of(v) for v in (node.inputs[0], node.inputs[1], node.outputs[0]) if v is not None
    ]
    if len(shapes) != 3 or any(s is None for s in shapes):
        return 0
    x, w, y = cast(list[tuple[int, ...]], shapes)
    if node.op_type == "Conv":
        return int(np.prod(y)) * int(np.prod(w[1:]))
    depth = x[0] if node.op_type == "Gemm" and attribute(node, "transA", 0) else x[-1]
    return int(np.prod(y)) * int(depth)


def _nhwc(order: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> list[int]:
    """Bytes in the order in which they lie on an FPGA: NHWC for four dimensions."""
    return list((order.transpose(0, 2, 3, 1) if order.ndim == 4 else order).ravel().tolist())


def _view_refusal(graph: Graph, unit: Unit) -> Unit:
    """Refuse a view that moves bytes on an FPGA, unless only weights of later layers feel it."""
    if unit.kind != "view":
        return unit
    node = graph.model.graph.node(unit.nodes[0])
    before, after = graph.tensors[unit.inputs[0]].shape, graph.tensors[unit.outputs[0]].shape
    order = np.arange(int(np.prod(before)), dtype=np.int64).reshape(before)
    if node.op_type == "Transpose":
        perm = attribute(node, "perm", tuple(reversed(range(len(before)))))
        moved = order.transpose(perm)
    else:
        moved = order.reshape(after)
    if _nhwc(order) == _nhwc(moved):
        return unit
    readers = [u for u in graph.units if unit.outputs[0] in u.inputs]
    matrix = [u for u in readers if isinstance(u.spec, ConvSpec) and u.spec.matrix]
    is_flatten = len(after) == 2 and after[0] == before[0] and node.op_type != "Transpose"
    if is_flatten and readers and matrix == readers and unit.outputs[0] not in graph.outputs:
        return unit
    reason = (
        f"{node.op_type}: {list(before)} to {list(after)} moves bytes; on the FPGA a view must "
        "keep the order of NHWC bytes or be read by matrix layers only"
    )
    return dataclasses.replace(unit, refusals={**unit.refusals, "fpga": reason})
