"""Topological orders of the units, several ways: what the linear search cuts into runs."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from .problem import Problem

__all__ = ["edges", "orders"]

# Above this the greedy orders, which look at every ready unit at every step, are left out.
GREEDY_UNITS = 3000


def edges(problem: Problem) -> tuple[list[list[int]], list[list[int]]]:
    """(readers of every unit, units that every unit reads), each once."""
    n = len(problem.units)
    after: list[set[int]] = [set() for _ in range(n)]
    before: list[set[int]] = [set() for _ in range(n)]
    for value in problem.values:
        if value.producer is not None:
            after[value.producer].update(value.consumers)
            for c in value.consumers:
                before[c].add(value.producer)
    return [sorted(s) for s in after], [sorted(s) for s in before]


def orders(problem: Problem) -> list[tuple[int, ...]]:
    """Different topological orders, the cheapest to make first.

    Depth first (branches one after another), breadth first, two that keep units together which an
    FPGA can take, and where the problem is not large one that cuts as few bytes as it can.
    """
    after, before = edges(problem)
    boards = [m for m in problem.machines if m.kind == "fpga"]
    able = [any(m.seconds[u] is not None for m in boards) for u in range(len(problem.units))]
    found = [
        _walk(after, before, lambda u, step: u),
        _walk(after, before, lambda u, step: -step),
        _walk(after, before, lambda u, step: step),
    ]
    if boards:
        found += [_grouped(after, before, able, first) for first in (False, True)]
    if len(problem.units) <= GREEDY_UNITS:
        found.append(_narrow(problem, after, before))
    return list(dict.fromkeys(found))


def _walk(
    after: list[list[int]], before: list[list[int]], rank: Callable[[int, int], int]
) -> tuple[int, ...]:
    """Of the ready units always the one of the lowest rank (unit, step at which it got ready)."""
    left = [len(b) for b in before]
    heap = [(rank(u, 0), u) for u in range(len(left)) if not left[u]]
    heapq.heapify(heap)
    found = []
    while heap:
        u = heapq.heappop(heap)[1]
        found.append(u)
        for c in after[u]:
            left[c] -= 1
            if not left[c]:
                heapq.heappush(heap, (rank(c, len(found)), c))
    return tuple(found)


def _grouped(
    after: list[list[int]], before: list[list[int]], able: list[bool], first: bool
) -> tuple[int, ...]:
    """Units that an FPGA can take, and those that it cannot, in stretches as long as can be."""
    left = [len(b) for b in before]
    ready: dict[bool, list[int]] = {True: [], False: []}
    for u in range(len(left)):
        if not left[u]:
            heapq.heappush(ready[able[u]], u)
    mode = first
    found = []
    while ready[True] or ready[False]:
        if not ready[mode]:
            mode = not mode
        u = heapq.heappop(ready[mode])
        found.append(u)
        for c in after[u]:
            left[c] -= 1
            if not left[c]:
                heapq.heappush(ready[able[c]], c)
    return tuple(found)


def _narrow(problem: Problem, after: list[list[int]], before: list[list[int]]) -> tuple[int, ...]:
    """Greedy: the ready unit after which the fewest bytes are alive."""
    made: list[list[int]] = [[] for _ in after]
    read: list[list[int]] = [[] for _ in after]
    pending = []
    for k, value in enumerate(problem.values):
        pending.append(len(set(value.consumers)))
        if value.producer is not None:
            made[value.producer].append(k)
        for c in set(value.consumers):
            read[c].append(k)
    size = [v.nbytes for v in problem.values]
    left = [len(b) for b in before]
    ready = [u for u in range(len(left)) if not left[u]]
    found = []

    def grows(u: int) -> float:
        return sum(size[k] for k in made[u]) - sum(size[k] for k in read[u] if pending[k] == 1)

    while ready:
        u = min(ready, key=lambda u: (grows(u), u))
        ready.remove(u)
        found.append(u)
        for k in read[u]:
            pending[k] -= 1
        for c in after[u]:
            left[c] -= 1
            if not left[c]:
                ready.append(c)
    return tuple(found)
