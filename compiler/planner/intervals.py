"""Costs of all runs that are intervals of one topological order, a row of them at a time.

For a beginning ``i`` the loads of ``[i, j)`` for all ``j`` are sums that differ by what crosses the
interval's ends. What is alive at a position is known from the start, what enters grows with ``j``;
both are kept up to date as ``i`` moves on, so a row costs time in proportion to its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .options import Choice, choices
from .problem import Channel, Problem, Value

__all__ = ["Row", "scan"]

Floats = npt.NDArray[np.float64]
INFINITE = float("inf")


@dataclass(frozen=True)
class Row:
    """Runs of ``order[start:stop]`` for ``stop`` = start + 1 and up; inf where impossible.

    ``load`` is that of each machine, ``seconds`` what an item waits.
    """

    choice: int
    load: Floats
    seconds: Floats


class _Moved:
    """What enters and leaves intervals over one channel, in seconds."""

    def __init__(self, channel: Channel, values: Sequence[Value], n: int) -> None:
        self.load = [channel.load_seconds(v) for v in values]
        self.read = [channel.read_seconds(v) for v in values]
        self.start = channel.start_seconds
        self.enters = np.zeros(n + 1)
        self.alive = np.zeros(n + 2)  # made before j, read at j or later
        self.older = np.zeros(n + 2)  # of these, made before i


def scan(problem: Problem, order: Sequence[int], bound: float = INFINITE) -> Iterator[list[Row]]:
    """For each beginning in turn a row for every kind of run; loads above ``bound`` left out."""
    yield from _Scan(problem, order).rows(bound)


class _Scan:
    def __init__(self, problem: Problem, order: Sequence[int]) -> None:
        self.problem = problem
        self.order = order
        self.n = n = len(order)
        self.options = choices(problem)
        self.place = place = {u: k for k, u in enumerate(order)}
        self.values = [v for v in problem.values if v.consumers or v.is_output]
        self.made = [-1 if v.producer is None else place[v.producer] for v in self.values]
        self.read = [sorted({place[c] for c in v.consumers}) for v in self.values]
        self.last = [n if v.is_output else r[-1]
                     for v, r in zip(self.values, self.read, strict=True)]  # fmt: skip
        self.made_at: list[list[int]] = [[] for _ in range(n)]
        self.read_at: list[list[int]] = [[] for _ in range(n)]
        for k, (m, r) in enumerate(zip(self.made, self.read, strict=True)):
            if m >= 0:
                self.made_at[m].append(k)
            for p in r:
                self.read_at[p].append(k)
        self.channels = {c.machine.channel for c in self.options if c.machine.channel is not None}
        self.moved = {c: _Moved(c, self.values, n) for c in self.channels}
        self._barriers()
        for k, m in enumerate(self.made):
            for moved in self.moved.values():
                if m >= 0:
                    moved.alive[m + 1] += moved.read[k]
                    moved.alive[self.last[k] + 1] -= moved.read[k]
                elif self.read[k]:
                    moved.enters[self.read[k][0]] += moved.load[k]
        for moved in self.moved.values():
            moved.alive = np.cumsum(moved.alive)
        self.ends = [self._ends(c) for c in self.options]
        self.sums = [
            np.concatenate([[0.0], np.cumsum([c.seconds[u] or 0.0 for u in order])])
            for c in self.options
        ]
        self.memory = np.concatenate([[0.0], np.cumsum([problem.memory[u] for u in order])])
        self.known = self._known()

    def _barriers(self) -> None:
        """Counts of values that may not enter or leave an FPGA's run, kept like seconds."""
        n, p = self.n, self.problem
        self.bad_enter = np.zeros(n + 1, np.int64)
        self.bad_alive = np.zeros(n + 2, np.int64)
        self.bad_older = np.zeros(n + 2, np.int64)
        self.bad_read: list[list[int]] = []
        self.bad_made: list[bool] = []
        for k, value in enumerate(self.values):
            barred = value.barred is not None
            self.bad_read.append([c for c in self.read[k] if barred or self.order[c] in p.inner])
            self.bad_made.append(barred or value.producer in p.inner)
            if self.made[k] < 0:
                self.bad_enter[self.bad_read[k]] += 1
            elif self.bad_made[k]:
                self.bad_alive[self.made[k] + 1] += 1
                self.bad_alive[self.last[k] + 1] -= 1
        self.bad_alive = np.cumsum(self.bad_alive)

    def _ends(self, choice: Choice) -> list[int]:
        """For each beginning, the largest end that supported units and known misfits allow."""
        n = self.n
        ends = [n] * (n + 1)
        at = n
        for i in range(n - 1, -1, -1):
            if choice.seconds[self.order[i]] is None:
                at = i
            ends[i] = at
        if choice.machine.kind == "fpga" and choice.shards == 1:
            limit = [n] * (n + 1)
            for units in self.problem.misfits.get(choice.machine.sort, ()):
                places = [self.place[u] for u in units]
                limit[min(places)] = min(limit[min(places)], max(places))
            for i in range(n - 1, -1, -1):
                limit[i] = min(limit[i], limit[i + 1])
            ends = [min(a, b) for a, b in zip(ends, limit, strict=True)]
        if choice.shards > 1:
            ends = [min(e, i + 1) for i, e in enumerate(ends)]
        return ends

    def _known(self) -> dict[tuple[str, int], list[tuple[int, frozenset[int]]]]:
        """(sort, beginning) -> (end, units) of the sets that something is known about."""
        p = self.problem
        found: dict[tuple[str, int], list[tuple[int, frozenset[int]]]] = {}
        for sort, units in dict.fromkeys([*p.exact, *p.banned, *p.serial]):
            places = [self.place[u] for u in units]
            if max(places) - min(places) + 1 == len(places):
                found.setdefault((sort, min(places)), []).append((max(places) + 1, units))
        return found

    def rows(self, bound: float) -> Iterator[list[Row]]:
        for i in range(self.n):
            yield [r for k in range(len(self.options)) if (r := self._row(k, i, bound)) is not None]
            self._advance(i)

    def _advance(self, i: int) -> None:
        """From beginnings at ``i`` to those at ``i + 1``."""
        for k in self.read_at[i]:
            rest = [p for p in self.read[k] if p > i] if self.made[k] < i else []
            for moved in self.moved.values() if rest else ():
                moved.enters[rest[0]] += moved.load[k]
        for k in self.made_at[i]:
            last = self.last[k]
            for moved in self.moved.values():
                moved.older[i + 1 : last + 1] += moved.read[k]
                if self.read[k]:
                    moved.enters[self.read[k][0]] += moved.load[k]
            self.bad_enter[self.bad_read[k]] += 1
            if self.bad_made[k]:
                self.bad_older[i + 1 : last + 1] += 1

    def _row(self, k: int, i: int, bound: float) -> Row | None:
        p, choice, sums = self.problem, self.options[k], self.sums[k]
        machine = choice.machine
        end = self.ends[k][i]
        overlap = machine.overlap and p.objective != "latency"
        saving = machine.saving if overlap else 0.0
        if bound < INFINITE:
            most = sums[i] + bound * choice.replicas + saving
            end = min(end, int(np.searchsorted(sums, most, side="right")) - 1)
        if machine.kind == "fpga":
            bad = np.flatnonzero(self.bad_enter[i:end])
            if len(bad):
                end = min(end, i + int(bad[0]))
        if machine.memory_limit is not None:
            most = self.memory[i] + machine.memory_limit * choice.shards
            end = min(end, int(np.searchsorted(self.memory, most, side="right")) - 1)
        if end <= i:
            return None
        stops = slice(i + 1, end + 1)
        compute = sums[stops] - sums[i]
        received = sent = np.zeros(len(compute))
        if machine.channel is not None:
            moved = self.moved[machine.channel]
            received = moved.start + np.cumsum(moved.enters[i:end])
            sent = np.maximum(moved.alive[stops] - moved.older[stops], 0.0) / choice.shards
        interval = np.maximum(compute - saving, 0.0)
        together = np.zeros(len(compute), bool) if overlap else np.ones(len(compute), bool)
        closed = np.zeros(len(compute), bool)
        if machine.kind == "fpga":
            closed = self.bad_alive[stops] > self.bad_older[stops]
            if choice.shards == 1:
                received = self._correct(k, i, compute, interval, received, together, closed)
        duplex = machine.channel is not None and machine.channel.duplex
        moved_most = np.maximum(received, sent) if duplex else received + sent
        seconds = compute + received + sent
        load = np.where(together, seconds, np.maximum(interval, moved_most))
        if p.share_max is not None and machine.kind == "fpga":
            busy = np.where(together, compute, interval)
            both = received + sent
            closed |= both > p.share_max * (busy + both) * (1 + 1e-12)
        load = np.where(closed, INFINITE, load / choice.replicas)
        return Row(k, load, seconds)

    def _correct(
        self, k: int, i: int, compute: Floats, interval: Floats, received: Floats,
        together: npt.NDArray[np.bool_], closed: npt.NDArray[np.bool_],
    ) -> Floats:  # fmt: skip
        """Put in what is known of runs that were lowered or judged; the received seconds anew."""
        p, sort = self.problem, self.options[k].machine.sort
        known = self.known.get((sort, i), ())
        if known:
            received = received.copy()
        for stop, units in known:
            at = stop - i - 1
            if at >= len(compute):
                continue
            key = sort, units
            if key in p.exact:
                compute[at] = p.exact[key]
                interval[at] = p.interval.get(key, p.exact[key])
                received[at] += p.entry.get(key, 0.0)
            together[at] |= key in p.serial
            closed[at] |= key in p.banned
        return received
