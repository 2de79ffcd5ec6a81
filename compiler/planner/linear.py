"""Exact plans over topological orders: a label-setting dynamic programme.

Family searched: the units of one topological order are cut into runs; every FPGA owns at most one
run, the rest goes to CPUs unit by unit. A state is (position, set of FPGAs used); a label is a
vector of loads (the largest FPGA load, each CPU's, each shared link's, limited memories), and only
labels that no other dominates are kept. The best label at the end is the optimum of the family, so
it is its own lower bound. Where the number of labels must be cut (several CPUs), the bound comes
from a relaxation in which the CPUs share their work perfectly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .problem import Machine, Problem, Run, check

__all__ = ["Solution", "orders", "solve"]

MAX_LABELS = 2_000  # kept per state; beyond, the weakest are dropped and the bound is relaxed


class _Label(NamedTuple):
    vector: tuple[float, ...]
    parent: _Label | None
    machine: str
    start: int
    stop: int


class _Interval(NamedTuple):
    stop: int
    compute: float
    received: float
    sent: float
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
            return Solution((), float("inf"), float("inf"), True)
    bound = float("inf")
    proven = True
    if goal is not None and all(s._labels(goal)[0] is None for s in searches):
        goal = None  # a CPU's memory forbids the most MACs: the plain optimum is what is left
    for search in searches:
        found = search.run(goal)
        bound = min(bound, found.lower_bound)
        proven = proven and found.proven
        if found.runs and (best is None or found.objective < best.objective):
            best = found
    if best is None:
        return Solution((), float("inf"), bound, proven)
    return replace(best, lower_bound=min(bound, best.objective), proven=proven)


class _Search:
    """One topological order: the units are renumbered along it."""

    def __init__(self, problem: Problem, order: Sequence[int]) -> None:
        self.problem = problem
        self.order = tuple(order)
        self.n = len(order)
        self.cpus = [m for m in problem.machines if m.kind == "cpu"]
        self.boards = [m for m in problem.machines if m.kind == "fpga"]
        self.groups = sorted(
            {m.channel.group for m in self.boards if m.channel and m.channel.group is not None}
        )
        self.limited = [m for m in self.cpus if m.memory_limit is not None]
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

    # -- intervals of an FPGA -----------------------------------------------------------------

    def _intervals(self, machine: Machine, start: int) -> Iterator[_Interval]:
        """Valid runs on an FPGA that begin at ``start``, grown one unit at a time."""
        p = self.problem
        channel = machine.channel
        assert channel is not None
        misfits = p.misfits.get(machine.name, ())
        entered: dict[int, int] = {}  # value -> how many inner units read it
        pending: dict[int, int] = {}  # value made inside -> readers still outside
        compute = 0.0
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
                else:
                    entered[k] = entered.get(k, 0) + (u in p.inner)
            for k in self.writes[u]:
                pending[k] = len(set(p.values[k].consumers))
            leaving = [k for k, left in pending.items() if left or p.values[k].is_output]
            # What enters stays: a barred value, or one that a reordering view reads, ends it all.
            if any(p.values[k].barred is not None or inner for k, inner in entered.items()):
                return
            if any(
                p.values[k].barred is not None or p.values[k].producer in p.inner for k in leaving
            ):
                continue
            received = sum(channel.seconds(p.values[k].nbytes) for k in entered)
            sent = sum(channel.seconds(p.values[k].nbytes) for k in leaving)
            exact = p.exact.get((machine.name, frozenset(members)), compute)
            yield _Interval(stop, exact, received, sent, macs)

    # -- MACs on FPGAs ------------------------------------------------------------------------

    def _reach(self) -> list[list[int]]:
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
        return self._reach()[0][0]

    def _cpu_seconds(self, machine: Machine, u: int) -> float | None:
        if self.problem.pins.get(u, machine.name) != machine.name:
            return None
        return machine.seconds[u]

    # -- labels -------------------------------------------------------------------------------

    def run(self, goal: int | None) -> Solution:
        """The optimum; with ``goal``, of the plans that put that many MACs on FPGAs."""
        if goal is not None and self.most_macs() < goal:
            return Solution((), float("inf"), float("inf"), True)
        label, cut = self._labels(goal)
        if label is None:
            return Solution((), float("inf"), 0.0 if cut else float("inf"), not cut)
        runs = self._runs(label)
        verdict = check(self.problem, runs)
        if verdict.violations:
            raise AssertionError(f"planner: a plan broke its own rules: {verdict.violations[0]}")
        bound = verdict.objective
        if cut:
            relaxed, _ = _Search(_relaxed(self.problem), self.order)._labels(goal)
            bound = min(bound, 0.0 if relaxed is None else self._value(relaxed.vector))
        return Solution(runs, verdict.objective, bound, not cut)

    def _value(self, vector: tuple[float, ...]) -> float:
        loads = vector[: len(vector) - len(self.limited)] if self.limited else vector
        return sum(loads) if self.problem.objective == "latency" else max(loads)

    def _labels(self, goal: int | None) -> tuple[_Label | None, bool]:
        p = self.problem
        latency = p.objective == "latency"
        fronts: list[dict[int, list[_Label]]] = [{} for _ in range(self.n + 1)]
        width = 1 + len(self.cpus) + len(self.groups) + len(self.limited)
        fronts[0][0] = [_Label((0.0,) * width, None, "", 0, 0)]
        reach = self._reach() if goal is not None else None
        gained: dict[tuple[int, int], int] = {(0, 0): 0}
        cut = False
        for pos in range(self.n):
            u = self.order[pos]
            for mask, labels in fronts[pos].items():
                kept, dropped = _pareto(labels, latency, len(self.limited))
                cut = cut or dropped
                made = gained[pos, mask] if reach is not None else 0
                for c, machine in enumerate(self.cpus):
                    seconds = self._cpu_seconds(machine, u)
                    if seconds is None:
                        continue
                    if reach is not None:
                        rest = reach[pos + 1][mask]
                        if rest < 0 or made + rest != goal:
                            continue
                        gained[pos + 1, mask] = made
                    for label in kept:
                        vector = list(label.vector)
                        vector[1 + c] += seconds
                        if not self._add_memory(vector, machine, u):
                            continue
                        fronts[pos + 1].setdefault(mask, []).append(
                            _Label(tuple(vector), label, machine.name, pos, pos + 1)
                        )
                for d, machine in enumerate(self.boards):
                    if mask >> d & 1:
                        continue
                    for interval in self.intervals[d][pos]:
                        bits = mask | 1 << d
                        if reach is not None:
                            rest = reach[interval.stop][bits]
                            if rest < 0 or made + interval.macs + rest != goal:
                                continue
                            gained[interval.stop, bits] = made + interval.macs
                        for label in kept:
                            loads = self._with_interval(label.vector, machine, interval, latency)
                            fronts[interval.stop].setdefault(bits, []).append(
                                _Label(loads, label, machine.name, pos, interval.stop)
                            )
        ends = [label for labels in fronts[self.n].values() for label in labels]
        if not ends:
            return None, cut
        return min(ends, key=lambda x: (self._value(x.vector), sum(x.vector))), cut

    def _with_interval(
        self, vector: tuple[float, ...], machine: Machine, interval: _Interval, latency: bool
    ) -> tuple[float, ...]:
        changed = list(vector)
        both = interval.received + interval.sent
        if latency:
            changed[0] += interval.compute + both
            return tuple(changed)
        if machine.overlap:
            load = max(interval.compute, interval.received, interval.sent)
        else:
            load = interval.compute + both
        changed[0] = max(changed[0], load)
        assert machine.channel is not None
        if machine.channel.group is not None:
            changed[1 + len(self.cpus) + self.groups.index(machine.channel.group)] += both
        return tuple(changed)

    def _add_memory(self, vector: list[float], machine: Machine, u: int) -> bool:
        if machine.memory_limit is None:
            return True
        k = len(vector) - len(self.limited) + self.limited.index(machine)
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


def _pareto(labels: list[_Label], latency: bool, limited: int) -> tuple[list[_Label], bool]:
    """Labels that no other dominates, and whether some of those had to be dropped as well.

    For the latency objective loads only count as their sum, so they are folded for the comparison.
    """

    def key(vector: tuple[float, ...]) -> tuple[float, ...]:
        split = len(vector) - limited
        return (sum(vector[:split]), *vector[split:]) if latency else vector

    rows = sorted(((key(x.vector), k) for k, x in enumerate(labels)), key=lambda r: r)
    kept: list[tuple[tuple[float, ...], int]] = []
    for vector, k in rows:
        if not any(all(a <= b for a, b in zip(v, vector, strict=True)) for v, _ in kept):
            kept.append((vector, k))
    dropped = len(kept) > MAX_LABELS
    if dropped:
        kept = sorted(kept, key=lambda r: (max(r[0]), r))[:MAX_LABELS]
    return [labels[k] for _, k in kept], dropped


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
