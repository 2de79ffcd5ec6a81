"""The rules that a plan must obey or is measured by, one by one, each with its figure."""

from __future__ import annotations

from dataclasses import replace

from trivet import boards
from trivet.compiler.rig import Rig, RigDevice
from trivet.hdl.isa import Program

from . import linear
from .check import Evaluation
from .plan import RuleResult
from .problem import Problem
from .solve import Solution

__all__ = ["judge", "limits", "over_budget"]

BOARDS = (63,)  # with the one there is: 64


def judge(
    rig: Rig,
    problem: Problem,
    solution: Solution,
    verdict: Evaluation,
    programs: dict[int, tuple[Program, ...]],
) -> list[RuleResult]:
    """Every rule with its value and limit; limits of ``[rules]`` in the rig tighten them."""
    found = limits(rig, problem, solution, verdict, programs)
    return [*found, *_scaling(problem, solution)]


def limits(
    rig: Rig,
    problem: Problem,
    solution: Solution,
    verdict: Evaluation,
    programs: dict[int, tuple[Program, ...]],
) -> list[RuleResult]:
    """The rules that can be broken, and figures of the plan that have no limit."""
    found = [*_partition(problem, solution), _order(problem, solution), _coverage(problem, verdict)]
    found += _memory(rig, problem, solution, programs)
    found += _budget(rig, solution, programs)
    found += _communication(rig, solution, verdict)
    found += _links(rig, verdict)
    return [*found, _balance(rig, verdict)]


def _at_most(name: str, value: float, limit: float | None, where: str, *, hard: bool) -> RuleResult:
    ok = limit is None or value <= limit * (1 + 1e-12)
    return RuleResult(name, hard, ok, value, limit, where)


def _partition(problem: Problem, solution: Solution) -> list[RuleResult]:
    """How data is partitioned: each item goes to one replica, and to every shard of it."""
    found = []
    for k, run in enumerate(solution.runs):
        if len(run.members) == 1:
            continue
        kinds = {problem.machine(m).sort for m in run.members}
        where = f"stage {k}: items over {run.replicas} replicas, channels over {run.shards} shards"
        found.append(_at_most("data partition", float(len(kinds) - 1), 0.0, where, hard=True))
    return found


def _order(problem: Problem, solution: Solution) -> RuleResult:
    """Order and synchronisation: tensors that a stage reads before they are made."""
    stage = {u: k for k, run in enumerate(solution.runs) for u in run.units}
    late = [
        v.name
        for v in problem.values
        if v.producer is not None and any(stage[c] < stage[v.producer] for c in v.consumers)
    ]
    where = f"tensors read too early, of {len(problem.values)}"
    return _at_most("order", float(len(late)), 0.0, where, hard=True)


def _coverage(problem: Problem, verdict: Evaluation) -> RuleResult:
    """The stages put together are the model: every unit once, in order (violations counted)."""
    where = f"{len(problem.units)} units in {len(verdict.runs)} stages"
    return _at_most("composition", float(len(verdict.violations)), 0.0, where, hard=True)


def _memory(
    rig: Rig, problem: Problem, solution: Solution, programs: dict[int, tuple[Program, ...]]
) -> list[RuleResult]:
    limit = rig.rules.get("memory_max", 1.0)
    found = []
    for machine in problem.machines:
        if machine.memory_limit is None:
            continue
        used = sum(
            problem.memory[u] for r in solution.runs if r.machine == machine.name for u in r.units
        )
        has = rig.device(machine.name).memory_bytes
        assert has is not None
        share = used / has
        found.append(_at_most("memory", share, limit, machine.name, hard=True))
    for index, parts in programs.items():
        config = parts[0].config
        held = max(len(p.weights) for p in parts)
        share = held / (config.weight_word_bytes * config.weight_words)
        where = f"{solution.runs[index].machine} weights"
        found.append(_at_most("memory", share, limit, where, hard=True))
    return found


def _budget_share(device: RigDevice) -> float:
    """Of the board's hard multipliers."""
    assert device.board is not None
    assert device.engine is not None
    return device.engine.dsps / boards.get(device.board).resources.dsps


def over_budget(rig: Rig, device: RigDevice) -> str | None:
    """Why an FPGA's engine cannot be built within the rules; None when it can, and for CPUs."""
    if device.engine is None:
        return None
    share, limit = _budget_share(device), rig.rules.get("budget_max", 1.0)
    if share <= limit * (1 + 1e-12):
        return None
    return (
        f"its engine takes {share:.3g} of the multipliers of {device.board}, the limit is "
        f"{limit:g}; use a smaller engine or loosen budget_max"
    )


def _budget(
    rig: Rig, solution: Solution, programs: dict[int, tuple[Program, ...]]
) -> list[RuleResult]:
    limit = rig.rules.get("budget_max", 1.0)
    found = []
    for index in programs:
        device = rig.device(solution.runs[index].machine)
        share = _budget_share(device)
        found.append(_at_most("budget", share, limit, f"{device.name} DSPs", hard=True))
    return found


def _communication(rig: Rig, solution: Solution, verdict: Evaluation) -> list[RuleResult]:
    limit = rig.rules.get("communication_share_max")
    found = []
    for run, cost in zip(solution.runs, verdict.runs, strict=True):
        if cost.communication > 0:
            share = cost.communication / (cost.communication + cost.busy)
            hard = limit is not None
            found.append(_at_most("communication share", share, limit, run.machine, hard=hard))
    return found


def _links(rig: Rig, verdict: Evaluation) -> list[RuleResult]:
    limit = rig.rules.get("link_load_max", 1.0)
    return [
        _at_most("link load", seconds / verdict.objective, limit, name, hard=True)
        for name, seconds in verdict.groups.items()
        if verdict.objective > 0
    ]


def _balance(rig: Rig, verdict: Evaluation) -> RuleResult:
    """Mean load of the used devices over the largest: 1 is perfect."""
    loads = [x for x in verdict.loads.values() if x > 0]
    value = sum(loads) / len(loads) / max(loads) if loads else 1.0
    limit = rig.rules.get("balance_min")
    where = f"{len(loads)} devices used"
    return RuleResult(
        "balance", limit is not None, limit is None or value >= limit, value, limit, where
    )


def _scaling(problem: Problem, solution: Solution) -> list[RuleResult]:
    """How the plan scales: the objective with more boards like the first, over today's.

    By the linear search: what it finds is possible, the optimum may be better still.
    """
    boards = [m for m in problem.machines if m.kind == "fpga"]
    if not boards or solution.objective <= 0:
        return []
    first = boards[0]
    found = []
    for count in (1, *BOARDS):
        more = tuple(
            replace(first, name=f"{first.name} again {k}", model=first.sort) for k in range(count)
        )
        larger = replace(problem, machines=(*problem.machines, *more))
        best = min(linear.solve(larger).objective, solution.objective)
        name = "one more board" if count == 1 else f"{count} more boards"
        value = best / solution.objective
        found.append(RuleResult(name, False, True, value, None, f"objective, like {first.name}"))
    return found
