"""Earliest and latest place of every unit, from a plan that is known (as in line balancing).

If every machine's load stays below a bound, all work of a unit's ancestors must fit on the machines
of the places up to its own, and that of its descendants on those from its own on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .options import Choice
from .orders import edges
from .problem import Problem

__all__ = ["Places", "Windows", "least_work", "load_floor", "windows", "work_around"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
INFINITE = float("inf")


@dataclass(frozen=True)
class Places:
    """Places of a plan in order: ``singles`` runs; with a pool, one of its places around each."""

    singles: int
    pool: bool

    @property
    def count(self) -> int:
        return 2 * self.singles + 1 if self.pool else self.singles

    def is_single(self, place: int) -> bool:
        return not self.pool or place % 2 == 1

    @property
    def single(self) -> list[int]:
        return [p for p in range(self.count) if self.is_single(p)]


@dataclass(frozen=True)
class Windows:
    """``first[u] <= place of u <= last[u]`` in every plan whose loads are below the bound."""

    first: Ints
    last: Ints

    @property
    def empty(self) -> bool:
        """No plan is below the bound."""
        return bool((self.first > self.last).any())


def work_around(problem: Problem, order: tuple[int, ...], work: Floats) -> tuple[Floats, Floats]:
    """(work of each unit and all its ancestors, of each unit and all its descendants).

    Sets of ancestors are rows of a packed bit matrix: n * n / 8 bytes.
    """
    after, before = edges(problem)
    return _sums(order, before, work), _sums(order[::-1], after, work)


def _sums(order: tuple[int, ...], before: list[list[int]], work: Floats) -> Floats:
    n = len(order)
    bits = np.zeros((n, (n + 7) // 8), np.uint8)
    found = np.zeros(n)
    for u in order:
        row = bits[u]
        for b in before[u]:
            np.bitwise_or(row, bits[b], out=row)
        row[u >> 3] |= np.uint8(128 >> (u & 7))
        found[u] = np.dot(np.unpackbits(row, count=n), work)
    return found


def least_work(problem: Problem, options: tuple[Choice, ...]) -> Floats:
    """Machine seconds that each unit takes at least, wherever it goes; inf where nowhere."""
    rows: list[Any] = [
        [INFINITE if s is None else s * c.shards for s in c.seconds] for c in options
    ]
    for m in problem.machines:
        if m.pooled:
            rows.append(
                [
                    INFINITE if s is None or problem.pins.get(u, m.name) != m.name else s
                    for u, s in enumerate(m.seconds)
                ]
            )
    return np.asarray(np.min(np.array(rows, dtype=np.float64), axis=0))


def windows(
    problem: Problem,
    options: tuple[Choice, ...],
    places: Places,
    order: tuple[int, ...],
    bound: float,
) -> Windows:
    """Windows under ``bound`` on every load."""
    n = len(problem.units)
    last = np.full(n, places.count - 1)
    if bound == INFINITE:
        return Windows(np.zeros(n, np.int64), last)
    work = least_work(problem, options)
    down, up = work_around(problem, order, np.where(np.isfinite(work), work, 0.0))
    capacity = _capacity(problem, options, places, work, bound)
    slack = 1e-9 * capacity[-1]
    first = np.searchsorted(capacity, down - slack)
    return Windows(first, last - np.searchsorted(capacity, up - slack))


def rates(problem: Problem, options: tuple[Choice, ...], work: Floats) -> list[tuple[float, float]]:
    """Of each machine that is not pooled: least work done in a second at best, and free seconds.

    The free ones are those by which a stream may take less than the sum of its units' times.
    """
    found: list[tuple[float, float]] = []
    for index in sorted({c.index for c in options}):
        mine = [c for c in options if c.index == index]
        machine = mine[0].machine
        rate = max(_rate(work, c) for c in mine)
        free = machine.saving if machine.overlap else 0.0
        found += [(rate, free)] * mine[0].group.count
    return found


def pool_rate(problem: Problem, work: Floats) -> float:
    """Least work that all pooled machines do in a second at best."""
    rows = [
        np.array([INFINITE if s is None else s for s in m.seconds])
        for m in problem.machines
        if m.pooled
    ]
    return sum(_best(work, row) for row in rows)


def load_floor(problem: Problem, options: tuple[Choice, ...]) -> float:
    """A bound on the largest load: all machines busy all the time with what they do best."""
    work = least_work(problem, options)
    singles = rates(problem, options, work)
    speed = sum(r for r, _ in singles) + pool_rate(problem, work)
    if not speed > 0 or not np.isfinite(work).all():
        return 0.0
    return max(0.0, (float(work.sum()) - sum(r * free for r, free in singles)) / speed)


def _capacity(
    problem: Problem, options: tuple[Choice, ...], places: Places, work: Floats, bound: float
) -> Floats:
    """Least work that the machines of the first (or last) k places can take, for each k."""
    most = max((c.machines for c in options), default=1)
    amounts = [r * (bound + free) for r, free in rates(problem, options, work)]
    amounts.sort(reverse=True)
    pool = bound * pool_rate(problem, work)
    found = []
    for place in range(places.count):
        singles = (place + 1) // 2 if places.pool else place + 1
        found.append(pool + sum(amounts[: singles * most]))
    return np.array(found)


def _rate(work: Floats, choice: Choice) -> float:
    row = np.array([INFINITE if s is None else s * choice.shards for s in choice.seconds])
    return _best(work, row)


def _best(work: Floats, row: Floats) -> float:
    """Largest quotient of least work and time, where a machine can take the unit."""
    able = np.isfinite(row) & (work > 0)
    if not able.any():
        return 0.0
    return float(np.max(work[able] / row[able]))
