"""Kernel, strides and pads of convolutions and pools as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from trivet.compiler.passes.graph import attribute

from .quant import Refused

__all__ = ["Window", "window"]


@dataclass(frozen=True)
class Window:
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pads: tuple[int, int, int, int]  # top, left, bottom, right
    output: tuple[int, int]


def window(node: ir.Node, image: tuple[int, int], kernel: tuple[int, int]) -> Window:
    """Resolve ``auto_pad`` and ``ceil_mode`` (ONNX, operator Conv and MaxPool) to explicit pads.

    A ``ceil_mode`` that changes nothing is dropped; one that adds a row or column is refused.
    """
    stride = _pair(node, "strides")
    dilation = _pair(node, "dilations")
    extent = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    mode = attribute(node, "auto_pad", "NOTSET")
    begin, end = [0, 0], [0, 0]
    if mode in ("NOTSET", ""):
        explicit = [int(p) for p in attribute(node, "pads", (0, 0, 0, 0))]
        if len(explicit) != 4:
            raise Refused(f"{len(explicit) // 2} spatial dimensions, the engine has 2")
        if min(explicit) < 0:
            raise Refused(f"negative padding {explicit}")
        begin, end = explicit[:2], explicit[2:]
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        for axis in (0, 1):
            wanted = -(-image[axis] // stride[axis])
            total = max((wanted - 1) * stride[axis] + extent[axis] - image[axis], 0)
            small, large = total // 2, total - total // 2
            begin[axis], end[axis] = (small, large) if mode == "SAME_UPPER" else (large, small)
    elif mode != "VALID":
        raise Refused(f"auto_pad {mode} is unknown")
    output = [0, 0]
    for axis in (0, 1):
        room = image[axis] + begin[axis] + end[axis] - extent[axis]
        if room < 0:
            raise Refused(f"a kernel of {extent[axis]} on {image[axis]} rows or columns")
        output[axis] = room // stride[axis] + 1
        if attribute(node, "ceil_mode", 0) and room % stride[axis]:
            raise Refused("ceil_mode adds a partial window")
    pads = (begin[0], begin[1], end[0], end[1])
    return Window(kernel, stride, dilation, pads, (output[0], output[1]))


def _pair(node: ir.Node, name: str) -> tuple[int, int]:
    values = [int(v) for v in attribute(node, name, (1, 1))]
    if len(values) != 2:
        raise Refused(f"{len(values)} spatial dimensions, the engine has 2")
    return values[0], values[1]
