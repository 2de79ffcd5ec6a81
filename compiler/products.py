"""Mul of two int8 tensors: the exact integer product through the requantiser.

The engine computes ``clamp(rint(f32(p * m)) + zy, lo, hi)`` of ``p = (a - za) * (b - zb)``; ONNX
says float32 dequantise - multiply - quantise, which rounds four times where the engine rounds once.
They differ where those roundings decide a tie (``p * sa * sb / sy`` near k + 1/2); a neighbour of
the nominal ``m = f32(f32(sa * sb) / sy)`` is then sometimes right. All 65,536 pairs are compared.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .addends import Ints, Numbers, byte_values, quant_from
from .pack import encode_m
from .units import MulSpec

__all__ = ["InexactMul", "factor", "mul_semantic"]

_NEIGHBOURS = 16  # float32 steps to either side of the nominal multiplier


class InexactMul(ValueError):
    """No multiplier is exact; the text says how many pairs differ for the best one."""


def mul_semantic(spec: MulSpec) -> Ints:
    """Results of all pairs by the float32 formula, ``[256, 256]``, before the spec's own table."""
    with np.errstate(over="ignore"):
        a = (byte_values(spec.a) - spec.a.zero_point).astype(np.float32) * np.float32(spec.a.scale)
        b = (byte_values(spec.b) - spec.b.zero_point).astype(np.float32) * np.float32(spec.b.scale)
        steps = np.rint(a[:, None] * b[None, :] / np.float32(spec.y.scale))
    return _clamped(steps, spec)


def factor(spec: MulSpec) -> np.float32:
    """An exact multiplier m, as the engine decodes it; InexactMul when there is none near."""
    quants = [(float(q.scale), q.zero_point, q.dtype) for q in (spec.a, spec.b, spec.y)]
    for scale, _, _ in quants:
        if not (np.isfinite(scale) and scale > 0):
            raise InexactMul(
                f"a scale is {scale}, must be positive and finite; quantise the Mul again"
            )
    return _factor(*quants, spec.lo, spec.hi)


@lru_cache(maxsize=256)
def _factor(a: Numbers, b: Numbers, y: Numbers, lo: int, hi: int) -> np.float32:
    spec = MulSpec(quant_from(a), quant_from(b), quant_from(y), lo, hi)
    want = mul_semantic(spec)
    products = (byte_values(spec.a) - spec.a.zero_point)[:, None] * (
        byte_values(spec.b) - spec.b.zero_point
    )
    sums = products.astype(np.float32)
    least = want.size + 1
    for m in _near(spec):
        with np.errstate(over="ignore"):
            found = _clamped(np.rint(sums * m), spec)
        differ = int((found != want).sum())
        if not differ:
            return m
        least = min(least, differ)
    raise InexactMul(
        f"no multiplier reproduces its float32 arithmetic: the best differs in {least:,} of 65,536 "
        "pairs; place it on a CPU or GPU, or change its scales"
    )


def _near(spec: MulSpec) -> list[np.float32]:
    """The nominal multiplier, then its neighbours, nearest first."""
    with np.errstate(over="ignore", under="ignore"):
        nominal = np.float32(spec.a.scale) * np.float32(spec.b.scale) / np.float32(spec.y.scale)
    if not (np.isfinite(nominal) and nominal > 0):
        raise InexactMul(
            f"its output multiplier is {nominal}, must be positive and finite; "
            "quantise the Mul again"
        )
    start = int(np.float32(nominal).view(np.int32))
    steps = sorted(range(-_NEIGHBOURS, _NEIGHBOURS + 1), key=abs)
    bits = np.array([start + step for step in steps], np.int32)
    values = bits.view(np.float32)
    return list(encode_m(values[np.isfinite(values) & (values > 0)]))


def _clamped(steps: np.ndarray, spec: MulSpec) -> Ints:
    whole = np.clip(steps, -(2.0**24), 2.0**24).astype(np.int64)
    result: Ints = np.clip(whole + spec.y.zero_point, spec.lo, spec.hi)
    return result
