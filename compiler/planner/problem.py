"""The planning problem as data, and the evaluator that judges every plan.

A plan is a sequence of *runs*: consecutive units of a topological order on one machine. An FPGA
owns at most one run, a CPU may own several. All data passes through the host, so an FPGA pays for
what enters and leaves its run, once per value, whoever is on the other side; CPUs share the host's
memory and pay nothing. :func:`check` recomputes everything from this definition and shares no code
with the solvers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "Channel",
    "Evaluation",
    "Machine",
    "Problem",
    "Run",
    "RunCost",
    "Value",
    "check",
]


@dataclass(frozen=True)
class Value:
    """A tensor that may travel between runs.

    ``producer`` is a unit's position, None for a model input. ``barred`` says why it cannot go over
    a link to or from an FPGA, None when it can. ``load_trips`` and ``read_trips`` are the round
    trips that carry it there and back.
    """

    name: str
    producer: int | None
    consumers: tuple[int, ...]
    nbytes: int
    is_output: bool = False
    barred: str | None = None
    load_trips: int = 1
    read_trips: int = 1


@dataclass(frozen=True)
class Channel:
    """The way between the host and a device; channels of one ``group`` share one capacity.

    ``latency_seconds`` is a round trip's; ``start_trips`` are those that start a run.
    """

    bandwidth_bytes_per_second: float
    latency_seconds: float
    group: str | None = None
    start_trips: int = 0

    def load_seconds(self, value: Value) -> float:
        """Seconds in which a value reaches the device."""
        return self._seconds(value.nbytes, value.load_trips)

    def read_seconds(self, value: Value) -> float:
        """Seconds in which a value comes back."""
        return self._seconds(value.nbytes, value.read_trips)

    def _seconds(self, nbytes: int, trips: int) -> float:
        return trips * self.latency_seconds + nbytes / self.bandwidth_bytes_per_second

    @property
    def start_seconds(self) -> float:
        return self.start_trips * self.latency_seconds


@dataclass(frozen=True)
class Machine:
    """A device as the planner sees it.

    ``seconds[u]`` is unit u's time for one item, None where it cannot run. ``channel`` is None for
    CPUs. ``overlap``: transfers run beside the computation where the run's program can do that
    (one after another: a host has one request under way), else they add up.
    """

    name: str
    kind: Literal["cpu", "fpga"]
    seconds: tuple[float | None, ...]
    channel: Channel | None = None
    memory_limit: int | None = None
    overlap: bool = False
    # Seconds by which a run in a stream may take less than the sum of its units'.
    saving: float = 0.0


@dataclass(frozen=True)
class Problem:
    """Units in a topological order (positions 0..n-1) and everything that costs or limits them.

    ``inner`` are units that may not touch a value which crosses a run's border (views whose NHWC
    bytes differ from the ONNX order). ``exact`` replaces the sum of ``seconds`` for runs that were
    lowered, ``entry`` is what the board needs besides to take in their inputs. ``misfits`` are sets
    of units that an FPGA's memories cannot hold; a set that contains one does not fit either.
    ``serial`` are runs whose program cannot overlap, on a machine that does.
    ``banned`` are runs that break a rule of the rig. With ``share_max``, an FPGA's run may spend at
    most this share of its time on communication (by its exact seconds, else by the sum of its
    units', which is no larger: so it holds for sure).
    """

    units: tuple[str, ...]
    values: tuple[Value, ...]
    machines: tuple[Machine, ...]
    macs: tuple[int, ...]
    memory: tuple[int, ...]
    inner: frozenset[int] = frozenset()
    pins: dict[int, str] = field(default_factory=dict)
    objective: Literal["throughput", "latency"] = "throughput"
    place: Literal["auto", "fpga"] = "auto"
    exact: dict[tuple[str, frozenset[int]], float] = field(default_factory=dict)
    entry: dict[tuple[str, frozenset[int]], float] = field(default_factory=dict)
    misfits: dict[str, tuple[frozenset[int], ...]] = field(default_factory=dict)
    serial: frozenset[tuple[str, frozenset[int]]] = frozenset()
    banned: frozenset[tuple[str, frozenset[int]]] = frozenset()
    share_max: float | None = None

    def machine(self, name: str) -> Machine:
        return next(m for m in self.machines if m.name == name)

    def overlaps(self, run: Run) -> bool:
        """Whether the run's transfers count beside its computation: in a stream of items."""
        key = run.machine, frozenset(run.units)
        return (
            self.machine(run.machine).overlap
            and self.objective == "throughput"
            and key not in self.serial
        )


@dataclass(frozen=True)
class Run:
    """Consecutive units (positions, in order) on one machine."""

    machine: str
    units: tuple[int, ...]


@dataclass(frozen=True)
class RunCost:
    """Seconds of one run for one item."""

    compute: float
    received: float
    sent: float

    @property
    def communication(self) -> float:
        return self.received + self.sent


@dataclass(frozen=True)
class Evaluation:
    """What :func:`check` finds. ``objective`` is meaningless while ``violations`` is not empty."""

    objective: float
    runs: tuple[RunCost, ...]
    loads: dict[str, float]  # machine -> seconds busy for one item
    groups: dict[str, float]  # shared link -> seconds busy for one item
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
        members = frozenset(run.units)
        received, sent, broken = _transfers(problem, machine, members)
        violations += broken
        compute = 0.0
        for u in run.units:
            seconds = machine.seconds[u]
            if seconds is None:
                violations.append(f"{problem.units[u]} cannot run on {machine.name}")
            else:
                compute += seconds
        if machine.kind == "fpga":
            saving = machine.saving if problem.overlaps(run) else 0.0
            compute = problem.exact.get((machine.name, members), max(compute - saving, 0.0))
            violations += _forbidden(problem, machine, members, compute, received + sent)
            fpga_macs += sum(problem.macs[u] for u in run.units)
            for misfit in problem.misfits.get(machine.name, ()):
                if misfit <= members:
                    violations.append(f"{machine.name} cannot hold {len(members)} units of the run")
                    break
        cost = RunCost(compute, received, sent)
        costs.append(cost)
        if problem.overlaps(run):
            loads[machine.name] += max(compute, received + sent)
        else:
            loads[machine.name] += compute + received + sent
        if machine.channel is not None and machine.channel.group is not None:
            group = machine.channel.group
            groups[group] = groups.get(group, 0.0) + received + sent
        memory[machine.name] += sum(problem.memory[u] for u in run.units)
        owned[machine.name] += 1
    for machine in problem.machines:
        if machine.kind == "fpga" and owned[machine.name] > 1:
            violations.append(
                f"{machine.name} owns {owned[machine.name]} runs, at most 1 is possible"
            )
        if machine.memory_limit is not None and memory[machine.name] > machine.memory_limit:
            violations.append(
                f"{machine.name} needs {memory[machine.name]} bytes, has {machine.memory_limit}"
            )
    for u, name in problem.pins.items():
        if not any(run.machine == name and u in run.units for run in runs):
            violations.append(f"{problem.units[u]} is pinned to {name} and is elsewhere")
    if problem.objective == "latency":
        objective = sum(loads.values())
    else:
        objective = max([*loads.values(), *groups.values()], default=0.0)
    return Evaluation(objective, tuple(costs), loads, groups, fpga_macs, tuple(violations))


def _forbidden(
    problem: Problem, machine: Machine, members: frozenset[int], compute: float, moved: float
) -> list[str]:
    """Rules of the rig that a run on an FPGA is known to break."""
    found = []
    if (machine.name, members) in problem.banned:
        found.append(f"a run of {len(members)} units on {machine.name} breaks a rule of the rig")
    if problem.share_max is not None and moved > problem.share_max * (compute + moved) * (
        1 + 1e-12
    ):
        found.append(f"{machine.name} communicates for more than {problem.share_max:g} of its time")
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


def _transfers(
    problem: Problem, machine: Machine, members: frozenset[int]
) -> tuple[float, float, list[str]]:
    """Seconds received and sent by a run, and what may not cross its border."""
    if machine.channel is None:
        return 0.0, 0.0, []
    sent = 0.0
    received = machine.channel.start_seconds + problem.entry.get((machine.name, members), 0.0)
    broken: list[str] = []
    for value in problem.values:
        inside = value.producer in members
        readers = members.intersection(value.consumers)
        enters = bool(readers) and not inside
        leaves = inside and (value.is_output or any(c not in members for c in value.consumers))
        if enters:
            received += machine.channel.load_seconds(value)
        if leaves:
            sent += machine.channel.read_seconds(value)
        if (enters or leaves) and value.barred is not None:
            broken.append(f"{value.name} cannot cross to {machine.name}: {value.barred}")
        touching = (readers & problem.inner) if enters else frozenset[int]()
        if leaves and value.producer in problem.inner:
            touching |= {value.producer}
        for u in sorted(touching):
            broken.append(f"{problem.units[u]} reorders bytes at the border of {machine.name}")
    return received, sent, broken
