"""Small questions about an :class:`onnx_ir.Graph` that passes and the mapper share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

__all__ = [
    "STANDARD_DOMAINS",
    "attribute",
    "bypass",
    "constant",
    "initializer",
    "is_op",
    "only_consumer",
    "reads",
    "same_parameters",
    "shape_of",
    "unique_name",
]

STANDARD_DOMAINS = ("", "ai.onnx")
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity")


def is_op(node: ir.Node | None, *op_types: str) -> bool:
    """Whether the node is one of these operators of the standard domain."""
    return node is not None and node.op_type in op_types and node.domain in STANDARD_DOMAINS


def constant(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """The array of an initializer; None for anything that is computed, fed or absent."""
    if value is None or value.const_value is None or not value.is_initializer():
        return None
    return value.const_value.numpy()


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """Value of a node's attribute; ``default`` where it is absent."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def shape_of(value: ir.Value) -> tuple[int, ...] | None:
    """Static shape; None when a dimension is not a number."""
    if value.shape is None or value.shape.is_dynamic():
        return None
    return value.shape.numpy()


def only_consumer(value: ir.Value) -> ir.Node | None:
    """The node that alone reads the value; None for graph outputs and shared values."""
    uses = list(value.uses())
    if value.is_graph_output() or len(uses) != 1:
        return None
    return uses[0].node


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """Values that a node takes, those captured by its subgraphs included."""
    yield from (v for v in node.inputs if v is not None)
    for attr in node.attributes.values():
        if attr.type is ir.AttributeType.GRAPH:
            graphs = [attr.as_graph()]
        elif attr.type is ir.AttributeType.GRAPHS:
            graphs = list(attr.as_graphs())
        else:
            continue
        for graph in graphs:
            yield from _captured(graph)


def _captured(graph: ir.Graph) -> Iterator[ir.Value]:
    inner = {id(v) for v in graph.inputs} | {id(v) for v in graph.initializers.values()}
    inner |= {id(v) for node in graph for v in node.outputs}
    for node in graph:
        yield from (v for v in reads(node) if id(v) not in inner)
    yield from (v for v in graph.outputs if id(v) not in inner)


def initializer(graph: ir.Graph, name: str, array: npt.NDArray[Any]) -> ir.Value:
    """Register an array as an initializer under a free name."""
    name = unique_name(graph, name)
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
    value.const_value = tensor
    graph.register_initializer(value)
    return value


def unique_name(graph: ir.Graph, name: str) -> str:
    """``name`` or, where a value or node has it already, ``name`` with a number."""
    taken = {v.name for v in graph.inputs} | set(graph.initializers)
    for node in graph:
        taken.add(node.name)
        taken.update(v.name for v in node.outputs)
    free, number = name, 1
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


def same_parameters(a: ir.Node, b: ir.Node) -> bool:
    """Whether two (De)QuantizeLinear nodes have equal per-tensor scale and zero point."""
    for position in (1, 2):
        x = a.inputs[position] if len(a.inputs) > position else None
        y = b.inputs[position] if len(b.inputs) > position else None
        left, right = constant(x), constant(y)
        if (x is None) != (y is None):
            return False
        if x is None and y is None:
            continue
        if left is None or right is None or left.size != 1 or right.size != 1:
            return False
        if left.dtype != right.dtype or left.item() != right.item():
            return False
    return True


def bypass(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    """Let everything read ``new`` instead of ``old``; a graph output keeps the name of ``old``."""
    if old.is_graph_output():
        name = old.name
        old.name = unique_name(graph, f"{name}_before")
        new.name = name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
