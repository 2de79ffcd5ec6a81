"""Conv, Gemm and MatMul with bias, Relu and Clip between int8 tensors, as :class:`ConvSpec`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trivet.compiler.passes.graph import attribute, constant, is_op, only_consumer, shape_of
from trivet.compiler.units import Array, ConvSpec, Quant

from .quant import Match, Refused, Source, source, tail
from .window import Window, window

__all__ = ["match_conv"]

# A stored scale of the bias may differ from s_x * s_w by the rounding of a float32 product or two:
# its integers then are the bias in steps of s_x * s_w, which is how QLinearConv defines them.
_SCALE_TOLERANCE = 1e-6
# Any other bias must come out as integers to this part of a step.
_BIAS_STEPS = 0.01


@dataclass(frozen=True)
class _Constant:
    """A constant operand: integers with their scales, or plain floats."""

    array: Array
    scale: Array | None  # float32, scalar or one for each index of `axis`
    axis: int
    nodes: tuple[ir.Node, ...]


def _constant_operand(value: ir.Value | None, what: str) -> _Constant:
    plain = constant(value)
    if plain is not None:
        return _Constant(plain, None, 0, ())
    node = value.producer() if value is not None else None
    if value is None or node is None or not is_op(node, "DequantizeLinear"):
        raise Refused(f"its {what} is computed at run time")
    integers = constant(node.inputs[0])
    if integers is None:
        raise Refused(f"its {what} is computed at run time")
    scale = constant(node.inputs[1])
    if (
        scale is None
        or scale.dtype != np.float32
        or scale.ndim > 1
        or attribute(node, "block_size", 0)
    ):
        raise Refused(f"the scale of its {what} is not a float32 constant per tensor or channel")
    zero: Array = np.zeros(1, dtype=np.int32)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        given = constant(node.inputs[2])
        if given is None:
            raise Refused(f"the zero point of its {what} is computed at run time")
        zero = given.astype(np.int32).reshape(-1)
    if integers.dtype == np.uint8 and np.all(zero == 128):
        integers = (integers.astype(np.int16) - 128).astype(np.int8)  # the same numbers as int8
    elif np.any(zero != 0):
        raise Refused(f"the zero point of its {what} is not 0 (nor 128 for uint8)")
    if not np.all(np.isfinite(scale)) or np.any(scale <= 0):
        raise Refused(f"a scale of its {what} is not above 0")
    axis = int(attribute(node, "axis", 1)) % max(integers.ndim, 1)
    return _Constant(integers, scale, axis, (node,))


def _weights(value: ir.Value | None, channel_axis: int) -> tuple[Array, Array, tuple[ir.Node, ...]]:
    """int8 weights as stored, and a scale for each output channel."""
    operand = _constant_operand(value, "weights")
    if operand.scale is None:
        raise Refused("its weights are not quantised")
    array = operand.array
    if array.dtype.name not in ("int8", "int4"):
        raise Refused(f"its weights are {array.dtype}, must be int8")
    scale = operand.scale.reshape(-1)
    channels = array.shape[channel_axis]
    if scale.size == 1:
        scale = np.repeat(scale, channels)
    elif operand.axis != channel_axis or scale.size != channels:
        raise Refused("its weights have scales along another axis than the output channels")
    return array.astype(np.int8), scale.astype(np.float32), operand.nodes


def _bias(
    value: ir.Value, channels: int, unit: Array, matrix: bool
) -> tuple[Array, tuple[ir.Node, ...]]:
    """Bias in steps of ``unit`` = s_x * s_w per channel, as int64; Refused unless exact."""
    operand = _constant_operand(value, "bias")
    array = operand.array
    # Shapes that broadcast along the channels only: [O], [1, O], [O, 1, 1], [1, O, 1, 1], scalar.
    channel_axis = array.ndim - 1 if matrix or array.ndim == 1 else array.ndim - 3
    if array.size != 1 and (channel_axis < 0 or array.size != array.shape[channel_axis]
                            or array.size != channels):  # fmt: skip
        raise Refused(f"its bias of shape {list(array.shape)} is not one number a channel")
    if operand.scale is not None and operand.scale.size not in (1, array.size):
        raise Refused(f"its bias has {operand.scale.size} scales for {array.size} channels")
    real = array.reshape(-1).astype(np.float64)
    if operand.scale is not None:
        scale = operand.scale.reshape(-1).astype(np.float64)
        if np.all(np.abs(scale / unit - 1) <= _SCALE_TOLERANCE):
            return np.broadcast_to(array.reshape(-1).astype(np.int64), (channels,)), operand.nodes
        real = real * scale
    steps = np.broadcast_to(real / unit, (channels,))
    whole = np.rint(steps)
    worst = int(np.argmax(np.abs(steps - whole)))
    if np.abs(steps - whole)[worst] > _BIAS_STEPS:
        raise Refused(
            f"its bias is no multiple of (input scale * weight scale): channel {worst} is "
            f"{steps[worst]:.3f} steps"
        )
    return whole.astype(np.int64), operand.nodes


def _multiplier(x: Source, w_scale: Array, y_scale: np.float32) -> Array:
    """m = f32(f32(s_x * s_w) / s_y), the factor of ONNX's QLinearConv."""
    with np.errstate(all="ignore"):
        m = (x.quant.scale * w_scale) / y_scale
    if not np.all(np.isfinite(m)) or np.any(m <= 0):
        raise Refused("a requantisation factor is 0 or not finite in float32")
    return np.asarray(m, dtype=np.float32)


def _added_bias(value: ir.Value) -> tuple[ir.Node, ir.Value] | None:
    """An Add of a constant right behind: the node and its constant operand."""
    node = only_consumer(value)
    if node is None or not is_op(node, "Add"):
        return None
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    producer = other.producer() if other is not None else None
    if other is None:
        return None
    is_constant = constant(other) is not None or (
        is_op(producer, "DequantizeLinear")
        and producer is not None
        and constant(producer.inputs[0]) is not None
    )
    return (node, other) if is_constant else None


def _check_sums(x: Quant, weight: Array, bias: Array) -> None:
    """The contract's sums are int32: a layer that could leave them stays in float."""
    w = weight.reshape(len(weight), -1).astype(np.int64)
    low, high = w * (x.lo - x.zero_point), w * (x.hi - x.zero_point)
    most = np.maximum(low, high).sum(1) + bias
    least = np.minimum(low, high).sum(1) + bias
    if most.max() > 2**31 - 1 or least.min() < -(2**31):
        raise Refused(
            f"its sums may reach {max(most.max(), -least.min()):,}, above int32; it stays in float"
        )


def match_conv(node: ir.Node) -> Match:
    """ConvSpec of a Conv, Gemm or MatMul between int8 tensors; Refused says why there is none."""
    x = source(node.inputs[0])
    in_shape = shape_of(x.tensor)
    if in_shape is None:
        raise Refused(f"the shape of '{x.tensor.name}' is not static")
    matrix = node.op_type != "Conv"
    if matrix:
        weight, w_scale, nodes = _matrix_weights(node, in_shape)
    else:
        if len(in_shape) != 4:
            raise Refused(f"{len(in_shape) - 2} spatial dimensions, the engine has 2")
        weight, w_scale, nodes = _weights(node.inputs[1], 0)
    channels = weight.shape[0]
    unit = x.quant.scale.astype(np.float64) * w_scale.astype(np.float64)
    total = np.zeros(channels, dtype=np.int64)
    if node.op_type != "MatMul" and len(node.inputs) > 2 and node.inputs[2] is not None:
        bias, extra = _bias(node.inputs[2], channels, unit, matrix)
        total, nodes = total + bias, nodes + extra
    value = node.outputs[0]
    added = _added_bias(value)
    if added is not None:
        bias, extra = _bias(added[1], channels, unit, matrix)
        total, nodes = total + bias, (*nodes, *extra, added[0])
        if shape_of(added[0].outputs[0]) != shape_of(value):
            raise Refused(f"{added[0].name} broadcasts the result to another shape")
        value = added[0].outputs[0]
    end = tail(value, node.op_type)
    if np.any(np.abs(total) > 2**31 - 1):
        raise Refused("its bias does not fit in int32")
    _check_sums(x.quant, weight, total)

    w, groups = Window((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)), 1
    if matrix:
        rows = int(np.prod(in_shape[:-1]))
        macs = rows * weight.shape[0] * weight.shape[1]
    else:
        w, groups = _conv_geometry(node, in_shape, weight)
        macs = in_shape[0] * w.output[0] * w.output[1] * int(weight.size)
    spec = ConvSpec(
        x=x.quant,
        y=end.quant,
        weight=np.ascontiguousarray(weight),
        bias=total.astype(np.int32),
        w_scale=w_scale,
        m=_multiplier(x, w_scale, end.quant.scale),
        lo=end.lo,
        hi=end.hi,
        stride=w.stride,
        dilation=w.dilation,
        pads=w.pads,
        groups=groups,
        matrix=matrix,
    )
    everything = (x.node, node, *nodes, *end.nodes)
    return Match(node, everything, "conv", (x.tensor,), end.tensor, spec, macs)


def _matrix_weights(
    node: ir.Node, in_shape: tuple[int, ...]
) -> tuple[Array, Array, tuple[ir.Node, ...]]:
    """Weights [N, K, 1, 1] of a Gemm or MatMul on [M, K]."""
    if len(in_shape) != 2:
        raise Refused(f"a {node.op_type} of {len(in_shape)} dimensions, the engine takes [M, K]")
    transposed = False
    if node.op_type == "Gemm":
        if attribute(node, "alpha", 1.0) != 1.0 or attribute(node, "beta", 1.0) != 1.0:
            raise Refused("a Gemm with alpha or beta other than 1")
        if attribute(node, "transA", 0):
            raise Refused("a Gemm with a transposed input")
        transposed = bool(attribute(node, "transB", 0))
    weight, scale, nodes = _weights(node.inputs[1], 0 if transposed else 1)
    if weight.ndim != 2:
        raise Refused(f"weights of {weight.ndim} dimensions, must be [K, N]")
    rows = weight if transposed else weight.T
    return rows[:, :, None, None], scale, nodes


def _conv_geometry(node: ir.Node, in_shape: tuple[int, ...], weight: Array) -> tuple[Window, int]:
    groups = int(attribute(node, "group", 1))
    channels_in, channels = in_shape[1], weight.shape[0]
    if channels_in != groups * weight.shape[1] or channels % groups:
        raise Refused(
            f"{groups} groups of {weight.shape[1]} channels do not divide its {channels_in} "
            f"inputs and {channels} outputs"
        )
    kernel = (int(weight.shape[2]), int(weight.shape[3]))
    return window(node, (in_shape[2], in_shape[3]), kernel), groups
