"""A plan that a person wrote or edited, as runs: every node somewhere, every device known."""

from __future__ import annotations

from trivet.compiler.errors import CompileError
from trivet.compiler.rig import Rig
from trivet.compiler.units import Graph

from .orders import orders
from .plan import Plan
from .problem import Problem, Run

__all__ = ["runs_of"]


def runs_of(plan: Plan, graph: Graph, rig: Rig, problem: Problem) -> tuple[Run, ...]:
    """The plan's stages as runs of the problem's units.

    A stage says what it holds by its ``units``, or by its ``nodes`` where it names no units; a unit
    goes where its nodes are. CompileError: a
    plan for another model, an unknown node or device, a unit whose nodes are in two stages, a node
    that no stage holds.
    """
    if plan.model_sha256 != graph.model_sha256:
        raise CompileError(
            f"plan: it was made for the model {plan.model_sha256[:12]}.., this is "
            f"{graph.model_sha256[:12]}..; plan this model and edit that"
        )
    owner = {n: k for k, u in enumerate(graph.units) for n in (*u.nodes, u.name)}
    stage_of: dict[int, int] = {}
    for stage in plan.stages:
        for name in (stage.device, *stage.members):
            rig.device(name)
        for node in stage.units or stage.nodes:
            if node not in owner:
                raise CompileError(
                    f"plan: stage {stage.index} holds node {node!r}, which the model does not "
                    "have; `trivet explain` lists its nodes"
                )
            unit = owner[node]
            if stage_of.setdefault(unit, stage.index) != stage.index:
                raise CompileError(
                    f"plan: node {node!r} is in stage {stage.index}, other nodes of "
                    f"{graph.units[unit].name!r} in stage {stage_of[unit]}; they always fuse, keep "
                    "them together"
                )
    missing = [u.name for k, u in enumerate(graph.units) if k not in stage_of]
    if missing:
        raise CompileError(
            f"plan: no stage holds {missing[0]!r}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + "; put every node into a stage"
        )
    order = orders(problem)[0]
    found = []
    for stage in plan.stages:
        units = tuple(u for u in order if stage_of[u] == stage.index)
        members = stage.members or [stage.device]
        if members[0] != stage.device or len(members) != stage.replicas * stage.shards:
            raise CompileError(
                f"plan: stage {stage.index} on {stage.device} with {stage.replicas} replicas of "
                f"{stage.shards} shards names the members {', '.join(members)}; name "
                f"{stage.replicas * stage.shards}, the first of them the device"
            )
        if units:
            found.append(Run(members[0], units, tuple(members[1:]), stage.shards))
    return tuple(found)
