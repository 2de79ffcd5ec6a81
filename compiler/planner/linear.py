"""Exact plans over topological orders: a dynamic programme inside a search for the bottleneck.

Family searched: the units of one topological order are cut into runs; every FPGA owns at most one
run, the rest goes to CPUs unit by unit. For a bound Z on the FPGAs' loads, the programme finds the
least load of the CPUs (and shared links): a state is (position, set of FPGAs used), a label is a
vector of loads (each CPU's, each shared link's, limited memories), and only labels that no other
dominates are kept; with one CPU that is one label a state. That least load falls as Z grows, so
bisection over the loads that FPGA runs can have finds the optimum of the family, which is its own
lower bound.
Where the number of labels must be cut (several CPUs), the bound comes from a relaxation in which
the CPUs share their work perfectly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from .problem import Machine, Problem, Run, check

__all__ = ["Solution", "orders", "solve"]

# Labels kept per state, for two loads and for more (where sorting does not help); beyond, the
# weakest are dropped and the bound is relaxed.
MAX_LABELS = 500
MAX_LABELS_WIDE = 64
INFINITE = float("inf")


class _Label(NamedTuple):
    vector: tuple[float, ...]
    parent: _Label | None
    machine: str
    start: int
    stop: int


class _Interval(NamedTuple):
    stop: int
    load: float  # of the FPGA, as the objective counts it
    moved: float  # seconds on its link
    macs: int


@dataclass(frozen=True)
class Solution:
    """``runs`` is empty when nothing is feasible; ``lower_bound`` holds for the whole family."""

    runs: tuple[Run, ...]
    objective: float
    lower_bound: float
    proven: bool  # lower_bound == objective by exhaustion

    @property
    def gap(self) -> float:
        return 0.0 if self.objective <= 0 else 1.0 - self.lower_bound / self.objective


def orders(problem: Problem) -> list[tuple[int, ...]]:
    """Topological orders to search: as given, and two that keep FPGA-capable units together."""
    n = len(problem.units)
    readers: list[list[int]] = [[] for _ in range(n)]
    blockers = [0] * n
    for value in problem.values:
        if value.producer is not None:
            for c in set(value.consumers):
                readers[value.producer].append(c)
                blockers[c] += 1
    boards = [m for m in problem.machines if m.kind == "fpga"]
    able = [any(m.seconds[u] is not None for m in boards) for u in range(n)]

    def walk(start_able: bool) -> tuple[int, ...]:
        left = list(blockers)
        ready = [u for u in range(n) if left[u] == 0]
        mode = start_able
        found: list[int] = []
        while ready:
            same = [u for u in ready if able[u] == mode]
            if not same:
                mode = not mode
                continue
            u = min(same)
            ready.remove(u)
            found.append(u)
            for c in readers[u]:
                left[c] -= 1
                if left[c] == 0:
                    ready.append(c)
        return tuple(found)

    return list(dict.fromkeys([tuple(range(n)), walk(False), walk(True)]))


def solve(problem: Problem) -> Solution:
    """The best plan over :func:`orders`; every answer has passed :func:`check`.

    With ``place="fpga"`` the family is cut to the plans with the most MACs on FPGAs first.
    """
    best: Solution | None = None
    searches = [_Search(problem, order) for order in orders(problem)]
    goal: int | None = None
    if problem.place == "fpga":
        goal = max(search.most_macs() for search in searches)
        if goal < 0:
            return Solution((), INFINITE, INFINITE, True)
    bound = INFINITE
    proven = True
    if goal is not None and all(s.best(goal)[0] is None for s in searches):
        goal = None  # a CPU's memory forbids the most MACs: the plain optimum is what is left
    for search in searches:
        found = search.run(goal)
        bound = min(bound, found.lower_bound)
        proven = proven and found.proven
        if found.runs and (best is None or found.objective < best.objective):
            best = found
    if best is None:
        return Solution((), INFINITE, bound, proven)
    return replace(best, lower_bound=min(bound, best.objective), proven=proven)


class _Search:
    """One topological order, its intervals on FPGAs and what can be reached."""

    def __init__(self, problem: Problem, order: Sequence[int]) -> None:
        self.problem = problem
        self.order = tuple(order)
        self.n = len(order)
        self.latency = problem.objective == "latency"
        self.cpus = [m for m in problem.machines if m.kind == "cpu"]
        self.boards = [m for m in problem.machines if m.kind == "fpga"]
        self.groups = sorted(
            {m.channel.group for m in self.boards if m.channel and m.channel.group is not None}
        )
        self.limited = [m for m in self.cpus if m.memory_limit is not None]
        # Loads of a label come first: the sum for latency, else CPUs and shared links.
        self.loads = 1 if self.latency else len(self.cpus) + len(self.groups)
        self.reads: list[list[int]] = [[] for _ in order]
        self.writes: list[list[int]] = [[] for _ in order]
        for k, value in enumerate(problem.values):
            for c in set(value.consumers):
                self.reads[c].append(k)
            if value.producer is not None:
                self.writes[value.producer].append(k)
        self.intervals = [
            [list(self._intervals(m, start)) for start in range(self.n)] for m in self.boards
        ]

    # Intervals of an FPGA

    def _intervals(self, machine: Machine, start: int) -> Iterator[_Interval]:
        """Valid runs on an FPGA that begin at ``start``, grown one unit at a time."""
        p = self.problem
        channel = machine.channel
        assert channel is not None
        misfits = p.misfits.get(machine.name, ())
        known = (*p.exact, *p.banned)
        sizes = {len(units) for name, units in known if name == machine.name}
        entered: set[int] = set()
        pending: dict[int, int] = {}  # value made inside and still read outside -> readers left
        compute = 0.0
        received = channel.start_seconds
        macs = 0
        members: set[int] = set()
        for stop in range(start + 1, self.n + 1):
            u = self.order[stop - 1]
            seconds = machine.seconds[u]
            if seconds is None or p.pins.get(u, machine.name) != machine.name:
                return
            members.add(u)
            if any(misfit <= members for misfit in misfits):
                return
            compute += seconds
            macs += p.macs[u]
            for k in self.reads[u]:
                value = p.values[k]
                if value.producer is not None and value.producer in members:
                    pending[k] -= 1
                    if pending[k] == 0 and not value.is_output:
                        del pending[k]
                    continue
                # What enters stays: a barred value, or one that a reordering view reads, ends it.
                if value.barred is not None or u in p.inner:
                    return
                if k not in entered:
                    entered.add(k)
                    received += channel.load_seconds(value)
            for k in self.writes[u]:
                left = len(set(p.values[k].consumers))
                if left or p.values[k].is_output:
                    pending[k] = left
            if any(p.values[k].barred is not None or p.values[k].producer in p.inner
                   for k in pending):  # fmt: skip
                continue
            sent = sum(channel.read_seconds(p.values[k]) for k in pending)
            saving = machine.saving if machine.overlap and not self.latency else 0.0
            exact, taken = max(compute - saving, 0.0), received
            if len(members) in sizes:
                key = machine.name, frozenset(members)
                if key in p.banned:
                    continue
                exact = p.exact.get(key, exact)
                taken += p.entry.get(key, 0.0)
            moved = taken + sent
            load = exact + moved
            if p.share_max is not None and moved > p.share_max * load * (1 + 1e-12):
                continue
            if machine.overlap and not self.latency:
                key = machine.name, frozenset(members)
                if not (len(members) in sizes and key in p.serial):
                    load = max(exact, moved)
            yield _Interval(stop, load, moved, macs)

    # MACs on FPGAs

    @cached_property
    def reach(self) -> list[list[int]]:
        """``reach[pos][mask]``: most MACs on FPGAs not in ``mask`` from ``pos`` on; -1 impossible.

        Memory limits of CPUs are left out: the figure may be too high where there are some.
        """
        masks = 1 << len(self.boards)
        reach = [[-1] * masks for _ in range(self.n + 1)]
        reach[self.n] = [0] * masks
        for pos in range(self.n - 1, -1, -1):
            u = self.order[pos]
            on_cpu = any(self._cpu_seconds(m, u) is not None for m in self.cpus)
            for mask in range(masks):
                best = reach[pos + 1][mask] if on_cpu else -1
                for d in range(len(self.boards)):
                    if mask >> d & 1:
                        continue
                    for interval in self.intervals[d][pos]:
                        rest = reach[interval.stop][mask | 1 << d]
                        if rest >= 0:
                            best = max(best, rest + interval.macs)
                reach[pos][mask] = best
        return reach

    def most_macs(self) -> int:
        return self.reach[0][0]

    def _cpu_seconds(self, machine: Machine, u: int) -> float | None:
        if self.problem.pins.get(u, machine.name) != machine.name:
            return None
        return machine.seconds[u]

    # The search

    def run(self, goal: int | None) -> Solution:
        """The optimum; with ``goal``, of the plans that put that many MACs on FPGAs."""
        if goal is not None and self.most_macs() < goal:
            return Solution((), INFINITE, INFINITE, True)
        label, _, cut = self.best(goal)
        if label is None:
            return Solution((), INFINITE, 0.0 if cut else INFINITE, not cut)
        runs = self._runs(label)
        verdict = check(self.problem, runs)
        if verdict.violations:
            raise AssertionError(f"planner: a plan broke its own rules: {verdict.violations[0]}")
        bound = verdict.objective
        if cut:
            _, relaxed, _ = _Search(_relaxed(self.problem), self.order).best(goal)
            bound = min(bound, relaxed)
        return Solution(runs, verdict.objective, bound, not cut)

    def best(self, goal: int | None) -> tuple[_Label | None, float, bool]:
        """Best label, its objective, and whether labels were dropped on the way."""
        if self.latency:
            label, value, cut = self._labels(goal, INFINITE)
            return label, value, cut
        loads = {0.0} | {i.load for rows in self.intervals for row in rows for i in row}
        limits = sorted(loads)
        found: tuple[_Label | None, float] = (None, INFINITE)
        cut = False
        low, high = 0, len(limits) - 1
        while low <= high:
            middle = (low + high) // 2
            label, rest, dropped = self._labels(goal, limits[middle], found[1])
            cut = cut or dropped
            value = max(rest, self._board_load(label)) if label is not None else INFINITE
            if label is not None and value < found[1]:
                found = label, value
            if rest <= limits[middle]:
                high = middle - 1
            else:
                low = middle + 1
        return (*found, cut)

    def _board_load(self, label: _Label) -> float:
        """The largest FPGA load on the way to a label."""
        worst = 0.0
        names = {m.name: d for d, m in enumerate(self.boards)}
        at: _Label | None = label
        while at is not None and at.parent is not None:
            if at.machine in names:
                rows = self.intervals[names[at.machine]][at.start]
                worst = max(worst, next(i.load for i in rows if i.stop == at.stop))
            at = at.parent
        return worst

    def _labels(
        self, goal: int | None, limit: float, known: float = INFINITE
    ) -> tuple[_Label | None, float, bool]:
        """Least load of CPUs and shared links (latency: of all) with FPGA loads up to ``limit``.

        Labels above ``known``, the objective of a plan that was found, are of no use.
        """
        fronts: list[dict[int, list[_Label]]] = [{} for _ in range(self.n + 1)]
        fronts[0][0] = [_Label((0.0,) * (self.loads + len(self.limited)), None, "", 0, 0)]
        reach = None if goal is None else self.reach
        gained: dict[tuple[int, int], int] = {(0, 0): 0}
        cut = False
        for pos in range(self.n):
            u = self.order[pos]
            here, fronts[pos] = fronts[pos], {}
            for mask, labels in here.items():
                useful = [x for x in labels if max(x.vector[: self.loads]) <= known]
                kept, dropped = _pareto(useful)
                if not kept:
                    continue
                cut = cut or dropped
                made = 0
                if reach is not None and goal is not None:
                    made = gained[pos, mask]
                    if reach[pos + 1][mask] >= 0 and made + reach[pos + 1][mask] == goal:
                        gained[pos + 1, mask] = made
                        self._on_cpu(fronts, kept, pos, mask, u)
                else:
                    self._on_cpu(fronts, kept, pos, mask, u)
                for d, machine in enumerate(self.boards):
                    if mask >> d & 1:
                        continue
                    bits = mask | 1 << d
                    for interval in self.intervals[d][pos]:
                        if interval.load > limit:
                            continue
                        stop = interval.stop
                        if reach is not None:
                            rest = reach[stop][bits]
                            if rest < 0 or made + interval.macs + rest != goal:
                                continue
                            gained[stop, bits] = made + interval.macs
                        front = fronts[stop].setdefault(bits, [])
                        for label in kept:
                            vector = self._with_interval(label.vector, machine, interval)
                            if not self.single:
                                front.append(_Label(vector, label, machine.name, pos, stop))
                            elif not front or vector < front[0].vector:
                                front[:] = [_Label(vector, label, machine.name, pos, stop)]
        ends = [label for labels in fronts[self.n].values() for label in labels]
        if not ends:
            return None, INFINITE, cut
        label = min(ends, key=lambda x: (max(x.vector[: self.loads]), sum(x.vector)))
        return label, max(label.vector[: self.loads]), cut

    @cached_property
    def single(self) -> bool:
        """Whether labels have one load only, so that one label a state is enough."""
        return self.loads + len(self.limited) == 1

    def _on_cpu(
        self, fronts: list[dict[int, list[_Label]]], kept: list[_Label], pos: int, mask: int, u: int
    ) -> None:
        for c, machine in enumerate(self.cpus):
            seconds = self._cpu_seconds(machine, u)
            if seconds is None:
                continue
            at = 0 if self.latency else c
            front = fronts[pos + 1].setdefault(mask, [])
            for label in kept:
                vector = list(label.vector)
                vector[at] += seconds
                if not self._add_memory(vector, machine, u):
                    continue
                if not self.single:
                    front.append(_Label(tuple(vector), label, machine.name, pos, pos + 1))
                elif not front or vector[0] < front[0].vector[0]:
                    front[:] = [_Label(tuple(vector), label, machine.name, pos, pos + 1)]

    def _with_interval(
        self, vector: tuple[float, ...], machine: Machine, interval: _Interval
    ) -> tuple[float, ...]:
        if self.latency:
            return (vector[0] + interval.load, *vector[1:])
        assert machine.channel is not None
        if machine.channel.group is None:
            return vector
        changed = list(vector)
        changed[len(self.cpus) + self.groups.index(machine.channel.group)] += interval.moved
        return tuple(changed)

    def _add_memory(self, vector: list[float], machine: Machine, u: int) -> bool:
        if machine.memory_limit is None:
            return True
        k = self.loads + self.limited.index(machine)
        vector[k] += self.problem.memory[u]
        return vector[k] <= machine.memory_limit

    def _runs(self, label: _Label) -> tuple[Run, ...]:
        steps: list[_Label] = []
        at: _Label | None = label
        while at is not None and at.parent is not None:
            steps.append(at)
            at = at.parent
        runs: list[Run] = []
        for step in reversed(steps):
            units = self.order[step.start : step.stop]
            if runs and runs[-1].machine == step.machine:
                runs[-1] = Run(step.machine, runs[-1].units + units)
            else:
                runs.append(Run(step.machine, units))
        return tuple(runs)


def _pareto(labels: list[_Label]) -> tuple[list[_Label], bool]:
    """Labels that no other dominates, and whether some of those had to be dropped as well."""
    if len(labels) <= 1:
        return labels, False
    rows = sorted(labels, key=lambda x: x.vector)
    size = len(rows[0].vector)
    kept: list[_Label] = []
    for row in rows:
        if size <= 2:  # sorted: the last one kept is the best in the other load
            dominated = bool(kept) and kept[-1].vector[-1] <= row.vector[-1]
        else:
            dominated = any(
                all(a <= b for a, b in zip(k.vector, row.vector, strict=True)) for k in kept
            )
        if not dominated:
            kept.append(row)
    limit = MAX_LABELS if size <= 2 else min(MAX_LABELS, MAX_LABELS_WIDE)
    if len(kept) <= limit:
        return kept, False
    return sorted(kept, key=lambda x: (max(x.vector), x.vector))[:limit], True


def _relaxed(problem: Problem) -> Problem:
    """One CPU with the best time of every unit divided by the number of CPUs; no shared links."""
    cpus = [m for m in problem.machines if m.kind == "cpu"]
    share = 1 if problem.objective == "latency" else len(cpus)
    names = {m.name for m in cpus}

    def best(u: int) -> float | None:
        pin = problem.pins.get(u)
        allowed = [m.seconds[u] for m in cpus if pin in (None, m.name)]
        known = [s for s in allowed if s is not None]
        return min(known) / share if known else None

    one = Machine("cpus", "cpu", tuple(best(u) for u in range(len(problem.units))))
    boards = tuple(
        replace(m, channel=replace(m.channel, group=None))
        for m in problem.machines
        if m.kind == "fpga" and m.channel is not None
    )
    pins = {u: ("cpus" if name in names else name) for u, name in problem.pins.items()}
    return replace(problem, machines=(one, *boards), pins=pins)
