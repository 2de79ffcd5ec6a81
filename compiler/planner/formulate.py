"""The planning problem as a :class:`~trivet.compiler.planner.model.Model`: who is where.

Places are numbered in order; ``y[u, p]`` says that unit u is at place p or before. A single place
holds one run on machines that own no other, a pooled place (before, between and after them, where
there are pooled machines) what the host's CPUs do meanwhile; since those pay nothing for what they
pass on, every unit there may be on any of them. Precedence on ``y`` keeps stages free of cycles.
Costs are in ``loads.py``, limits in ``limits.py``.
All sums are those of the definition, so a solution's cost is what ``check`` finds, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from .limits import add_limits
from .loads import add_loads
from .model import Model, negated
from .options import Choice, choices
from .orders import edges, orders
from .problem import Problem, Run
from .windows import INFINITE, Places, windows

__all__ = ["Formulation"]


class Formulation:
    """A model whose solutions are the plans with every load below ``bound``.

    Parameters
    ----------
    problem : Problem
    bound : float
        On every load, in seconds.
    macs : int, optional
        At least that many MACs on FPGAs.
    most_macs : bool
        Minimise the MACs that are not on FPGAs instead of the problem's objective.

    Members
    -------
    model : Model
    options : what a run at a single place can be; ``w[place]`` has a literal for each.
    impossible : whether no plan is below the bound, known without a solver.
    """

    def __init__(
        self,
        problem: Problem,
        bound: float = INFINITE,
        *,
        macs: int | None = None,
        most_macs: bool = False,
    ) -> None:
        self.problem = problem
        self.bound = bound
        self.model = Model()
        self.options: tuple[Choice, ...] = choices(problem)
        self.pooled = [m for m in problem.machines if m.pooled]
        counts = {c.index: c.group.count for c in self.options}
        self.places = Places(sum(counts.values()), bool(self.pooled))
        self.order = orders(problem)[0]
        self.after, self.before = edges(problem)
        found = windows(problem, self.options, self.places, self.order, bound)
        self.first = [int(k) for k in found.first]
        self.last = [int(k) for k in found.last]
        self._x: dict[tuple[int, int], Any] = {}
        self.y: dict[tuple[int, int], int] = {}
        self.w: dict[int, list[Any]] = {}
        self.z: dict[tuple[int, int], Any] = {}
        self.impossible = found.empty or not (self.places.count or not problem.units)
        if not self.impossible:
            self._add_order()
            self._add_machines()
            self._add_pool()
            add_limits(self, macs)
            add_loads(self, most_macs=most_macs)
            self.impossible = self.model.impossible

    # Literals

    def before_or_at(self, u: int, place: int) -> Any:
        """Unit ``u`` is at ``place`` or before."""
        if place >= self.last[u]:
            return True
        return False if place < self.first[u] else self.y[u, place]

    def at(self, u: int, place: int) -> Any:
        """Unit ``u`` is at ``place``."""
        if not self.first[u] <= place <= self.last[u]:
            return False
        key = u, place
        if key not in self._x:
            self._x[key] = self.model.between(
                self.before_or_at(u, place), self.before_or_at(u, place - 1)
            )
        return self._x[key]

    def window(self, u: int) -> Iterator[int]:
        """Single places where unit ``u`` may be."""
        for place in range(self.first[u], self.last[u] + 1):
            if self.places.is_single(place):
                yield place

    # Structure

    def _add_order(self) -> None:
        model = self.model
        for u in range(len(self.problem.units)):
            for p in range(self.first[u], self.last[u]):
                self.y[u, p] = model.boolean()
            for p in range(self.first[u], self.last[u] - 1):
                model.clause(-self.y[u, p], self.y[u, p + 1])
        for v, sources in enumerate(self.before):
            for u in sources:
                for p in range(self.first[v], self.last[u]):
                    model.clause(negated(self.before_or_at(v, p)), self.before_or_at(u, p))

    @property
    def _optional(self) -> bool:
        """Whether it can matter that a machine is not used at all."""
        p = self.problem
        each_once = all(c.machines == 1 for c in self.options) and not p.capacity
        free = all(
            c.machine.channel is None or not c.machine.channel.start_trips for c in self.options
        )
        return self.places.pool or p.objective != "throughput" or not (each_once and free)

    def _add_machines(self) -> None:
        """``w[p][k]``: the run at single place p is of kind ``options[k]``."""
        model, singles = self.model, self.places.single
        optional = self._optional
        for p in singles:
            if len(self.options) == 1 and not optional:
                self.w[p] = [True]
                continue
            self.w[p] = [model.boolean() for _ in self.options]
            nothing = [model.boolean()] if optional else []
            model.exactly_one([*self.w[p], *nothing])
        for index in {c.index for c in self.options}:
            mine = [(k, c) for k, c in enumerate(self.options) if c.index == index]
            terms = [(c.machines, self.w[p][k]) for k, c in mine for p in singles]
            model.row(terms, [], mine[0][1].group.count)
        if optional:  # empty places come last: any other plan has such a twin
            for here, there in pairwise(singles):
                for literal in self.w[there]:
                    model.clause(negated(literal), *self.w[here])
        for u in range(len(self.problem.units)):
            for p in self.window(u):
                can = [w for w, c in zip(self.w[p], self.options, strict=True)
                       if c.seconds[u] is not None]  # fmt: skip
                if len(can) < len(self.options) or optional:
                    model.clause(negated(self.at(u, p)), *can)
        for k, choice in enumerate(self.options):
            for p in singles if choice.shards > 1 else ():
                inside = [(1.0, self.at(u, p)) for u in range(len(self.problem.units))]
                model.row(inside, [], 1, [self.w[p][k]])

    def _add_pool(self) -> None:
        """``z[u, c]``: unit u is on pooled machine c; one literal less than there are machines."""
        model, pins = self.model, self.problem.pins
        if not self.pooled:
            return  # every unit is at exactly one place by the meaning of y
        for u in range(len(self.problem.units)):
            singles = [self.at(u, p) for p in self.window(u)]
            able = [
                c
                for c, m in enumerate(self.pooled)
                if m.seconds[u] is not None and pins.get(u, m.name) == m.name
            ]
            for c in able:
                self.z[u, c] = model.boolean()
            model.exactly_one([*singles, *(self.z[u, c] for c in able)])

    # Plans

    def hints(self, runs: Sequence[Run]) -> dict[int, bool]:
        """Values of booleans in which the model is the plan ``runs``, as far as the windows go."""
        at: dict[int, int] = {}
        found: dict[int, bool] = {}
        singles = iter(self.places.single)
        now = 0 if self.places.pool else -1
        used: set[int] = set()
        for run in runs:
            machine = self.problem.machine(run.machine)
            if machine.pooled:
                for u in run.units:
                    for c, m in enumerate(self.pooled):
                        if (u, c) in self.z:
                            found[self.z[u, c]] = m.name == run.machine
                for u in run.units:
                    at[u] = now
                continue
            place = next(singles, None)
            if place is None:
                return {}
            used.add(place)
            for literal, choice in zip(self.w[place], self.options, strict=True):
                mine = run.machine in choice.group.names and choice.shards == run.shards
                if literal is not True:
                    found[literal] = mine and choice.replicas == run.replicas
            for u in run.units:
                at[u] = place
            now = place + 1 if self.places.pool else place
        for (u, p), literal in self.y.items():
            found[literal] = at[u] <= p
        return found

    def runs(self, value: dict[int, bool]) -> tuple[Run, ...]:
        """The plan of a solution: values of all booleans."""

        def holds(literal: Any) -> bool:
            if isinstance(literal, bool):
                return literal
            return value[literal] if literal > 0 else not value[-literal]

        inside: dict[int, list[int]] = {}
        for u in self.order:
            place = self.first[u]
            while not holds(self.before_or_at(u, place)):
                place += 1
            inside.setdefault(place, []).append(u)
        free = {c.index: list(c.group.names) for c in self.options}
        found: list[Run] = []
        for place in sorted(inside):
            units = inside[place]
            if self.places.is_single(place):
                choice = self.options[[holds(x) for x in self.w[place]].index(True)]
                names = [free[choice.index].pop(0) for _ in range(choice.machines)]
                found.append(Run(names[0], tuple(units), tuple(names[1:]), choice.shards))
                continue
            for u in units:
                c = next(c for c in range(len(self.pooled)) if holds(self.z.get((u, c), False)))
                name = self.pooled[c].name
                if found and found[-1].machine == name:
                    found[-1] = Run(name, (*found[-1].units, u))
                else:
                    found.append(Run(name, (u,)))
        return tuple(found)
