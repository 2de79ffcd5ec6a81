"""Pad of an int8 image with a constant, as :class:`PadSpec`."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trivet.compiler.passes.graph import attribute, constant, shape_of
from trivet.compiler.units import PadSpec

from .quant import Match, Refused, quantise, source, tail

__all__ = ["match_pad"]


def match_pad(node: ir.Node) -> Match:
    """PadSpec of a Pad that adds rows and columns of a constant; Refused says why there is none."""
    x = source(node.inputs[0])
    mode = attribute(node, "mode", "constant")
    if mode not in ("constant", b"constant"):
        raise Refused(f"it pads in mode {mode}, the engine with a constant only")
    shape = shape_of(x.tensor)
    if shape is None or len(shape) != 4:
        raise Refused(f"it pads a tensor of shape {shape}, the engine images of 4 axes")
    end = tail(node.outputs[0], node.op_type)
    if end.quant != x.quant or (end.lo, end.hi) != (x.quant.lo, x.quant.hi):
        raise Refused(
            f"it changes the scale from {x.quant.scale} to {end.quant.scale} or the zero point "
            f"from {x.quant.zero_point} to {end.quant.zero_point}, or clamps; copies keep bytes"
        )
    operands = [*node.inputs[1:], None, None, None]
    pads, value, axes = (None if v is None else constant(v) for v in operands[:3])
    if pads is None or any(v is not None and constant(v) is None for v in operands):
        raise Refused("its pads are computed at run time")
    along = list(range(4)) if axes is None else [int(a) % 4 for a in axes.reshape(-1)]
    before, after = [0] * 4, [0] * 4
    for k, axis in enumerate(along):
        before[axis], after[axis] = int(pads[k]), int(pads[len(along) + k])
    if any(before[:2]) or any(after[:2]) or min(*before, *after) < 0:
        raise Refused(f"its pads are {pads.tolist()}, the engine adds rows and columns only")
    real = 0.0 if value is None or not value.size else float(value.reshape(-1)[0])
    if np.isnan(real):
        raise Refused("it pads with NaN")
    around = (before[2], before[3], after[2], after[3])
    spec = PadSpec(x.quant, end.quant, around, quantise(real, x.quant))
    nodes = (x.node, node, *end.nodes)
    return Match(node, nodes, "pad", (x.tensor,), end.tensor, spec)
