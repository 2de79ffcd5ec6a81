"""MaxPool, AveragePool and GlobalAveragePool between int8 tensors, as :class:`PoolSpec`."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trivet.compiler.passes.graph import attribute, shape_of
from trivet.compiler.units import PoolSpec, Quant

from .quant import Match, Refused, Source, source, tail
from .window import Window, window

__all__ = ["match_pool"]


def match_pool(node: ir.Node, quant: Quant | None = None) -> Match:
    """PoolSpec of a pool between int8 tensors; Refused says why there is none.

    ``quant``: parameters of the input of a MaxPool that works on int8 directly.
    """
    operand = node.inputs[0]
    direct = operand is not None and operand.dtype in (ir.DataType.INT8, ir.DataType.UINT8)
    if direct and operand is not None:
        if quant is None:
            raise Refused(f"the scale of '{operand.name}' is unknown")
        return _max(node, operand, quant, None)
    x = source(operand)
    if node.op_type in ("MaxPool", "GlobalMaxPool"):
        return _max(node, x.tensor, x.quant, x)
    return _average(node, x)


def _geometry(node: ir.Node, tensor: ir.Value) -> Window:
    shape = shape_of(tensor)
    if shape is None:
        raise Refused(f"the shape of '{tensor.name}' is not static")
    if len(shape) != 4:
        raise Refused(f"{len(shape) - 2} spatial dimensions, the engine has 2")
    image = (shape[2], shape[3])
    if node.op_type.startswith("Global"):
        return Window(image, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1))
    kernel = [int(k) for k in attribute(node, "kernel_shape")]
    if len(kernel) != 2:
        raise Refused(f"{len(kernel)} spatial dimensions, the engine has 2")
    w = window(node, image, (kernel[0], kernel[1]))
    if w.dilation != (1, 1):
        raise Refused(f"a pool with dilation {list(w.dilation)}")
    return w


def _max(node: ir.Node, tensor: ir.Value, quant: Quant, x: Source | None) -> Match:
    w = _geometry(node, tensor)
    if len(node.outputs) > 1 and list(node.outputs[1].uses()):
        raise Refused("the positions of its maxima are used")
    if x is None:
        spec = PoolSpec("max", quant, quant, w.kernel, np.float32(1), quant.lo, quant.hi, w.stride,
                        w.pads)  # fmt: skip
        return Match(node, (node,), "pool", (tensor,), node.outputs[0], spec)
    end = tail(node.outputs[0], node.op_type)
    if (end.quant.scale, end.quant.zero_point, end.quant.dtype) != (
        quant.scale, quant.zero_point, quant.dtype
    ):  # fmt: skip
        raise Refused(
            f"it changes the scale from {quant.scale} to {end.quant.scale} or the zero point from "
            f"{quant.zero_point} to {end.quant.zero_point}; a maximum of bytes keeps them"
        )
    spec = PoolSpec("max", quant, end.quant, w.kernel, np.float32(1), end.lo, end.hi, w.stride,
                    w.pads)  # fmt: skip
    return Match(node, (x.node, node, *end.nodes), "pool", (tensor,), end.tensor, spec)


def _average(node: ir.Node, x: Source) -> Match:
    w = _geometry(node, x.tensor)
    if any(w.pads) and not attribute(node, "count_include_pad", 0):
        raise Refused(
            f"an average over padding {list(w.pads)} that is not counted: pixels at the border "
            "divide by another count"
        )
    end = tail(node.outputs[0], node.op_type)
    # onnxruntime's QLinearAveragePool: float32 product of the output scale and the count first.
    count = np.float32(w.kernel[0] * w.kernel[1])
    m = np.float32(x.quant.scale / np.float32(end.quant.scale * count))
    if not np.isfinite(m) or m <= 0:
        raise Refused("its requantisation factor is 0 or not finite in float32")
    spec = PoolSpec("average", x.quant, end.quant, w.kernel, m, end.lo, end.hi, w.stride, w.pads)
    return Match(node, (x.node, node, *end.nodes), "pool", (x.tensor,), end.tensor, spec)
