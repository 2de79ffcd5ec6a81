"""The evaluator that judges every plan: from the problem's definition, with no solver's code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .problem import Machine, Problem, Run, weights

__all__ = ["Evaluation", "RunCost", "check"]

_ROUNDING = 1 + 1e-9  # sums of floats, in whatever order a solver added them


@dataclass(frozen=True)
class RunCost:
    """Seconds of one run for one item on one of its replicas.

    ``interval`` is the computation's share in a stream that overlaps, None where nothing does.
    ``load`` is what each of the run's machines is busy for an item of the stream.
    """

    compute: float
    interval: float | None
    received: float
    sent: float
    load: float

    @property
    def busy(self) -> float:
        """The computation as the load counts it."""
        return self.compute if self.interval is None else self.interval

    @property
    def communication(self) -> float:
        return self.received + self.sent

    @property
    def seconds(self) -> float:
        """What one item waits for the run: transfers and computation one after another."""
        return self.compute + self.received + self.sent


@dataclass(frozen=True)
class Evaluation:
    """What :func:`check` finds. ``objective`` is meaningless while ``violations`` is not empty."""

    objective: float
    bottleneck: float  # the largest load of a machine or shared link: seconds from item to item
    runs: tuple[RunCost, ...]
    loads: dict[str, float]  # machine -> seconds busy for one item
    groups: dict[str, float]  # shared link -> seconds busy for one item
    memory: dict[str, int]  # machine -> bytes of constants
    fpga_macs: int
    violations: tuple[str, ...]


def check(problem: Problem, runs: Sequence[Run]) -> Evaluation:
    """Recompute a plan from the definition: its loads, its objective and every broken condition."""
    violations = _coverage(problem, runs) + _order(problem, runs)
    loads = {m.name: 0.0 for m in problem.machines}
    groups: dict[str, float] = {}
    memory = {m.name: 0 for m in problem.machines}
    owned = {m.name: 0 for m in problem.machines}
    costs: list[RunCost] = []
    fpga_macs = 0
    for run in runs:
        machine = problem.machine(run.machine)
        violations += _members(problem, run)
        cost, broken = _cost(problem, machine, run)
        violations += broken + _forbidden(problem, machine, run, cost)
        costs.append(cost)
        for name in run.members:
            loads[name] += cost.load
            owned[name] += 1
            memory[name] += -(-sum(problem.memory[u] for u in run.units) // run.shards)
        if machine.kind == "fpga":
            fpga_macs += sum(problem.macs[u] for u in run.units)
        if machine.channel is not None and machine.channel.group is not None:
            group = machine.channel.group
            # Every shard takes the whole input and sends its own part.
            moved = cost.communication * run.shards
            groups[group] = groups.get(group, 0.0) + moved
    violations += _limits(problem, memory, owned)
    for u, name in problem.pins.items():
        if not any(run.members == (name,) and u in run.units for run in runs):
            violations.append(f"{problem.units[u]} is pinned to {name} and is elsewhere")
    bottleneck = max([*loads.values(), *groups.values()], default=0.0)
    pace = problem.pace_max
    if pace is not None and bottleneck > pace * _ROUNDING:
        violations.append(f"{bottleneck:g} s from item to item, at most {pace:g} are allowed")
    weight = weights(problem)
    objective = (
        weight.bottleneck * bottleneck
        + weight.serial * sum(c.seconds for c in costs)
        + sum(weight.busy[name] * load for name, load in loads.items())
    )
    return Evaluation(
        objective, bottleneck, tuple(costs), loads, groups, memory, fpga_macs, tuple(violations)
    )


def _cost(problem: Problem, machine: Machine, run: Run) -> tuple[RunCost, list[str]]:
    """Seconds of a run, and units or values that forbid it."""
    received, sent, broken = _transfers(problem, machine, run)
    compute = 0.0
    for u in run.units:
        seconds = machine.seconds[u]
        if run.shards > 1:
            seconds = problem.splits.get((machine.sort, u, run.shards))
        if seconds is None:
            where = machine.name if run.shards == 1 else f"{run.shards} shards of {machine.name}"
            broken.append(f"{problem.units[u]} cannot run on {where}")
        else:
            compute += seconds
    interval: float | None = None
    if problem.overlaps(run):
        interval = max(compute - machine.saving, 0.0)
    if run.shards == 1:
        key = problem.key(run)
        compute = problem.exact.get(key, compute)
        if interval is not None:
            interval = problem.interval.get(key, problem.exact.get(key, interval))
    if interval is None:
        load = compute + received + sent
    elif machine.channel is not None and machine.channel.duplex:
        load = max(interval, received, sent)
    else:
        load = max(interval, received + sent)
    return RunCost(compute, interval, received, sent, load / run.replicas), broken


def _members(problem: Problem, run: Run) -> list[str]:
    """What is wrong with the machines that a run has several of."""
    found = []
    first = problem.machine(run.machine)
    if run.shards < 1 or len(run.members) % run.shards:
        found.append(f"{len(run.members)} machines cannot be replicas of {run.shards} shards")
    elif run.replicas not in problem.replicas:
        found.append(f"{run.replicas} replicas are not allowed")
    if run.shards > 1 and len(run.units) > 1:
        found.append(f"{len(run.units)} units are split together, 1 is possible")
    for name in run.others:
        if problem.machine(name).sort != first.sort or first.pooled:
            found.append(f"{name} and {first.name} cannot share a run: they are not equal")
    return found


def _limits(problem: Problem, memory: dict[str, int], owned: dict[str, int]) -> list[str]:
    """Numbers of runs, memories and boards that are overfull."""
    found = []
    used: dict[str, list[int]] = {}
    for machine in problem.machines:
        name = machine.name
        if not machine.pooled and owned[name] > 1:
            found.append(f"{name} owns {owned[name]} runs, at most 1 is possible")
        if machine.memory_limit is not None and memory[name] > machine.memory_limit:
            found.append(f"{name} needs {memory[name]} bytes, has {machine.memory_limit}")
        if machine.board in problem.capacity and owned[name]:
            row = used.setdefault(machine.board, [0] * len(machine.needs))
            used[machine.board] = [a + b for a, b in zip(row, machine.needs, strict=True)]
    for board, row in used.items():
        for need, has in zip(row, problem.capacity[board], strict=True):
            if need > has:
                found.append(f"the engines on {board} need {need} of a resource, it has {has}")
    return found


def _forbidden(problem: Problem, machine: Machine, run: Run, cost: RunCost) -> list[str]:
    """Rules of the rig that a run on an FPGA breaks, and memories that do not hold it."""
    if machine.kind != "fpga":
        return []
    found = []
    members = frozenset(run.units)
    if problem.key(run) in problem.banned:
        found.append(f"a run of {len(members)} units on {machine.name} breaks a rule of the rig")
    moved, share = cost.communication, problem.share_max
    if share is not None and moved > share * (cost.busy + moved) * _ROUNDING:
        found.append(f"{machine.name} communicates for more than {share:g} of its time")
    if run.shards == 1 and any(m <= members for m in problem.misfits.get(machine.sort, ())):
        found.append(f"{machine.name} cannot hold {len(members)} units of the run")
    return found


def _coverage(problem: Problem, runs: Sequence[Run]) -> list[str]:
    seen = [u for run in runs for u in run.units]
    if sorted(seen) != list(range(len(problem.units))):
        return [f"the runs hold {len(seen)} units, the model has {len(problem.units)}"]
    return []


def _order(problem: Problem, runs: Sequence[Run]) -> list[str]:
    place = {u: k for k, u in enumerate(u for run in runs for u in run.units)}
    return [
        f"{problem.units[c]} comes before {problem.units[v.producer]}, which it reads"
        for v in problem.values
        if v.producer is not None
        for c in v.consumers
        if place.get(c, -1) <= place.get(v.producer, -1)
    ]


def _transfers(problem: Problem, machine: Machine, run: Run) -> tuple[float, float, list[str]]:
    """Seconds received and sent by each machine of a run, and what may not cross its border."""
    if machine.channel is None:
        return 0.0, 0.0, []
    members = frozenset(run.units)
    received = machine.channel.start_seconds + problem.entry.get(problem.key(run), 0.0)
    sent = 0.0
    broken: list[str] = []
    for value in problem.values:
        inside = value.producer in members
        readers = members.intersection(value.consumers)
        enters = bool(readers) and not inside
        leaves = inside and (value.is_output or any(c not in members for c in value.consumers))
        if enters:
            received += machine.channel.load_seconds(value)
        if leaves:
            sent += machine.channel.read_seconds(value) / run.shards
        if not (enters or leaves) or machine.kind != "fpga":
            continue
        if value.barred is not None:
            broken.append(f"{value.name} cannot cross to {machine.name}: {value.barred}")
        touching = (readers & problem.inner) if enters else frozenset[int]()
        if leaves and value.producer in problem.inner:
            touching |= {value.producer}
        for u in sorted(touching):
            broken.append(f"{problem.units[u]} reorders bytes at the border of {machine.name}")
    return received, sent, broken
