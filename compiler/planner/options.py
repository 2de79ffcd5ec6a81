"""What a run can be: a group of equal machines, how many copies, how many shards."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import Group, Machine, Problem, groups

__all__ = ["Choice", "choices"]


@dataclass(frozen=True)
class Choice:
    """A run on ``replicas * shards`` machines of the group at ``index`` of ``groups(problem)``.

    ``seconds[u]`` is unit u's time on each of them, None where it cannot run there.
    """

    index: int
    group: Group
    replicas: int
    shards: int
    seconds: tuple[float | None, ...]

    @property
    def machine(self) -> Machine:
        return self.group.machine

    @property
    def machines(self) -> int:
        return self.replicas * self.shards


def choices(problem: Problem) -> tuple[Choice, ...]:
    """Every kind of run that the problem allows on machines that own one run at most."""
    shards = {t for _, _, t in problem.splits}
    found = []
    for index, group in enumerate(groups(problem)):
        for t in (1, *sorted(shards)):
            for r in problem.replicas:
                if r * t > group.count:
                    continue
                row = _seconds(problem, group, t)
                if any(s is not None for s in row):
                    found.append(Choice(index, group, r, t, row))
    return tuple(found)


def _seconds(problem: Problem, group: Group, t: int) -> tuple[float | None, ...]:
    """Times on one machine; a unit that is pinned to another has none."""
    machine = group.machine
    return tuple(
        None
        if problem.pins.get(u, machine.name) not in group.names
        else (machine.seconds[u] if t == 1 else problem.splits.get((machine.sort, u, t)))
        for u in range(len(problem.units))
    )
