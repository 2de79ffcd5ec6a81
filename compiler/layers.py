"""One unit as one instruction, before it has any address: fields, packed weights, parameters.

Everything that can be said about a unit alone is checked here, so that :func:`refusal` (before
planning) and :func:`lower` (after it) give the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trivet.hdl.config import EngineConfig
from trivet.hdl.isa import Expand, Instruction, Op, predicted_cycles

from .pack import encode_m, pack_dot, pack_lane, pack_params, pack_shared_one, pack_window
from .units import Array, ConvSpec, MulSpec, PadSpec, PoolSpec, Quant

__all__ = [
    "Hwc",
    "Layer",
    "Unfit",
    "conv_layer",
    "copy_layer",
    "expanded_layer",
    "expansion",
    "mul_layer",
    "pad_layer",
    "pool_layer",
]

Hwc = tuple[int, int, int]
_INT32 = 1 << 31


class Unfit(ValueError):
    """A unit that the engine cannot take: what, its bound, the way out; the caller adds where."""


@dataclass(frozen=True)
class Layer:
    """``instruction`` without addresses; ``weights`` and ``params`` are whole words."""

    instruction: Instruction
    weights: bytes
    params: bytes


def conv_layer(
    spec: ConvSpec, source: Hwc, out: Hwc, config: EngineConfig, order: Array | None = None
) -> Layer:
    """Conv, Gemm or MatMul.

    ``source``, ``out``: height, width, channels in memory. ``order`` (for a matrix on a flattened
    tensor): for each of its K inputs the place in the source's NHWC order; the whole source is
    then the kernel, and the weights are reordered instead of the bytes.
    """
    weight = np.asarray(spec.weight)
    if weight.dtype != np.int8:
        raise Unfit(
            f"weights are {weight.dtype}, the engine takes int8; "
            "quantise them as int8 with zero point 0"
        )
    kernel, groups = (weight.shape[2], weight.shape[3]), spec.groups
    if order is not None:
        flat = np.zeros((weight.shape[0], order.size), np.int8)
        flat[:, order] = weight[:, :, 0, 0]
        kernel = (source[0], source[1])
        taps = flat.reshape(-1, *source)
    else:
        taps = _dense(weight, source[2], groups) if _needs_dense(weight, groups) else weight
        taps = taps.transpose(0, 2, 3, 1)  # [O, KH, KW, C]
    depthwise = _is_depthwise(weight, groups)
    if taps.shape[3] != (1 if depthwise else source[2]):
        raise Unfit(f"weights are for {taps.shape[3] * groups} channels, its input has {source[2]}")
    sums = taps.astype(np.int64)
    bias = np.asarray(spec.bias, np.int64) - spec.x.zero_point * sums.sum((1, 2, 3))
    _check_sums(np.abs(sums).sum((1, 2, 3)) * _largest(spec.x), bias)
    instruction = _geometry(
        Instruction(
            op=Op.LANE if depthwise else Op.DOT,
            c_slices=1 if depthwise else -(-source[2] // config.simd),
            zp_y=spec.y.zero_point, lo=spec.lo, hi=spec.hi,
        ),
        spec.x, source, out, kernel, config, spec.stride, spec.dilation, spec.pads,
    )  # fmt: skip
    if depthwise and (quick := _windowed(instruction, config)) is not None:
        packed = pack_window(taps[..., 0], config)
        return _finish(quick, packed, bias, np.asarray(spec.m), config)
    packed = pack_lane(taps[..., 0], config) if depthwise else pack_dot(taps, config)
    return _finish(instruction, packed, bias, np.asarray(spec.m), config)


def expansion(spec: ConvSpec, source: Hwc, out: Hwc, config: EngineConfig) -> Expand | None:
    """The form in which the board should store this convolution's input; None: as it is.

    Worth it for few channels (fewer than ``simd``) in more than one tap, where it saves slices.
    """
    weight, channels = np.asarray(spec.weight), source[2]
    kernel, pads = (weight.shape[2], weight.shape[3]), spec.pads
    taps = kernel[0] * kernel[1]
    if not config.expander:
        return None
    if channels >= config.simd or _is_depthwise(weight, spec.groups) or spec.dilation != (1, 1):
        return None
    plain, spread = taps * -(-channels // config.simd), -(-taps * channels // config.simd)
    if max(plain, config.pixel_cycles) <= max(spread, config.pixel_cycles):
        return None
    # What the loader can do (``hdl/expand.py``).
    if spec.stride[0] > kernel[0] or spec.stride[1] > kernel[1]:
        return None
    if max(*kernel, channels, *pads[:2]) > 255 or max(*source, *out) + 255 >= 1 << 16:
        return None
    return Expand(
        source, *kernel, *spec.stride, pads[0], pads[1], out[0], out[1], spec.x.zero_point
    )


def expanded_layer(spec: ConvSpec, expand: Expand, out: Hwc, config: EngineConfig) -> Layer:
    """The convolution on its expanded input: 1 x 1, on channels in order ky, kx, channel."""
    weight = np.asarray(spec.weight)
    if _needs_dense(weight, spec.groups):
        weight = _dense(weight, expand.hwc[2], spec.groups)
    flat = weight.transpose(0, 2, 3, 1).reshape(len(weight), -1, 1, 1)
    plain = replace(spec, weight=flat, stride=(1, 1), pads=(0, 0, 0, 0), groups=1)
    return conv_layer(plain, expand.stored, out, config)


def pool_layer(spec: PoolSpec, source: Hwc, out: Hwc, config: EngineConfig) -> Layer:
    """MaxPool or AveragePool on the lanes, with one held word of ones as weights."""
    x = spec.x
    if spec.op == "max":
        x = replace(x, zero_point=x.lo)  # padding never wins
        start = Instruction(op=Op.LANE, acc_max=1, weight_hold=1, lo=spec.lo, hi=spec.hi)
        bias, m = 0, np.float32(1)
    else:
        start = Instruction(
            op=Op.LANE, weight_hold=1, zp_y=spec.y.zero_point, lo=spec.lo, hi=spec.hi
        )
        bias, m = -x.zero_point * spec.kernel[0] * spec.kernel[1], spec.m
    instruction = _geometry(
        start, x, source, out, spec.kernel, config, spec.stride, (1, 1), spec.pads
    )
    return _pointwise(instruction, bias, m, source[2], config)


def pad_layer(spec: PadSpec, source: Hwc, out: Hwc, config: EngineConfig) -> Layer:
    """A copy whose window of one tap begins in the padding."""
    start = Instruction(op=Op.LANE, weight_hold=1, lo=spec.x.lo, hi=spec.x.hi)
    x = replace(spec.x, zero_point=spec.value)  # what padding feeds
    instruction = _geometry(start, x, source, out, (1, 1), config, pads=spec.pads)
    return _pointwise(instruction, 0, np.float32(1), source[2], config)


def mul_layer(spec: MulSpec, m: np.float32, source: Hwc, out: Hwc, config: EngineConfig) -> Layer:
    """A copy of the first tensor, or of its single pixel, less its zero point; the address of the
    second one is still to come."""
    start = Instruction(
        op=Op.LANE, weight_hold=1, zp_y=spec.y.zero_point, lo=spec.lo, hi=spec.hi,
        has_add=1, has_mul=1, zp_a=spec.b.zero_point, lo_a=spec.b.lo,
    )  # fmt: skip
    instruction = _geometry(start, replace(spec.a, zero_point=0), out, out, (1, 1), config)
    if source != out:
        instruction = replace(instruction, pixel_words=0)
    # One word of parameters more than there are channels, with the same multiplier.
    channels = instruction.blocks * config.lanes + config.requantisers
    layer = _pointwise(instruction, -spec.a.zero_point, m, channels, config)
    return replace(layer, params=layer.params[: channels * 8])


def copy_layer(x: Quant, hwc: Hwc, config: EngineConfig) -> Layer:
    """Moves a tensor through the lanes unchanged, for what follows it (addends, table)."""
    start = Instruction(op=Op.LANE, weight_hold=1, lo=x.lo, hi=x.hi)
    instruction = _geometry(start, replace(x, zero_point=0), hwc, hwc, (1, 1), config)
    return _pointwise(instruction, 0, np.float32(1), hwc[2], config)


def _windowed(plain: Instruction, config: EngineConfig) -> Instruction | None:
    """The same depthwise layer with three taps a cycle; None where that cannot be, or is slower."""
    possible = (
        config.has_window
        and (plain.kernel_h, plain.kernel_w, plain.dilation_w) == (3, 3, 1)
        and plain.pad_left <= 1
        # A row's last result needs no idle cycles.
        and config.pixel_cycles <= 3 * (3 - plain.pad_left)
    )
    if not possible:
        return None
    window = replace(plain, window=1, idle=max(0, config.pixel_cycles - 3 * plain.stride_w))
    slow, quick = (predicted_cycles(config, i) for i in (plain, window))
    return window if quick < slow else None


def _pointwise(
    instruction: Instruction, bias: int, m: np.float32, channels: int, config: EngineConfig
) -> Layer:
    folded = np.full(channels, bias, np.int64)
    return _finish(instruction, pack_shared_one(config), folded, np.full(channels, m), config)


def _is_depthwise(weight: Array, groups: int) -> bool:
    return groups > 1 and not _needs_dense(weight, groups)


def _needs_dense(weight: Array, groups: int) -> bool:
    """Groups other than depthwise run as a dense convolution whose other weights are 0."""
    return groups > 1 and not (weight.shape[0] == groups and weight.shape[1] == 1)


def _dense(weight: Array, channels: int, groups: int) -> Array:
    outputs, depth = weight.shape[:2]
    if channels != depth * groups or outputs % groups:
        raise Unfit(
            f"{groups} groups do not divide {channels} inputs and {outputs} outputs "
            "as its weights say; export the model again"
        )
    full = np.zeros((outputs, channels, *weight.shape[2:]), np.int8)
    share = outputs // groups
    for g in range(groups):
        rows, columns = slice(g * share, (g + 1) * share), slice(g * depth, (g + 1) * depth)
        full[rows, columns] = weight[rows]
    return full


def _geometry(
    start: Instruction,
    x: Quant,
    source: Hwc,
    out: Hwc,
    kernel: tuple[int, int],
    config: EngineConfig,
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> Instruction:
    """Fill in shapes and steps. A stride over one output, or a dilation of one tap, becomes 1."""
    filled = replace(
        start,
        x_unsigned=int(x.dtype == "uint8"), zp_x=x.zero_point,
        blocks=-(-out[2] // config.lanes), out_h=out[0], out_w=out[1],
        kernel_h=kernel[0], kernel_w=kernel[1], in_h=source[0], in_w=source[1],
        pixel_words=-(-source[2] // config.word_bytes),
        out_pixel_words=-(-out[2] // config.word_bytes),
        stride_h=stride[0] if out[0] > 1 else 1, stride_w=stride[1] if out[1] > 1 else 1,
        dilation_h=dilation[0] if kernel[0] > 1 else 1,
        dilation_w=dilation[1] if kernel[1] > 1 else 1,
        pad_top=pads[0], pad_left=pads[1],
    )  # fmt: skip
    return replace(filled, idle=max(0, config.pixel_cycles - filled.slices))


def _finish(
    instruction: Instruction, weights: bytes, bias: Array, m: Array, config: EngineConfig
) -> Layer:
    """Check what a unit alone can violate: m, field widths, the size of its weights."""
    try:
        multipliers = encode_m(m)
        instruction.encode()
    except ValueError as e:
        text = str(e).removeprefix("instruction: ")
        raise Unfit(f"{text}; keep it on a CPU or GPU") from e
    for memory, data, word, limit in (
        ("weight", weights, config.weight_word_bytes, config.weight_words),
        ("parameter", params := pack_params(bias, multipliers, config), 8 * config.requantisers,
         config.param_words),
    ):  # fmt: skip
        if len(data) > word * limit:
            raise Unfit(
                f"needs {len(data) // word} words of {memory} memory, the engine has {limit}; "
                f"choose an engine with more or keep the layer on a CPU or GPU"
            )
    return Layer(instruction, weights, params)


def _largest(x: Quant) -> int:
    return 255 if x.dtype == "uint8" else 128


def _check_sums(products: Array, bias: Array) -> None:
    if np.abs(bias).max(initial=0) >= _INT32:
        raise Unfit(
            f"its bias with the zero point folded in is {np.abs(bias).max()}, "
            "the engine's sums have 32 bits; quantise it with a smaller bias"
        )
    worst: Any = (products + np.abs(bias)).max(initial=0)
    if worst >= _INT32:
        raise Unfit(
            f"its sums may reach {worst}, the engine's have 32 bits (below {_INT32}); "
            "split its inputs or keep it on a CPU or GPU"
        )
