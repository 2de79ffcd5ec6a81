"""Concat of int8 tensors along their channels, as :class:`ConcatSpec`."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trivet.compiler.passes.graph import attribute, shape_of
from trivet.compiler.units import Array, ConcatSpec, Quant

from .quant import Match, Refused, source, tail

__all__ = ["match_concat"]


def match_concat(node: ir.Node) -> Match:
    """ConcatSpec of a Concat between int8 tensors; Refused says why there is none."""
    sources = [source(value) for value in node.inputs]
    shape = shape_of(sources[0].tensor)
    if shape is None:
        raise Refused(f"the shape of '{sources[0].tensor.name}' is not static")
    axis, channels = int(attribute(node, "axis")) % len(shape), 1 if len(shape) == 4 else -1
    if axis != channels % len(shape):
        raise Refused(f"it joins along axis {axis}, the engine joins channels only")
    end = tail(node.outputs[0], node.op_type)
    quants = tuple(s.quant for s in sources)
    tables = tuple(_rescale(x, end.quant, end.lo, end.hi) for x in quants)
    nodes = (*(s.node for s in sources), node, *end.nodes)
    inputs = tuple(s.tensor for s in sources)
    return Match(node, nodes, "concat", inputs, end.tensor, ConcatSpec(quants, end.quant, tables))


def _rescale(x: Quant, y: Quant, lo: int, hi: int) -> Array | None:
    """DequantizeLinear and QuantizeLinear of all 256 bytes in float32; None if that is nothing."""
    codes = np.arange(256, dtype=np.uint8)
    real = (codes.view(x.dtype).astype(np.int32) - x.zero_point).astype(np.float32) * x.scale
    with np.errstate(over="ignore"):
        steps = np.rint(real / y.scale).clip(-1e6, 1e6).astype(np.int64) + y.zero_point
    entries: Array = steps.clip(lo, hi).astype(y.dtype).view(np.uint8)
    return None if np.array_equal(entries, codes) and x.dtype == y.dtype else entries
