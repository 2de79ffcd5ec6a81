"""HiGHS on the formulation: the same model by another solver and other arithmetic.

It proves the objectives that are sums of seconds or joules, where CP-SAT's integers need a hundred
times as long (measured), and cross-checks the others. Coefficients stay floating-point; what holds
only under conditions is relaxed by the largest value that its left side can take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .cpsat import Answer
from .formulate import Formulation
from .model import Model, Row
from .problem import Run

__all__ = ["solve"]

INFINITE = float("inf")


def solve(
    formulation: Formulation,
    *,
    hint: Sequence[Run] = (),
    seconds: float = 60.0,
    gap: float = 1e-6,
) -> Answer:
    """A best plan of the formulation, or the proof that there is none; as ``cpsat.solve``."""
    import highspy

    if formulation.impossible:
        return Answer(None, INFINITE, True)
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in (
        ("output_flag", False),
        ("log_to_console", False),
        ("time_limit", max(float(seconds), 0.01)),
        ("mip_rel_gap", gap),
        ("threads", 1),
        ("random_seed", 1),
    ):
        solver.setOptionValue(name, value)
    scale = _scale(formulation.model)
    boolean = _translate(solver, formulation.model, scale)
    known = formulation.hints(hint) if hint else {}
    if known:
        solver.setSolution(
            len(known), [boolean[k] for k in known], [float(v) for v in known.values()]
        )
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return Answer(None, INFINITE, True)
    info = solver.getInfo()
    closed = status == highspy.HighsModelStatus.kOptimal
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Answer(None, max(0.0, info.mip_dual_bound / scale), False)
    found = solver.getSolution().col_value
    values = {number: found[column] > 0.5 for number, column in boolean.items()}
    return Answer(formulation.runs(values), info.mip_dual_bound / scale, closed)


def _scale(model: Model) -> float:
    """What makes the largest load a thousand: the solver's tolerances are a part in 10^6 of one."""
    largest = max(model.upper, default=0.0)
    return 1000.0 / largest if 0.0 < largest < INFINITE else 1.0


def _translate(solver: Any, model: Model, scale: float) -> dict[int, int]:
    """Fill the solver, reals times ``scale``; the column of every boolean."""
    import highspy

    infinite = highspy.kHighsInf
    boolean: dict[int, int] = {}
    for number in range(2, model.booleans + 1):
        boolean[number] = solver.getNumCol()
        solver.addVar(0.0, 1.0)
        solver.changeColIntegrality(boolean[number], highspy.HighsVarType.kInteger)
    reals = []
    for upper in model.upper:
        reals.append(solver.getNumCol())
        solver.addVar(0.0, min(upper * scale, infinite))

    def row(terms: Sequence[tuple[float, int]], low: float, high: float,
            more: Sequence[tuple[float, int]] = ()) -> None:  # fmt: skip
        """``low <= sum(c * literal) + sum(c * real) <= high``."""
        columns: dict[int, float] = {reals[k]: c for c, k in more}
        for c, x in terms:
            column = boolean[abs(x)]
            columns[column] = columns.get(column, 0.0) + (c if x > 0 else -c)
            if x < 0:
                low, high = low - c, high - c
        solver.addRow(low, high, len(columns), list(columns), list(columns.values()))

    for clause in model.clauses:
        row([(1.0, x) for x in clause], 1.0, infinite)
    for choice in model.choices:
        row([(1.0, x) for x in choice], 1.0, 1.0)
    for b, high, low in model.differences:
        row([(1.0, b), (-1.0, high), (1.0, low)], 0.0, 0.0)
    for plain in model.rows:
        entry = _scaled(plain, scale)
        row(_relaxed(entry), -infinite, _limit(entry), entry.reals)
    for c, k in model.objective:
        solver.changeColCost(reals[k], c)
    costs: dict[int, float] = {}
    offset = 0.0
    for c, x in model.objective_terms:
        costs[abs(x)] = costs.get(abs(x), 0.0) + scale * (c if x > 0 else -c)
        offset += 0.0 if x > 0 else scale * c
    for number, c in costs.items():
        solver.changeColCost(boolean[number], c)
    solver.changeObjectiveOffset(offset)
    return boolean


def _scaled(row: Row, scale: float) -> Row:
    """A row in scaled reals; one of booleans alone in numbers of a size that tolerances fit."""
    if not row.reals:
        scale = 1.0 / max([abs(row.limit), *(abs(c) for c, _ in row.terms)])
    terms = tuple((c * scale, x) for c, x in row.terms)
    return Row(terms, row.reals, row.limit * scale, row.when)


def _room(row: Row) -> float:
    """By how much the left side can exceed the limit; reals are at least 0, with c <= 0 here."""
    return max(0.0, sum(max(c, 0.0) for c, _ in row.terms) - row.limit)


def _relaxed(row: Row) -> list[tuple[float, int]]:
    return [*row.terms, *((_room(row), w) for w in row.when)]


def _limit(row: Row) -> float:
    return row.limit + _room(row) * len(row.when)
