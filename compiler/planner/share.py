"""The host's work over its CPUs: the largest units first, each to where it ends earliest."""

from __future__ import annotations

from collections.abc import Sequence

from .problem import Problem, weights

__all__ = ["share_pool"]


def share_pool(problem: Problem, units: Sequence[int]) -> dict[int, str] | None:
    """Unit -> pooled machine; None where memory or support leaves a unit no place."""
    pooled = [m for m in problem.machines if m.pooled]
    loads = {m.name: 0.0 for m in pooled}
    room = {m.name: m.memory_limit for m in pooled}
    found: dict[int, str] = {}
    serial = weights(problem).serial > 0
    # What has few places to go to comes first, then what is large.
    able = {
        u: [m for m in pooled if m.seconds[u] is not None and problem.pins.get(u, m.name) == m.name]
        for u in units
    }
    for u in sorted(units, key=lambda u: (len(able[u]), -min((m.seconds[u] or 0.0 for m in able[u]),
                                                             default=0.0), u)):  # fmt: skip
        fits = [m for m in able[u] if (left := room[m.name]) is None or left >= problem.memory[u]]
        if not fits:
            return None
        best = min(fits, key=lambda m: (m.seconds[u] or 0.0) + (0.0 if serial else loads[m.name]))
        loads[best.name] += best.seconds[u] or 0.0
        left = room[best.name]
        if left is not None:
            room[best.name] = left - problem.memory[u]
        found[u] = best.name
    return found
