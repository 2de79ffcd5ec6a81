"""The planning problem as data: units, values, machines, limits; and plans as sequences of runs.

A plan is a sequence of *runs*: sets of units on one machine (or on several: replicas, shards),
where what a run reads was made by runs before it, so the stages form no cycle. A *pooled* machine
(a CPU of the host) owns any number of runs, every other machine at most one. All data passes
through the host: a machine with a channel pays for what enters and leaves its run, once per value
and machine, whoever is on the other side; pooled machines share the host's memory and pay nothing.
:func:`trivet.compiler.planner.check.check` recomputes a plan's cost from this definition.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "Channel",
    "Group",
    "Machine",
    "Objective",
    "Problem",
    "Run",
    "Value",
    "Weights",
    "groups",
    "weights",
]

Objective = Literal["throughput", "latency", "batch", "energy"]


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
    nbytes: float
    is_output: bool = False
    barred: str | None = None
    load_trips: int = 1
    read_trips: int = 1


@dataclass(frozen=True)
class Channel:
    """The way between the host and a device; channels of one ``group`` share one capacity.

    ``latency_seconds`` is a round trip's; ``start_trips`` are those that start a run. ``duplex``:
    both directions at once, where transfers overlap the computation.
    """

    bandwidth_bytes_per_second: float
    latency_seconds: float
    group: str | None = None
    start_trips: int = 0
    duplex: bool = False

    def load_seconds(self, value: Value) -> float:
        """Seconds in which a value reaches the device."""
        return self._seconds(value.nbytes, value.load_trips)

    def read_seconds(self, value: Value) -> float:
        """Seconds in which a value comes back."""
        return self._seconds(value.nbytes, value.read_trips)

    def _seconds(self, nbytes: float, trips: int) -> float:
        return trips * self.latency_seconds + nbytes / self.bandwidth_bytes_per_second

    @property
    def start_seconds(self) -> float:
        return self.start_trips * self.latency_seconds


@dataclass(frozen=True)
class Machine:
    """A device as the planner sees it.

    ``seconds[u]`` is unit u's time for one item, None where it cannot run. ``channel`` is None for
    machines that pay nothing for what they move. ``overlap``: transfers run beside the computation
    where the run's program can do that, else they add up. Machines of one ``model`` differ by
    nothing but their names. ``needs`` is what the machine takes of its ``board`` when it is used.
    """

    name: str
    kind: Literal["cpu", "gpu", "fpga"]
    seconds: tuple[float | None, ...]
    channel: Channel | None = None
    memory_limit: int | None = None
    overlap: bool = False
    # Seconds by which a run in a stream may take less than the sum of its units'.
    saving: float = 0.0
    pooled: bool = False
    model: str = ""
    board: str | None = None
    needs: tuple[int, ...] = ()
    busy_watts: float = 0.0
    idle_watts: float = 0.0

    @property
    def sort(self) -> str:
        """The model's name; a machine of no model is one of its own."""
        return self.model or self.name


@dataclass(frozen=True)
class Problem:
    """Units (positions 0..n-1), what they pass on, machines, and everything that costs or limits.

    ``inner`` are units that may not touch a value which crosses an FPGA run's border (views whose
    NHWC bytes differ from the ONNX order). ``exact`` replaces the sum of ``seconds`` for runs that
    were lowered, ``interval`` the same in a stream that overlaps; ``entry`` is what the board needs
    besides to take in their inputs. ``misfits`` are sets of units that a machine's memories cannot
    hold; a set that contains one does not fit either. ``serial`` are runs whose program cannot
    overlap, on a machine that does. ``banned`` are runs that break a rule of the rig. All of these
    are keyed by the machine's :attr:`Machine.sort`. With ``share_max``, an FPGA's run may spend at
    most this share of its time on communication (by its exact seconds, else by the sum of its
    units', which is no larger: so it holds for sure). ``replicas`` are the numbers of copies that a
    run may have; ``splits[sort, unit, t]`` is the time of one of ``t`` shards of a unit, whose run
    holds nothing else. ``capacity[board]`` bounds the sum of ``needs`` of the machines used there.
    ``batch`` counts the items of the objective of that name. ``pace_max`` bounds every load.
    """

    units: tuple[str, ...]
    values: tuple[Value, ...]
    machines: tuple[Machine, ...]
    macs: tuple[int, ...]
    memory: tuple[int, ...]
    inner: frozenset[int] = frozenset()
    pins: dict[int, str] = field(default_factory=dict)
    objective: Objective = "throughput"
    batch: int = 1
    place: Literal["auto", "fpga"] = "auto"
    exact: dict[tuple[str, frozenset[int]], float] = field(default_factory=dict)
    interval: dict[tuple[str, frozenset[int]], float] = field(default_factory=dict)
    entry: dict[tuple[str, frozenset[int]], float] = field(default_factory=dict)
    misfits: dict[str, tuple[frozenset[int], ...]] = field(default_factory=dict)
    serial: frozenset[tuple[str, frozenset[int]]] = frozenset()
    banned: frozenset[tuple[str, frozenset[int]]] = frozenset()
    share_max: float | None = None
    pace_max: float | None = None
    replicas: tuple[int, ...] = (1,)
    splits: dict[tuple[str, int, int], float] = field(default_factory=dict)
    capacity: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def machine(self, name: str) -> Machine:
        return next(m for m in self.machines if m.name == name)

    def key(self, run: Run) -> tuple[str, frozenset[int]]:
        """What ``exact`` and its like know a run by."""
        return self.machine(run.machine).sort, frozenset(run.units)

    def overlaps(self, run: Run) -> bool:
        """Whether the run's transfers count beside its computation: in a stream of items."""
        return (
            self.machine(run.machine).overlap
            and self.objective != "latency"
            and self.key(run) not in self.serial
        )


@dataclass(frozen=True)
class Run:
    """Units (positions, in order) on ``machine`` and ``others``: replicas times shards of them."""

    machine: str
    units: tuple[int, ...]
    others: tuple[str, ...] = ()
    shards: int = 1

    @property
    def members(self) -> tuple[str, ...]:
        return (self.machine, *self.others)

    @property
    def replicas(self) -> int:
        return len(self.members) // self.shards


@dataclass(frozen=True)
class Weights:
    """An objective: ``bottleneck * Z + serial * (sum of runs' seconds) + sum of busy * load``.

    Z is the largest load. ``busy`` holds watts by machine; with seconds of load they are joules.
    """

    bottleneck: float
    serial: float
    busy: dict[str, float]


def weights(problem: Problem) -> Weights:
    """What the objective counts.

    throughput: seconds from item to item. latency: seconds of one item. batch: the first item's
    latency and then the pace for the others. energy: joules of an item in a stream, idle machines
    counted while they wait.
    """
    nothing = {m.name: 0.0 for m in problem.machines}
    if problem.objective == "latency":
        return Weights(0.0, 1.0, nothing)
    if problem.objective == "batch":
        return Weights(float(problem.batch - 1), 1.0, nothing)
    if problem.objective == "energy":
        idle = sum(m.idle_watts for m in problem.machines)
        return Weights(idle, 0.0, {m.name: m.busy_watts - m.idle_watts for m in problem.machines})
    return Weights(1.0, 0.0, nothing)


@dataclass(frozen=True)
class Group:
    """Machines that no plan can tell apart; ``machine`` stands for all, ``names`` are theirs."""

    machine: Machine
    names: tuple[str, ...]
    pinned: tuple[int, ...] = ()  # units that must be on it

    @property
    def count(self) -> int:
        return len(self.names)


def groups(problem: Problem) -> tuple[Group, ...]:
    """The machines that own one run at most, equal ones together (a pin sets one apart)."""
    found: dict[str, list[Machine]] = {}
    pinned: dict[str, list[int]] = {}
    for unit, name in sorted(problem.pins.items()):
        pinned.setdefault(name, []).append(unit)
    for machine in problem.machines:
        if not machine.pooled:
            alone = machine.name in pinned or machine.board in problem.capacity
            key = f"{machine.sort}\n{machine.name}" if alone else machine.sort
            found.setdefault(key, []).append(machine)
    return tuple(
        Group(ms[0], tuple(m.name for m in ms), tuple(pinned.get(ms[0].name, ())))
        for ms in found.values()
    )
