"""Reading QuantizeLinear and DequantizeLinear around an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from trivet.compiler.passes.graph import attribute, constant, is_op, only_consumer
from trivet.compiler.units import Array, Quant

__all__ = ["Match", "Refused", "Source", "Tail", "bounds", "quant_of", "source", "tail"]


class Refused(Exception):
    """Why an operator has no integer form, in words for a person."""


@dataclass(frozen=True)
class Source:
    """An activation operand: the int8 tensor and the DequantizeLinear that reads it."""

    tensor: ir.Value
    quant: Quant
    node: ir.Node


@dataclass(frozen=True)
class Tail:
    """What follows an operator up to its int8 result: Relu and Clip as bounds, QuantizeLinear."""

    nodes: tuple[ir.Node, ...]
    tensor: ir.Value
    quant: Quant
    lo: int
    hi: int


@dataclass(frozen=True)
class Match:
    """A recognised unit; ``nodes`` in any order, constants' DequantizeLinear included."""

    anchor: ir.Node
    nodes: tuple[ir.Node, ...]
    kind: Literal["conv", "add", "mul", "pool", "table", "concat", "pad", "resize"]
    inputs: tuple[ir.Value, ...]
    output: ir.Value
    spec: object
    macs: int = 0


def quant_of(node: ir.Node) -> Quant:
    """Per-tensor parameters of a (De)QuantizeLinear; Refused where they are anything else."""
    scale = constant(node.inputs[1])
    if scale is None:
        raise Refused(f"{node.name}: its scale is computed at run time")
    if scale.size != 1:
        raise Refused(f"{node.name}: an activation with a scale for each channel")
    if scale.dtype != np.float32:
        raise Refused(f"{node.name}: its scale is {scale.dtype}, must be float32")
    value = np.float32(scale.reshape(-1)[0])
    if not np.isfinite(value) or value <= 0:
        raise Refused(f"{node.name}: its scale is {value}, must be above 0")
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    integer = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    point = 0
    if zero is not None:
        array = constant(zero)
        if array is None:
            raise Refused(f"{node.name}: its zero point is computed at run time")
        point = int(array.reshape(-1)[0])
    kind = integer.dtype if integer is not None else None
    if kind is None:
        raise Refused(f"{node.name}: the dtype of its integers is unknown")
    if kind not in (ir.DataType.INT8, ir.DataType.UINT8):
        raise Refused(
            f"{node.name}: {kind.name.lower()} activations, the engine takes int8 and uint8"
        )
    return Quant(value, point, "int8" if kind == ir.DataType.INT8 else "uint8")


def source(value: ir.Value | None) -> Source:
    """The int8 activation behind an operand; Refused where it is a float or a constant."""
    node = value.producer() if value is not None else None
    if value is None or node is None or not is_op(node, "DequantizeLinear"):
        name = value.name if value is not None else ""
        raise Refused(f"its input '{name}' is not quantised")
    tensor = node.inputs[0]
    if tensor is None or tensor.is_initializer():
        raise Refused(f"its input '{value.name}' is a constant")
    if only_consumer(value) is None:
        raise Refused(f"its dequantised input '{value.name}' is also a model output")
    return Source(tensor, quant_of(node), node)


def quantise(value: float | np.float32, quant: Quant) -> int:
    """QuantizeLinear of one number, in float32 as ONNX defines it."""
    with np.errstate(over="ignore"):
        level = np.rint(np.float32(value) / quant.scale) + quant.zero_point
    return int(np.clip(level, quant.lo, quant.hi))


def _clip_limits(node: ir.Node) -> tuple[float, float]:
    low, high = attribute(node, "min", -np.inf), attribute(node, "max", np.inf)
    for position, default in ((1, low), (2, high)):
        value = node.inputs[position] if len(node.inputs) > position else None
        if value is None:
            continue
        array: Array | None = constant(value)
        if array is None:
            raise Refused(f"the limits of {node.name} are computed at run time")
        default = float(array.reshape(-1)[0])
        low, high = (default, high) if position == 1 else (low, default)
    if np.isnan(low) or np.isnan(high):
        raise Refused(f"a limit of {node.name} is not a number")
    return low, high


def bounds(clamps: list[ir.Node], quant: Quant) -> tuple[int, int]:
    """lo and hi of a run of Relu and Clip before a QuantizeLinear.

    Quantising is monotone, so ``quantise(clip(v, a, b)) = clip(quantise(v), quantise(a),
    quantise(b))`` for every float v: the bounds are exact.
    """
    lo, hi = quant.lo, quant.hi
    for node in clamps:
        low, high = (0.0, np.inf) if node.op_type == "Relu" else _clip_limits(node)
        a, b = quantise(low, quant), quantise(high, quant)
        # ONNX's Clip with min above max gives max: the upper limit is applied last.
        lo, hi = min(max(lo, a), b), min(max(hi, a), b)
    return lo, hi


def tail(value: ir.Value, what: str) -> Tail:
    """Follow an operator's float result to its QuantizeLinear through Relu and Clip."""
    clamps: list[ir.Node] = []
    while True:
        node = only_consumer(value)
        if node is None:
            many = "a model output" if value.is_graph_output() else "read by several nodes"
            raise Refused(f"the float result '{value.name}' of {what} is {many}")
        if is_op(node, "QuantizeLinear"):
            break
        if not is_op(node, "Relu", "Clip"):
            raise Refused(
                f"{node.op_type} stands between {what} and its QuantizeLinear; "
                "only Relu and Clip have an exact form there"
            )
        if node.inputs[0] is not value:
            raise Refused(f"the limits of {node.name} are computed at run time")
        clamps.append(node)
        value = node.outputs[0]
    quant = quant_of(node)
    lo, hi = bounds(clamps, quant)
    return Tail((*clamps, node), node.outputs[0], quant, lo, hi)
