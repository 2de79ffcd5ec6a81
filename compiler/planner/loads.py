"""What a plan costs, as constraints: loads of runs and machines, shared links, the objective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .limits import is_exactly, macs_on_fpgas
from .model import negated
from .options import Choice
from .problem import Weights, weights

if TYPE_CHECKING:
    from .formulate import Formulation

__all__ = ["add_loads"]

_Terms = list[tuple[float, Any]]
INFINITE = float("inf")


def add_loads(f: Formulation, *, most_macs: bool) -> None:
    """Every load at most Z (and the bound), and what is minimised."""
    model = f.model
    z = model.real(min(f.bound, _everything(f)))
    if most_macs:
        model.objective_terms = [(-float(m), x) for m, x in macs_on_fpgas(f)]
        if f.bound == INFINITE:
            return
    weight = weights(f.problem)
    crossings = _Crossings(f)
    shared: dict[str, list[tuple[float, int]]] = {}
    for p in f.places.single:
        for k, choice in enumerate(f.options):
            _Run(f, crossings, p, k, choice, weight).add(z, shared)
    for _, parts in sorted(shared.items()):
        model.row([], [*parts, (-1.0, z)], 0.0)
    for c, machine in enumerate(f.pooled):
        terms = [
            (s, f.z[u, c]) for u, s in enumerate(machine.seconds)
            if s is not None and (u, c) in f.z
        ]  # fmt: skip
        model.row(terms, [(-1.0, z)], 0.0)
        rate = weight.serial + weight.busy[machine.name]
        if not most_macs:
            model.objective_terms += [(rate * s, x) for s, x in terms if rate]
    if not most_macs:
        model.objective.append((weight.bottleneck, z))


def _everything(f: Formulation) -> float:
    """More than any load can be: all units on the slowest machine, all values moved."""
    p = f.problem
    rows = [c.seconds for c in f.options] + [m.seconds for m in f.pooled]
    compute = sum(max((r[u] or 0.0 for r in rows), default=0.0) for u in range(len(p.units)))
    moved = 0.0
    for channel in {c.machine.channel for c in f.options if c.machine.channel is not None}:
        both = sum(channel.load_seconds(v) + channel.read_seconds(v) for v in p.values)
        moved = max(moved, channel.start_seconds + both)
    known = max(p.exact.values(), default=0.0) + max(p.interval.values(), default=0.0)
    shards = max((c.shards for c in f.options), default=1)
    singles = max(1, f.places.singles)
    return compute + known + (moved + max(p.entry.values(), default=0.0)) * shards * singles


def _sum(terms: _Terms) -> float:
    return sum(max(c, 0.0) for c, x in terms if x is not False)


class _Crossings:
    """Literals for values that enter or leave the run at a place; made when first asked for."""

    def __init__(self, f: Formulation) -> None:
        self.f = f
        channels = [c.machine.channel for c in f.options if c.machine.channel is not None]
        # A value that costs the same both ways, and never both at once, needs one literal only.
        self.one = all(
            c.load_seconds(v) == c.read_seconds(v) and not c.duplex
            for c in channels
            for v in f.problem.values
        ) and all(c.shards == 1 for c in f.options)
        self.windows = []
        for value in f.problem.values:
            ends = [*value.consumers, *([] if value.producer is None else [value.producer])]
            low = min((f.first[u] for u in ends), default=0)
            high = max((f.last[u] for u in ends), default=-1)
            still = low == high and not value.is_output and value.producer is not None
            self.windows.append(range(0) if still else range(low, high + 1))
        self._known: dict[tuple[int, int], tuple[Any, Any]] = {}

    def at(self, k: int, place: int) -> tuple[Any, Any]:
        """(value k enters the run at ``place``, it leaves it): true where it does."""
        key = k, place
        if key not in self._known:
            self._known[key] = self._make(k, place)
        return self._known[key]

    def _make(self, k: int, place: int) -> tuple[Any, Any]:
        f, value = self.f, self.f.problem.values[k]
        if place not in self.windows[k]:
            return False, False
        made = False if value.producer is None else f.at(value.producer, place)
        read = [f.at(c, place) for c in value.consumers]
        enter = [(negated(x), made) for x in read]
        leave = [(negated(made), x) for x in read]
        if value.is_output:
            leave.append((negated(made), False))
        if self.one:
            both = self._implied([*enter, *leave])
            return both, False
        return self._implied(enter), self._implied(leave)

    def _implied(self, pairs: list[tuple[Any, Any]]) -> Any:
        """A literal that is true unless each pair holds one that is."""
        kept = [(a, b) for a, b in dict.fromkeys(pairs) if a is not True and b is not True]
        if not kept:
            return False
        if any(a is False and b is False for a, b in kept):
            return True
        found = self.f.model.boolean()
        for a, b in kept:
            self.f.model.clause(found, a, b)
        return found


class _Run:
    """The run at a single place, if it is of one kind: its seconds and what follows from them."""

    def __init__(
        self, f: Formulation, crossings: _Crossings, place: int, k: int, choice: Choice,
        weight: Weights,
    ) -> None:  # fmt: skip
        self.f = f
        self.place = place
        self.choice = choice
        self.machine = choice.machine
        self.weight = weight
        self.here = [f.w[place][k]]
        self.compute: _Terms = [
            (s, f.at(u, place))
            for u, s in enumerate(choice.seconds)
            if s is not None and f.first[u] <= place <= f.last[u]
        ]
        self.received: _Terms = []
        self.sent: _Terms = []
        channel = self.machine.channel
        if channel is None:
            return
        self.received.append((channel.start_seconds, True))
        for v, value in enumerate(f.problem.values):
            if place in crossings.windows[v]:
                enters, leaves = crossings.at(v, place)
                self.received.append((channel.load_seconds(value), enters))
                self.sent.append((channel.read_seconds(value) / choice.shards, leaves))

    def add(self, z: int, shared: dict[str, list[tuple[float, int]]]) -> None:
        f, machine, model = self.f, self.machine, self.f.model
        interval = list(self.compute)
        if machine.kind == "fpga" and self.choice.shards == 1:
            self._add_exact(interval)
        moved = self.received + self.sent
        parts: list[tuple[_Terms, float]] = [(self.compute + moved, 0.0)]
        overlap = machine.overlap and f.problem.objective != "latency"
        if overlap:
            assert machine.channel is not None
            duplex = machine.channel.duplex
            parts = [(interval, machine.saving)]
            parts += [(self.received, 0.0), (self.sent, 0.0)] if duplex else [(moved, 0.0)]
            self._add_serial(z, self.compute + moved)
        for terms, free in parts:
            model.row(terms, [(-float(self.choice.replicas), z)], free, self.here)
        self._add_rule(interval if overlap else self.compute, moved,
                       machine.saving if overlap else 0.0)  # fmt: skip
        if machine.channel is not None and machine.channel.group is not None:
            shards = float(self.choice.shards)
            terms = [(c * shards, x) for c, x in moved]
            link = model.real(_sum(terms))
            model.row(terms, [(-1.0, link)], 0.0, self.here)
            shared.setdefault(machine.channel.group, []).append((1.0, link))
        self._add_objective(parts, self.compute + moved)

    def _add_exact(self, interval: _Terms) -> None:
        """Seconds of lowered runs in place of the sums, where the run is one of those."""
        f, p = self.f, self.f.problem
        sort = self.machine.sort
        for name, units in p.exact:
            other = is_exactly(f, units, self.place) if name == sort else None
            if other is None:
                continue
            key = name, units
            plain = sum(self.machine.seconds[u] or 0.0 for u in units)
            stream = p.interval.get(key, p.exact[key]) + self.machine.saving
            more = (p.exact[key] - plain, stream - plain, p.entry.get(key, 0.0))
            match = f.model.boolean()
            f.model.clause(match, *other)
            if min(more) < 0:
                for literal in other:
                    f.model.clause(-match, negated(literal))
            self.compute.append((more[0], match))
            interval.append((more[1], match))
            self.received.append((more[2], match))

    def _add_serial(self, z: int, together: _Terms) -> None:
        """Runs whose program cannot overlap take the sum, on a machine that does."""
        f = self.f
        for name, units in sorted(f.problem.serial, key=lambda s: (s[0], sorted(s[1]))):
            other = is_exactly(f, units, self.place) if name == self.machine.sort else None
            if other is not None:
                match = f.model.boolean()
                f.model.clause(match, *other)
                f.model.row(together, [(-float(self.choice.replicas), z)], 0.0, [*self.here, match])

    def _add_rule(self, compute: _Terms, moved: _Terms, free: float) -> None:
        share = self.f.problem.share_max
        if share is None or self.machine.kind != "fpga":
            return
        terms = [((1.0 - share) * c, x) for c, x in moved] + [(-share * c, x) for c, x in compute]
        self.f.model.row(terms, [], -share * free, self.here)

    def _add_objective(self, parts: list[tuple[_Terms, float]], together: _Terms) -> None:
        """The run's own share: what one item waits, joules beyond idling."""
        model = self.f.model
        joules = self.weight.busy[self.machine.name] * self.choice.shards
        if self.weight.serial:
            seconds = model.real(_sum(together))
            model.row(together, [(-1.0, seconds)], 0.0, self.here)
            model.objective.append((self.weight.serial, seconds))
        if joules:
            load = model.real(_sum(together))
            for terms, free in parts:
                model.row(terms, [(-1.0, load)], free, self.here)
            model.objective.append((joules, load))
