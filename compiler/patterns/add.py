"""Add, Sub and Mul of two int8 tensors, as :class:`AddSpec` and :class:`MulSpec`."""

from __future__ import annotations

import onnx_ir as ir

from trivet.compiler.passes.graph import shape_of
from trivet.compiler.units import AddSpec, MulSpec

from .quant import Match, Refused, source, tail

__all__ = ["match_add"]


def match_add(node: ir.Node) -> Match:
    """AddSpec or MulSpec of a node between int8 tensors of one shape; Refused says why not.

    A Mul may have one factor for each channel, ``[1, C, 1, 1]``.
    """
    a, b = source(node.inputs[0]), source(node.inputs[1])
    shapes = shape_of(a.tensor), shape_of(b.tensor)
    gated = node.op_type == "Mul" and _is_gate(*shapes)
    if None in shapes or (shapes[0] != shapes[1] and not gated):
        raise Refused(f"it broadcasts shapes {shapes[0]} and {shapes[1]}, must be equal")
    end = tail(node.outputs[0], node.op_type)
    nodes = (a.node, b.node, node, *end.nodes)
    if node.op_type == "Mul":
        product = MulSpec(a.quant, b.quant, end.quant, end.lo, end.hi)
        return Match(node, nodes, "mul", (a.tensor, b.tensor), end.tensor, product)
    spec = AddSpec(a.quant, b.quant, end.quant, end.lo, end.hi, subtract=node.op_type == "Sub")
    return Match(node, nodes, "add", (a.tensor, b.tensor), end.tensor, spec)


def _is_gate(a: tuple[int, ...] | None, b: tuple[int, ...] | None) -> bool:
    """Whether one image has a single pixel and the other as many channels."""
    if a is None or b is None or len(a) != 4 or len(b) != 4:
        return False
    return a[:2] == b[:2] and (1, 1) in (tuple(a[2:]), tuple(b[2:]))
