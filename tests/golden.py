"""The arithmetic contract in plain numpy: the only judge of a quantised layer's bytes.

Everything here works on arrays and plain numbers and imports nothing of ours, so it cannot share
a mistake with what it judges. Images are NCHW, matrices ``[..., M, K] x [N, K]`` (a weight row per
output), activations int8 or uint8, weights int8. Sums are int64 and checked to fit int32, the
rescaling is float32 as ONNX's QLinear operators do it:

    y = clamp(rint(f32(sum) * m) + zp, lo, hi),    f32() and rint() round half to even
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def requant(sums: Array, m: Array | float, zp: int, lo: int, hi: int) -> Array:
    """Rescale integer sums to quantised values, int64.

    ``m`` (float32) is one number or an array that broadcasts against ``sums``. The clamp comes
    after the zero point. A product beyond the integers is clamped like any other large one.
    """
    sums = np.asarray(sums, np.int64)
    if sums.size and (sums.max() > 2**31 - 1 or sums.min() < -(2**31)):
        raise OverflowError(f"a sum of {sums.min()}..{sums.max()} does not fit int32")
    scaled = np.rint(sums.astype(np.float32) * np.asarray(m, np.float32))
    assert scaled.dtype == np.float32
    bounded = np.clip(scaled, -(2.0**24), 2.0**24).astype(np.int64)
    return np.clip(bounded + zp, lo, hi)


def windows(
    x: Array,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    pads: tuple[int, int, int, int],
    fill: int,
) -> Array:
    """All windows ``[N, C, OH, OW, KH, KW]`` of an image; pads are top, left, bottom, right."""
    top, left, bottom, right = pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    span_h = (kernel[0] - 1) * dilation[0] + 1
    span_w = (kernel[1] - 1) * dilation[1] + 1
    view = np.lib.stride_tricks.sliding_window_view(padded, (span_h, span_w), (2, 3))
    return view[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def conv_sums(
    x: Array,
    weight: Array,
    bias: Array,
    zx: int,
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    groups: int = 1,
) -> Array:
    """``bias + sum (x - zx) * w``, int64 ``[N, O, OH, OW]``; weight ``[O, I / groups, KH, KW]``."""
    n, channels = x.shape[:2]
    outputs, depth, kh, kw = weight.shape
    centred = x.astype(np.int64) - zx
    # What lies outside the image is zx, which is 0 once centred.
    view = windows(centred, (kh, kw), stride, dilation, pads, 0)
    oh, ow = view.shape[2:4]
    view = view.reshape(n, groups, channels // groups, oh, ow, kh, kw)
    rows = view.transpose(1, 0, 3, 4, 2, 5, 6).reshape(groups, n * oh * ow, depth * kh * kw)
    taps = weight.astype(np.int64).reshape(groups, outputs // groups, depth * kh * kw)
    sums = rows @ taps.transpose(0, 2, 1)  # [groups, pixels, O / groups]
    sums = sums.reshape(groups, n, oh, ow, outputs // groups).transpose(1, 0, 4, 2, 3)
    return sums.reshape(n, outputs, oh, ow) + bias.astype(np.int64)[None, :, None, None]


def conv(
    x: Array,
    weight: Array,
    bias: Array,
    m: Array,
    zx: int,
    zy: int,
    lo: int,
    hi: int,
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
    pads: tuple[int, int, int, int] = (0, 0, 0, 0),
    groups: int = 1,
    dtype: Any = None,
) -> Array:
    """Convolution; ``m`` float32 ``[O]``; the result has ``dtype``, or that of ``x`` if None."""
    sums = conv_sums(x, weight, bias, zx, stride, dilation, pads, groups)
    return requant(sums, np.asarray(m)[None, :, None, None], zy, lo, hi).astype(dtype or x.dtype)


def matmul(
    x: Array,
    weight: Array,
    bias: Array,
    m: Array,
    zx: int,
    zy: int,
    lo: int,
    hi: int,
    dtype: Any = None,
) -> Array:
    """Matrix product of ``x [..., K]`` with ``weight [N, K]``; ``m`` float32 ``[N]``."""
    sums = (x.astype(np.int64) - zx) @ weight.astype(np.int64).T + bias.astype(np.int64)
    return requant(sums, m, zy, lo, hi).astype(dtype or x.dtype)


def add(
    a: Array,
    b: Array,
    scale_a: float,
    scale_b: float,
    scale_y: float,
    za: int,
    zb: int,
    zy: int,
    lo: int,
    hi: int,
    subtract: bool = False,
    dtype: Any = None,
) -> Array:
    """Float32 dequantise, add (or subtract), quantise: every step rounds to float32."""
    real_a = (a.astype(np.int64) - za).astype(np.float32) * np.float32(scale_a)
    real_b = (b.astype(np.int64) - zb).astype(np.float32) * np.float32(scale_b)
    total = real_a - real_b if subtract else real_a + real_b
    steps = np.rint(total / np.float32(scale_y))
    assert steps.dtype == np.float32
    bounded = np.clip(steps, -(2.0**24), 2.0**24).astype(np.int64)
    return np.clip(bounded + zy, lo, hi).astype(dtype or a.dtype)


def mul(
    a: Array,
    b: Array,
    scale_a: float,
    scale_b: float,
    scale_y: float,
    za: int,
    zb: int,
    zy: int,
    lo: int,
    hi: int,
    dtype: Any = None,
) -> Array:
    """Float32 dequantise, multiply, quantise: every step rounds to float32."""
    real_a = (a.astype(np.int64) - za).astype(np.float32) * np.float32(scale_a)
    real_b = (b.astype(np.int64) - zb).astype(np.float32) * np.float32(scale_b)
    steps = np.rint(real_a * real_b / np.float32(scale_y))
    assert steps.dtype == np.float32
    bounded = np.clip(steps, -(2.0**24), 2.0**24).astype(np.int64)
    return np.clip(bounded + zy, lo, hi).astype(dtype or a.dtype)


def maxpool(
    x: Array,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pads: tuple[int, int, int, int],
    lo: int,
    hi: int,
) -> Array:
    """Largest value of each window; padding never wins; then the clamp."""
    view = windows(x, kernel, stride, (1, 1), pads, np.iinfo(x.dtype).min)
    return np.clip(view.max((4, 5)).astype(np.int64), lo, hi).astype(x.dtype)


def avgpool(
    x: Array,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pads: tuple[int, int, int, int],
    m: float,
    zx: int,
    zy: int,
    lo: int,
    hi: int,
    dtype: Any = None,
) -> Array:
    """Average of each window, the count being in ``m = f32(s_x / f32(s_y * count))``."""
    view = windows(x.astype(np.int64) - zx, kernel, stride, (1, 1), pads, 0)
    return requant(view.sum((4, 5)), m, zy, lo, hi).astype(dtype or x.dtype)


def table(x: Array, entries: Array, dtype: Any = None) -> Array:
    """Look up 256 uint8 entries; index and value are the bit patterns of the bytes."""
    found = np.asarray(entries, np.uint8)[np.ascontiguousarray(x).view(np.uint8)]
    return found.view(np.dtype(dtype or x.dtype))


def rescale(
    x: Array, scale_x: float, zx: int, scale_y: float, zy: int, lo: int, hi: int, dtype: Any = None
) -> Array:
    """Float32 dequantise, quantise; then the clamp."""
    real = (x.astype(np.int64) - zx).astype(np.float32) * np.float32(scale_x)
    steps = np.rint(real / np.float32(scale_y))
    assert steps.dtype == np.float32
    bounded = np.clip(steps, -(2.0**24), 2.0**24).astype(np.int64)
    return np.clip(bounded + zy, lo, hi).astype(dtype or x.dtype)


def concat(parts: list[Array]) -> Array:
    """Along the channels: axis 1 of an image, else the last."""
    return np.concatenate(parts, axis=1 if parts[0].ndim == 4 else -1)


def nearest(x: Array, factors: tuple[int, int]) -> Array:
    """Every row and column of an image so many times."""
    return x.repeat(factors[0], 2).repeat(factors[1], 3)


def pad(x: Array, pads: tuple[int, int, int, int], level: int) -> Array:
    """Rows and columns of one quantised value; pads are top, left, bottom, right."""
    top, left, bottom, right = pads
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=level)
