"""Plans along topological orders, by dynamic programming: quick, and where the proof starts from.

The units of an order are cut into runs. A state is (position, how many machines of each group are
used); machines that are equal need no names. Without pooled machines the smallest possible largest
load is found directly; with them, what is minimised is the host's work under a limit on the other
loads, and bisection finds the limit. Several pooled machines are first taken as one that is as fast
as all of them and share its work afterwards. Every plan is judged by ``check``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .check import Evaluation, check
from .intervals import Row, scan
from .options import Choice, choices
from .orders import orders
from .problem import Problem, Run, groups, weights
from .share import share_pool
from .windows import least_work

__all__ = ["Found", "solve"]

Floats = npt.NDArray[np.float64]
INFINITE = float("inf")
BISECTIONS = 30
# Above this many intervals rows are not kept but made again, with those cut off that are too long.
KEPT_UNITS = 1500


@dataclass(frozen=True)
class Found:
    """A plan and what ``check`` says of it; ``runs`` is empty when none was found."""

    runs: tuple[Run, ...]
    verdict: Evaluation | None

    @property
    def objective(self) -> float:
        return INFINITE if self.verdict is None else self.verdict.objective

    @property
    def macs(self) -> int:
        return -1 if self.verdict is None else self.verdict.fpga_macs


def better(problem: Problem, a: Found, b: Found) -> bool:
    """Whether plan ``a`` is preferred to ``b``."""
    if problem.place == "fpga" and a.macs != b.macs:
        return a.macs > b.macs
    return a.objective < b.objective


def judged(problem: Problem, runs: tuple[Run, ...] | None) -> Found:
    """The plan with its evaluation, or none where a condition is broken."""
    if not runs:
        return Found((), None)
    verdict = check(problem, runs)
    return Found((), None) if verdict.violations else Found(runs, verdict)


def solve(problem: Problem) -> Found:
    """The best plan over :func:`~trivet.compiler.planner.orders.orders`."""
    best = Found((), None)
    for order in orders(problem):
        for runs in _Search(problem, order).plans():
            found = judged(problem, runs)
            if better(problem, found, best):
                best = found
    return best


class _Search:
    def __init__(self, problem: Problem, order: Sequence[int]) -> None:
        self.problem = problem
        self.order = tuple(order)
        self.n = len(order)
        self.options = choices(problem)
        self.weight = weights(problem)
        self._make_states()
        self._rows: list[list[Row]] | None = None
        self.pool = self._pool()

    def _make_states(self) -> None:
        """Counts of used machines by group, and for each kind of run (state before, after)."""
        found = groups(self.problem)
        self.groups = found
        counts = list(itertools.product(*(range(g.count + 1) for g in found)))
        allowed = [c for c in counts if self._affordable(c)]
        number = {c: k for k, c in enumerate(allowed)}
        self.states = len(allowed)
        self.moves: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        for choice in self.options:
            pairs = []
            for c, k in number.items():
                more = list(c)
                more[choice.index] += choice.machines
                if tuple(more) in number:
                    pairs.append((k, number[tuple(more)]))
            table = np.array(pairs, np.int64).reshape(-1, 2)
            self.moves.append((table[:, 0], table[:, 1]))
        self.number = {k: c for c, k in number.items()}

    def _affordable(self, counts: Sequence[int]) -> bool:
        for board, has in self.problem.capacity.items():
            for k, limit in enumerate(has):
                need = sum(
                    c * g.machine.needs[k]
                    for c, g in zip(counts, self.groups, strict=True)
                    if g.machine.board == board
                )
                if need > limit:
                    return False
        return True

    def _pool(self) -> Floats | None:
        """Seconds of each unit on the host's CPUs, if they shared everything; None without any."""
        rows = [
            [
                s if s is not None and self.problem.pins.get(u, m.name) == m.name else INFINITE
                for u, s in enumerate(m.seconds)
            ]
            for m in self.problem.machines
            if m.pooled
        ]
        if not rows:
            return None
        times = np.array(rows)[:, list(self.order)]
        if self.weight.serial:
            return np.asarray(times.min(axis=0))
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / (1.0 / times).sum(axis=0))

    def rows(self, bound: float) -> Iterable[list[Row]]:
        if self.n > KEPT_UNITS:
            return scan(self.problem, self.order, bound)
        if self._rows is None:
            self._rows = list(scan(self.problem, self.order))
        return self._rows

    def plans(self) -> Iterable[tuple[Run, ...] | None]:
        """Plans worth judging."""
        if self.n == 0:
            return
        if self.pool is None and self.problem.objective == "throughput":
            yield self._minimax()
            return
        if self.problem.objective == "latency":
            yield self._cheapest(INFINITE)
            return
        # Under a limit on the runs' loads the cheapest plan; the best limit is where its own pace
        # and the limit meet.
        if self.problem.pace_max is not None:
            yield self._cheapest(self.problem.pace_max)
        runs = self._cheapest(INFINITE)
        yield runs
        goal = None
        if self.problem.place == "fpga" and runs:
            goal = judged(self.problem, runs).macs
        high = self._pace(runs)
        low = 0.0
        for _ in range(BISECTIONS):
            if not high < INFINITE or high - low <= 1e-7 * high:
                return
            limit = (low + high) / 2
            runs = self._cheapest(limit)
            found = judged(self.problem, runs)
            yield runs
            if found.verdict is None or (goal is not None and found.macs < goal):
                low = limit
            elif self.problem.objective == "throughput" and found.verdict.bottleneck > limit:
                low = limit  # the pool sets the pace: a stricter limit only gives it more
            else:
                high = min(limit, self._pace(runs))

    def _pace(self, runs: tuple[Run, ...] | None) -> float:
        found = judged(self.problem, runs)
        return INFINITE if found.verdict is None else found.verdict.bottleneck

    # Dynamic programmes

    def _minimax(self) -> tuple[Run, ...] | None:
        """Smallest largest load; no pooled machines."""
        limits = [INFINITE]
        if self.n > KEPT_UNITS:
            work = least_work(self.problem, self.options)
            machines = sum(g.count for g in self.groups)
            start = 1.05 * float(work.sum()) / machines + float(work.max())
            limits = [start * 2**k for k in range(12)]
        for limit in limits:
            best = np.full((self.states, self.n + 1), INFINITE)
            best[0, 0] = 0.0
            back = np.full((self.states, self.n + 1), -1, np.int64)
            for i, rows in enumerate(self.rows(limit)):
                for row in rows:
                    source, target = self.moves[row.choice]
                    here = best[source, i]
                    alive = here < INFINITE
                    if not alive.any():
                        continue
                    load = np.maximum(here[alive][:, None], row.load[None, :])
                    self._take(best, back, target[alive], i, row, load)
            runs = self._trace(best, back)
            if runs is not None:
                return runs
        return None

    def _take(
        self, best: Floats, back: npt.NDArray[np.int64], target: npt.NDArray[np.int64],
        i: int, row: Row, value: Floats,
    ) -> None:  # fmt: skip
        stops = slice(i + 1, i + 1 + row.load.size)
        known = best[target, stops]
        new = value < known
        if new.any():
            best[target, stops] = np.where(new, value, known)
            origin = back[target, stops]
            origin[new] = i * len(self.options) + row.choice
            back[target, stops] = origin

    def _cheapest(self, limit: float) -> tuple[Run, ...] | None:
        """Least sum of the host's work and the runs' own costs, with loads up to ``limit``."""
        best = np.full((self.states, self.n + 1), INFINITE)
        best[0, 0] = 0.0
        back = np.full((self.states, self.n + 1), -1, np.int64)
        host, prize = self._host(), self._prize()
        for i, rows in enumerate(self.rows(limit)):
            if host is not None and host[i] < INFINITE:
                stay = best[:, i] + host[i]
                new = stay < best[:, i + 1]
                best[new, i + 1] = stay[new]
                back[new, i + 1] = -2
            for row in rows:
                source, target = self.moves[row.choice]
                here = best[source, i]
                alive = here < INFINITE
                if not alive.any():
                    continue
                choice = self.options[row.choice]
                own = self.weight.serial * row.seconds
                joules = self.weight.busy[choice.machine.name] * choice.machines
                if joules:
                    own = own + joules * row.load
                if prize is not None and choice.machine.kind == "fpga":
                    own = own - (prize[i + 1 : i + 1 + len(own)] - prize[i])
                own = np.where(row.load <= limit, own, INFINITE)
                own[~np.isfinite(row.load)] = INFINITE
                self._take(best, back, target[alive], i, row, here[alive][:, None] + own[None, :])
        return self._trace(best, back)

    def _host(self) -> Floats | None:
        """What a unit on the host costs the objective."""
        if self.pool is None:
            return None
        rates = [
            self.weight.serial + self.weight.busy[m.name]
            for m in self.problem.machines if m.pooled
        ]  # fmt: skip
        rate = sum(rates) / len(rates)
        if self.problem.objective == "throughput":
            rate = 1.0
        return self.pool * rate

    def _prize(self) -> Floats | None:
        """For ``place = fpga``: a reward for MACs on FPGAs that outweighs every cost."""
        if self.problem.place != "fpga":
            return None
        macs = np.array([self.problem.macs[u] for u in self.order], np.float64)
        if not macs.any():
            return None
        costs = [s for m in self.problem.machines for s in m.seconds if s is not None]
        unit = macs[macs > 0].min()
        size = (sum(costs) + 1e-9) * 4
        # More than all seconds for the smallest layer would leave no digits; a part in 10^6 of the
        # whole is what the exact model settles afterwards.
        return np.concatenate([[0.0], np.cumsum(macs / max(unit, macs.sum() * 1e-6) * size)])

    def _trace(self, best: Floats, back: npt.NDArray[np.int64]) -> tuple[Run, ...] | None:
        state = int(best[:, self.n].argmin())
        if not best[state, self.n] < INFINITE:
            return None
        used: list[tuple[Choice | None, int, int]] = []
        at = self.n
        counts = {c: k for k, c in self.number.items()}
        while at > 0:
            code = int(back[state, at])
            if code == -2:
                used.append((None, at - 1, at))
                at -= 1
                continue
            start, k = divmod(code, len(self.options))
            choice = self.options[k]
            used.append((choice, start, at))
            before = list(self.number[state])
            before[choice.index] -= choice.machines
            state = counts[tuple(before)]
            at = start
        return self._runs(used[::-1])

    def _runs(self, used: list[tuple[Choice | None, int, int]]) -> tuple[Run, ...] | None:
        free = [list(g.names) for g in self.groups]
        host = [u for c, start, stop in used if c is None for u in self.order[start:stop]]
        owner = share_pool(self.problem, host)
        if owner is None:
            return None
        runs: list[Run] = []
        for choice, start, stop in used:
            units = self.order[start:stop]
            if choice is not None:
                names = [free[choice.index].pop(0) for _ in range(choice.machines)]
                runs.append(Run(names[0], units, tuple(names[1:]), choice.shards))
                continue
            (u,) = units
            if runs and runs[-1].machine == owner[u]:
                runs[-1] = Run(owner[u], (*runs[-1].units, u))
            else:
                runs.append(Run(owner[u], (u,)))
        return tuple(runs)
