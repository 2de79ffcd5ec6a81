"""From a solution to the plan that is written down: what every kind of problem has."""

from __future__ import annotations

from typing import Literal

from .check import Evaluation, RunCost
from .plan import VERSION, Plan, StagePlan
from .problem import Problem, Run
from .solve import Solution

__all__ = ["infeasible", "plan_of", "stage_of"]


def stage_of(problem: Problem, index: int, run: Run, cost: RunCost) -> StagePlan:
    """A run as a stage of the plan, its units in the order in which they run."""
    names = [problem.units[u] for u in run.units]
    return StagePlan(
        index=index,
        device=run.machine,
        members=list(run.members),
        nodes=names,
        compute=cost.busy,
        communication=cost.communication,
        memory_bytes=sum(problem.memory[u] for u in run.units),
        costs={},
        replicas=run.replicas,
        shards=run.shards,
        units=names,
    )


def plan_of(
    problem: Problem,
    solution: Solution,
    verdict: Evaluation,
    stages: list[StagePlan],
    *,
    model: str,
    rig: str,
    unit: Literal["s", "1"],
) -> Plan:
    """The plan; ``model`` and ``rig`` are the hashes of what it was made for."""
    worst, reason = _bottleneck(problem, solution, verdict)
    return Plan(
        version=VERSION,
        model_sha256=model,
        rig_sha256=rig,
        unit=unit,
        objective=problem.objective,
        execution="overlap" if any(map(problem.overlaps, solution.runs)) else "sync",
        bottleneck=verdict.objective,
        bottleneck_stage=worst,
        bottleneck_reason=reason,
        lower_bound=solution.lower_bound,
        gap=solution.gap,
        status="optimal" if solution.status == "optimal" else "feasible",
        seconds=None,
        stages=stages,
        rules=[],
        conflict=[],
    )


def infeasible(
    problem: Problem, conflict: list[str], *, model: str, rig: str, unit: Literal["s", "1"]
) -> Plan:
    """What is written when no plan keeps everything: the conflict."""
    return Plan(
        version=VERSION,
        model_sha256=model,
        rig_sha256=rig,
        unit=unit,
        objective=problem.objective,
        execution="sync",
        bottleneck=None,
        bottleneck_stage=None,
        bottleneck_reason="",
        lower_bound=None,
        gap=None,
        status="infeasible",
        seconds=None,
        stages=[],
        rules=[],
        conflict=conflict,
    )


def _bottleneck(problem: Problem, solution: Solution, verdict: Evaluation) -> tuple[int, str]:
    """The largest stage of the busiest device, and why it is the largest."""
    if problem.objective == "latency":
        sizes = [c.seconds for c in verdict.runs]
        worst = sizes.index(max(sizes))
    else:
        name, load = max(verdict.loads.items(), key=lambda x: x[1])
        busiest = max(verdict.groups.items(), key=lambda x: x[1], default=("", 0.0))
        owned = [k for k, r in enumerate(solution.runs) if name in r.members]
        if busiest[1] > load:
            owned = [
                k
                for k, r in enumerate(solution.runs)
                if (c := problem.machine(r.machine).channel) is not None and c.group == busiest[0]
            ]
        worst = max(owned, key=lambda k: verdict.runs[k].load)
    run, cost = solution.runs[worst], verdict.runs[worst]
    if cost.communication > cost.busy:
        return worst, "link"
    machine = problem.machine(run.machine)
    if len(run.units) == 1:
        return worst, "indivisible unit"
    if machine.memory_limit is not None and any(
        m.memory_limit is not None and verdict.memory[m.name] >= 0.95 * m.memory_limit
        for m in problem.machines
        if m.name != machine.name
    ):
        return worst, "memory"
    return worst, "compute"
