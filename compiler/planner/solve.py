"""The ladder: a plan along topological orders, then the proof by CP-SAT, or a better plan.

No plan comes without a bound, and none that ``check`` has not judged.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from . import cpsat, highs, linear
from .formulate import Formulation
from .linear import Found, better, judged
from .options import choices
from .problem import Problem, Run, weights
from .windows import load_floor

__all__ = ["Solution", "solve"]

INFINITE = float("inf")
# Below this relative distance two objectives are one: coefficients are rounded in the proof.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Solution:
    """``runs`` is empty when no plan is feasible (``status`` "infeasible") or none was found."""

    runs: tuple[Run, ...]
    objective: float
    lower_bound: float
    status: Literal["optimal", "feasible", "infeasible"]

    @property
    def gap(self) -> float:
        return 0.0 if self.objective <= 0 else max(0.0, 1.0 - self.lower_bound / self.objective)


def solve(
    problem: Problem,
    *,
    seconds: float = 60.0,
    gap: float = TOLERANCE,
    start: Found | None = None,
) -> Solution:
    """The best plan within ``seconds``, its bound, and whether they meet (up to ``gap``).

    ``start`` is a plan that is known; without one the linear search makes it.
    """
    until = time.monotonic() + seconds
    best = linear.solve(problem) if start is None else start
    problem, best, settled = _place(problem, best, until)
    if best.verdict is None and not settled:
        return Solution((), INFINITE, 0.0, "feasible")
    macs = best.macs if problem.place == "fpga" else None
    best, bound = _prove(problem, best, macs, until, gap)
    if best.verdict is None:
        status: Literal["feasible", "infeasible"] = (
            "infeasible" if bound == INFINITE else "feasible"
        )
        return Solution((), INFINITE, bound, status)
    low = min(bound, best.objective)
    done = settled and best.objective - low <= gap * (1 + 1e-6) * abs(best.objective)
    return Solution(best.runs, best.objective, low, "optimal" if done else "feasible")


def _prove(
    problem: Problem, best: Found, macs: int | None, until: float, gap: float
) -> tuple[Found, float]:
    """Better plans until there is none (or no time): the last one, and a bound of all."""
    floor = _floor(problem)
    while True:
        if best.objective <= floor * (1 + gap):
            return best, min(floor, best.objective)
        cutoff, bound = INFINITE, INFINITE
        if best.verdict is not None:
            cutoff = best.objective * (1 - gap)
            bound = _load_bound(problem, cutoff)
        if problem.pace_max is not None:
            bound = min(bound, problem.pace_max)
        formulation = Formulation(problem, bound, macs=macs)
        left = until - time.monotonic()
        if problem.objective == "throughput":
            answer = cpsat.solve(
                formulation, cutoff=cutoff, hint=best.runs, seconds=left, gap=gap / 2
            )
        else:
            answer = highs.solve(formulation, hint=best.runs, seconds=left, gap=gap / 2)
        found = judged(problem, answer.runs)
        floor = max(floor, min(answer.bound, cutoff))
        if found.verdict is None or not better(problem, found, best):
            # Rounded in the solver's favour: no plan that is better by more than that exists.
            return best, floor
        best = found
        if answer.closed or time.monotonic() > until:
            return best, floor


def _load_bound(problem: Problem, cutoff: float) -> float:
    """A bound on every load in plans whose objective is at most ``cutoff``."""
    weight = weights(problem)
    if weight.bottleneck <= 0:
        return INFINITE
    if min(weight.busy.values(), default=0.0) < 0:
        return INFINITE
    return cutoff / weight.bottleneck


def _floor(problem: Problem) -> float:
    """A bound that needs no search: all machines busy all the time with what they do best."""
    if problem.objective != "throughput" or not problem.units:
        return 0.0
    return load_floor(problem, choices(problem))


def _place(problem: Problem, best: Found, until: float) -> tuple[Problem, Found, bool]:
    """For ``place = fpga``: a plan with the most MACs on FPGAs, and whether that is proven."""
    if problem.place != "fpga":
        return problem, best, True
    formulation = Formulation(problem, most_macs=True)
    left = until - time.monotonic()
    answer = cpsat.solve(formulation, hint=best.runs, seconds=left)
    found = judged(problem, answer.runs)
    if better(problem, found, best):
        best = found
    return problem, best, answer.closed
