"""CP-SAT (OR-tools) on the formulation: a better plan, or the proof that there is none.

Seconds become integers, coefficients rounded down and limits up: the integer model allows every
plan that the problem allows, so its bound holds for the problem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .formulate import Formulation
from .model import Model, Row
from .problem import Run

__all__ = ["Answer", "solve"]

# Integers that a load can take: a sum of a thousand terms is right to a part in 10^5 or better.
STEPS = 1 << 27
FRACTION = 1 << 16  # of objective coefficients that are no whole numbers
INFINITE = float("inf")


@dataclass(frozen=True)
class Answer:
    """``runs`` is None when no plan was found; no plan (below the cutoff) is below ``bound``.

    ``closed``: nothing is left to search; without ``runs``, there is no plan below the cutoff.
    """

    runs: tuple[Run, ...] | None
    bound: float
    closed: bool


def solve(
    formulation: Formulation,
    *,
    cutoff: float = INFINITE,
    hint: Sequence[Run] = (),
    seconds: float = 60.0,
    gap: float = 0.0,
) -> Answer:
    """Search for a plan with an objective below ``cutoff``; stop at a relative ``gap``.

    One worker: equal calls that end by themselves give equal answers, and on these models it was
    as fast as two (measured); two that take turns in a fixed order need ten times as long.
    """
    from ortools.sat.python import cp_model

    if formulation.impossible:
        return Answer(None, cutoff, True)
    translated = _Translated(formulation.model, formulation.bound, cutoff)
    known = formulation.hints(hint) if hint else {}
    for number, value in known.items():
        translated.model.add_hint(translated.boolean[number], value)
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.max_time_in_seconds = max(seconds, 0.01)
    parameters.num_workers = 1
    parameters.random_seed = 1
    parameters.relative_gap_limit = gap
    status = solver.solve(translated.model)
    if status == cp_model.INFEASIBLE:
        return Answer(None, cutoff, True)
    if status == cp_model.MODEL_INVALID:
        raise AssertionError(f"planner: CP-SAT refuses the model: {translated.model.validate()}")
    bound = translated.seconds(solver.best_objective_bound)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Answer(None, min(bound, cutoff), False)
    values = {number: bool(solver.value(b)) for number, b in translated.boolean.items()}
    return Answer(formulation.runs(values), bound, status == cp_model.OPTIMAL)


class _Translated:
    """The model in OR-tools' terms."""

    def __init__(self, source: Model, bound: float, cutoff: float) -> None:
        from ortools.sat.python import cp_model

        self._source = source
        self._cp = cp_model
        self.model = cp_model.CpModel()
        self._scale = self._steps(bound, cutoff)
        self._weight = self._fraction()
        new = self.model.new_bool_var
        self.boolean = {k: new("") for k in range(2, source.booleans + 1)}
        self._literal: dict[int, Any] = dict(self.boolean)
        self._literal.update({-k: b.negated() for k, b in self.boolean.items()})
        self._real = [
            self.model.new_int_var(0, math.ceil(u * self._scale), "") for u in source.upper
        ]
        for clause in source.clauses:
            self.model.add_bool_or([self._literal[x] for x in clause])
        for choice in source.choices:
            self.model.add_exactly_one([self._literal[x] for x in choice])
        for b, high, low in source.differences:
            x, y, z = (self._literal[k] for k in (b, high, low))
            self.model.add(x == y - z)
        for row in source.rows:
            self._add(row)
        self._minimise(cutoff)

    def _steps(self, bound: float, cutoff: float) -> float:
        """Integers per second (per unit of the objective, where no load is bounded)."""
        size = bound if bound < INFINITE else 0.0
        if not size:
            size = sum(
                max((abs(c) for c, _ in row.terms), default=0.0)
                for row in self._source.rows if row.reals
            ) or 1.0  # fmt: skip
        return STEPS / size if size > 0 else 1.0

    def _fraction(self) -> float:
        whole = all(float(c).is_integer() for c, _ in self._source.objective)
        return 1.0 if whole else float(FRACTION)

    def _sum(self, terms: Sequence[tuple[int, Any]]) -> Any:
        coefficients = [c for c, _ in terms]
        return self._cp.LinearExpr.weighted_sum([x for _, x in terms], coefficients)

    def _add(self, row: Row) -> None:
        scale = self._scale
        if not row.reals:
            numbers = [c for c, _ in row.terms] + [row.limit]
            if all(float(c).is_integer() for c in numbers):
                scale = 1.0
            else:
                scale = STEPS / max(abs(c) for c in numbers)
        terms = [(math.floor(c * scale), self._literal[x]) for c, x in row.terms]
        terms += [(math.floor(c), self._real[x]) for c, x in row.reals]
        found = self.model.add(self._sum(terms) <= math.ceil(row.limit * scale))
        if row.when:
            found.only_enforce_if([self._literal[w] for w in row.when])

    def _minimise(self, cutoff: float) -> None:
        source = self._source
        if source.objective or not source.objective_terms:
            scale = self._scale * self._weight
        else:
            scale = 1.0
            self._weight = 1.0
        self._unit = scale
        terms = [(math.floor(c * self._weight), self._real[x]) for c, x in source.objective]
        terms += [(math.floor(c * scale), self._literal[x]) for c, x in source.objective_terms]
        goal = self._sum(terms)
        if cutoff < INFINITE and len(terms) > 1:
            self.model.add(goal <= math.floor(cutoff * scale))
        self.model.minimize(goal)

    def seconds(self, objective: float) -> float:
        """A bound of the integer model as one of the problem; a step less, for rounded replicas."""
        return max(0.0, (objective - 1.0 * self._weight) / self._unit)
