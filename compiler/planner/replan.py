"""A bundle's stages placed anew, by what they took when they ran.

The stages stay as they were compiled, so nothing is built again and the bytes are the same; only
which device runs which stage, and on how many replicas, is asked anew. Transfers are in the times
measured. Layers move between stages by compiling the model again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from trivet.compiler.cost import Cost
from trivet.compiler.errors import CompileError

from .check import Evaluation, check
from .linear import solve as solve_in_order
from .plan import CostEntry
from .problem import Machine, Problem, Run, Value
from .solve import Solution, solve

__all__ = ["PlacedStage", "Replanned", "replan"]


@dataclass(frozen=True)
class PlacedStage:
    """A stage of a bundle: its tensors, where it runs now, and seconds of an item by device."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    members: tuple[str, ...]
    seconds: Mapping[str, Cost]


@dataclass(frozen=True)
class Replanned:
    """``homes``: devices of each stage. ``before`` and ``after``: seconds from item to item."""

    homes: tuple[tuple[str, ...], ...]
    before: float
    after: float
    solution: Solution
    plan: dict[str, Any]


def replan(
    plan: Mapping[str, Any], stages: Sequence[PlacedStage], rig: Mapping[str, tuple[str, str]]
) -> Replanned:
    """The best places of the stages, proven; ``plan`` with them, as plan.json has it.

    Parameters
    ----------
    plan
        The bundle's plan.json.
    stages
        In order; every one has a time on each device that it may use.
    rig
        Device -> its kind, and its sort: devices of one sort differ by nothing but their names.
    """
    for stage, entry in zip(stages, plan["stages"], strict=True):
        if entry.get("shards", 1) > 1:
            raise CompileError(
                f"plan: stage {entry['index']} is split over devices, whose parts have no place of "
                "their own; compile the model again"
            )
        for name in stage.members:
            if name not in stage.seconds:
                raise CompileError(
                    f"plan: stage {entry['index']} has no time on {name}, where it runs; trace a "
                    "stream in which it does"
                )
    problem = _problem(stages, rig)
    where = itertools.groupby(range(len(stages)), key=lambda k: stages[k].members)
    now = tuple(Run(members[0], tuple(units), members[1:]) for members, units in where)
    before = check(problem, now)
    solution = solve(problem, start=solve_in_order(problem))
    if not solution.runs or solution.objective >= before.objective:
        # The plan that is there may break what a new one must keep, but none is better.
        bound = min(solution.lower_bound, before.objective)
        solution = Solution(now, before.objective, bound, solution.status)
    verdict = check(problem, solution.runs)
    homes = {unit: run.members for run in solution.runs for unit in run.units}
    ordered = tuple(homes[k] for k in range(len(stages)))
    new = _written(plan, stages, ordered, solution, verdict)
    return Replanned(ordered, before.objective, solution.objective, solution, new)


def _problem(stages: Sequence[PlacedStage], rig: Mapping[str, tuple[str, str]]) -> Problem:
    count = len(stages)
    producer = {name: k for k, s in enumerate(stages) for name in s.outputs}
    readers: dict[str, list[int]] = {}
    for k, stage in enumerate(stages):
        for name in stage.inputs:
            readers.setdefault(name, []).append(k)
    values = tuple(
        Value(name, producer.get(name), tuple(readers.get(name, ())), 0.0, name not in readers)
        for name in dict.fromkeys([*readers, *producer])
    )
    machines = []
    misfits: dict[str, tuple[frozenset[int], ...]] = {}
    for name, (kind, sort) in rig.items():
        row = tuple(s.seconds[name].value if name in s.seconds else None for s in stages)
        if all(seconds is None for seconds in row):
            continue
        what: Any = kind
        machines.append(Machine(name, what, row, pooled=kind == "cpu",
                                model="" if kind == "cpu" else sort))  # fmt: skip
        if kind != "cpu":  # it holds one stage at a time
            able = [k for k, seconds in enumerate(row) if seconds is not None]
            misfits[sort] = tuple(frozenset(pair) for pair in itertools.combinations(able, 2))
    most = max(
        (sum(1 for m in machines if m.sort == sort) for sort in misfits),
        default=1,
    )
    return Problem(
        units=tuple(f"stage {k}" for k in range(count)),
        values=values,
        machines=tuple(machines),
        macs=(0,) * count,
        memory=(0,) * count,
        misfits=misfits,
        replicas=tuple(range(1, most + 1)),
    )


def _written(
    plan: Mapping[str, Any],
    stages: Sequence[PlacedStage],
    homes: Sequence[tuple[str, ...]],
    solution: Solution,
    verdict: Evaluation,
) -> dict[str, Any]:
    """plan.json with the new places; what was said of the old ones is gone."""
    entries = []
    for entry, stage, members in zip(plan["stages"], stages, homes, strict=True):
        cost = stage.seconds[members[0]]
        entries.append({
            **entry,
            "device": members[0],
            "members": list(members),
            "replicas": len(members),
            "compute": cost.value,
            "communication": 0.0,
            "costs": {"compute": msgspec.to_builtins(CostEntry.of(cost))},
        })  # fmt: skip
    paces = [e["compute"] / e["replicas"] for e in entries]
    return {
        **plan,
        "stages": entries,
        "bottleneck": verdict.objective,
        "bottleneck_stage": paces.index(max(paces)),
        "bottleneck_reason": "indivisible unit",
        "lower_bound": solution.lower_bound,
        "gap": solution.gap,
        "status": "optimal" if solution.status == "optimal" else "feasible",
        "seconds": None,
        "rules": [],
        "notes": ["stages placed anew by measured times; transfers are part of them"],
        "auto": None,
    }
