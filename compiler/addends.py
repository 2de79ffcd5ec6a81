"""Tables that make a residual Add exact: ``clamp(((Ta[a] + Tb[b]) >> 16) + zp, lo, hi)``.

Wanted are 2 x 256 integers with which all 65,536 pairs of bytes equal the float32 semantic of
:class:`~trivet.compiler.units.AddSpec`. Each pair bounds one sum ``Ta[a] + Tb[b]`` from below and
above. With ``u = -Tb`` these are difference constraints ``Ta - u <= high`` and ``u - Ta <= -low``,
which Bellman-Ford relaxation solves or proves to have no solution. It starts from the nominal
fixed-point tables, which are nearly right, so that it ends after very few rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from .units import AddSpec, Quant

__all__ = ["SHIFT", "AddTables", "InexactAdd", "add_semantic", "evaluate", "solve"]

SHIFT = 16
_LIMIT = (1 << 27) - 1  # values are 28 bits signed
_FREE = 1 << 40  # beyond any sum of two entries: no bound
# A shortest path over 512 unknowns has at most 511 edges and a round takes two: a table that still
# changes after so many rounds proves that there is no solution.
_ROUNDS = 257

Ints = npt.NDArray[np.int64]


class InexactAdd(ValueError):
    """No pair of tables is exact; the text says how many pairs differ for the nominal ones."""


@dataclass(frozen=True)
class AddTables:
    """``a`` and ``b``: int32 [256], index = the byte's bit pattern."""

    a: npt.NDArray[np.int32]
    b: npt.NDArray[np.int32]


def byte_values(quant: Quant) -> Ints:
    """Value of each bit pattern 0..255."""
    patterns = np.arange(256, dtype=np.uint8)
    values: Ints = patterns.view(np.int8 if quant.dtype == "int8" else np.uint8).astype(np.int64)
    return values


def add_semantic(spec: AddSpec) -> Ints:
    """Results of all pairs by the float32 formula, ``[256, 256]``, before the spec's own table."""
    with np.errstate(over="ignore"):
        a = (byte_values(spec.a) - spec.a.zero_point).astype(np.float32) * np.float32(spec.a.scale)
        b = (byte_values(spec.b) - spec.b.zero_point).astype(np.float32) * np.float32(spec.b.scale)
        total = a[:, None] - b[None, :] if spec.subtract else a[:, None] + b[None, :]
        steps = np.rint(total / np.float32(spec.y.scale))
    whole = np.clip(steps, -(2.0**24), 2.0**24).astype(np.int64)
    result: Ints = np.clip(whole + spec.y.zero_point, spec.lo, spec.hi)
    return result


def evaluate(a: Ints, b: Ints, zero_point: int, lo: int, hi: int) -> Ints:
    """What the engine computes for all pairs, ``[256, 256]``."""
    result: Ints = np.clip(((a[:, None] + b[None, :]) >> SHIFT) + zero_point, lo, hi)
    return result


def solve(spec: AddSpec) -> AddTables:
    """Exact tables; InexactAdd when there are none. Kept for specs with the same numbers."""
    quants = [(float(q.scale), q.zero_point, q.dtype) for q in (spec.a, spec.b, spec.y)]
    for scale, _, _ in quants:
        if not (np.isfinite(scale) and scale > 0):
            raise InexactAdd(
                f"a scale is {scale}, must be positive and finite; quantise the Add again"
            )
    return _solve(*quants, spec.lo, spec.hi, spec.subtract)


Numbers = tuple[float, int, Literal["int8", "uint8"]]


def quant_from(numbers: Numbers) -> Quant:
    return Quant(np.float32(numbers[0]), numbers[1], numbers[2])


@lru_cache(maxsize=256)
def _solve(a: Numbers, b: Numbers, y: Numbers, lo: int, hi: int, subtract: bool) -> AddTables:
    spec = AddSpec(quant_from(a), quant_from(b), quant_from(y), lo, hi, subtract)
    want = add_semantic(spec)
    zero_point = spec.y.zero_point
    low = np.where(want > lo, (want - zero_point) << SHIFT, -_FREE)
    high = np.where(want < hi, ((want - zero_point + 1) << SHIFT) - 1, _FREE)
    ta, tb = _nominal(spec)
    found = _relax(ta, -tb, low, high)
    if found is _TOO_LOW:  # the largest solution of all decides whether 28 bits are enough
        top = np.full(256, _LIMIT, np.int64)
        found = _relax(top, top, low, high)
    if found is None or found is _TOO_LOW:
        wrong = int((evaluate(ta, tb, zero_point, lo, hi) != want).sum())
        why = "none of 28 bits exist" if found else "their ties to even contradict each other"
        raise InexactAdd(
            f"no tables reproduce its float32 arithmetic ({why}): the nominal ones differ in "
            f"{wrong:,} of 65,536 pairs; place it on a CPU or GPU, or change its scales"
        )
    ta, tb = found[0], -found[1]
    assert (evaluate(ta, tb, zero_point, lo, hi) == want).all()
    return AddTables(ta.astype(np.int32), tb.astype(np.int32))


def _nominal(spec: AddSpec) -> tuple[Ints, Ints]:
    """Fixed-point images of both operands, half a step of the result added for rounding."""
    one = float(1 << SHIFT) / float(spec.y.scale)
    sign = -1 if spec.subtract else 1
    a = (byte_values(spec.a) - spec.a.zero_point) * (float(spec.a.scale) * one)
    b = (byte_values(spec.b) - spec.b.zero_point) * (sign * float(spec.b.scale) * one)
    half = 1 << SHIFT - 1
    ta, tb = np.clip(np.rint(a), -_LIMIT, _LIMIT), np.clip(np.rint(b) + half, -_LIMIT, _LIMIT)
    return ta.astype(np.int64), tb.astype(np.int64)


_TOO_LOW: tuple[Ints, Ints] = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def _relax(ta: Ints, u: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints] | None:
    """Largest solution not above the start; ``_TOO_LOW`` if beyond 28 bits, None without one."""
    for _ in range(_ROUNDS):
        below = np.minimum(ta, (high + u[None, :]).min(1))
        under = np.minimum(u, (below[:, None] - low).min(0))
        if (below == ta).all() and (under == u).all():
            return ta, u
        if min(below.min(), under.min()) < -_LIMIT:
            return _TOO_LOW
        ta, u = below, under
    return None
