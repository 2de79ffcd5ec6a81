"""Limits of a plan as constraints: memories, boards, what may not cross, what does not fit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .model import negated
from .options import Choice
from .problem import Value

if TYPE_CHECKING:
    from .formulate import Formulation

__all__ = ["add_limits", "fpga_at", "is_exactly"]


def add_limits(f: Formulation, macs: int | None) -> None:
    """Everything that forbids a plan, whatever its loads."""
    _add_memory(f)
    _add_boards(f)
    for value in f.problem.values:
        _add_borders(f, value)
    for k, choice in enumerate(f.options):
        if choice.machine.kind == "fpga" and choice.shards == 1:
            _add_sets(f, k, choice)
    if macs is not None:
        terms = [(-float(m), x) for m, x in macs_on_fpgas(f)]
        f.model.row(terms, [], -float(macs))


def _add_memory(f: Formulation) -> None:
    memory = f.problem.memory
    for k, choice in enumerate(f.options):
        limit = choice.machine.memory_limit
        if limit is None or sum(memory) <= limit:
            continue
        for p in f.places.single:
            terms = [(float(b), f.at(u, p)) for u, b in enumerate(memory)]
            f.model.row(terms, [], float(limit * choice.shards), [f.w[p][k]])
    for c, machine in enumerate(f.pooled):
        if machine.memory_limit is not None:
            terms = [(float(b), f.z.get((u, c), False)) for u, b in enumerate(memory)]
            f.model.row(terms, [], float(machine.memory_limit))


def _add_boards(f: Formulation) -> None:
    for board, has in f.problem.capacity.items():
        for k, limit in enumerate(has):
            terms = [
                (float(c.machine.needs[k] * c.machines), f.w[p][i])
                for i, c in enumerate(f.options)
                if c.machine.board == board
                for p in f.places.single
            ]
            f.model.row(terms, [], float(limit))


def fpga_at(f: Formulation, place: int) -> Any:
    """A literal that is true where the run at ``place`` is on an FPGA."""
    kinds = [c.machine.kind == "fpga" for c in f.options]
    if all(kinds):
        return True
    return f.model.any_of([w for w, fpga in zip(f.w[place], kinds, strict=True) if fpga])


def macs_on_fpgas(f: Formulation) -> Iterable[tuple[int, Any]]:
    """(MACs, a literal that is false unless they are on an FPGA)."""
    kinds = [c.machine.kind == "fpga" for c in f.options]
    for u, macs in enumerate(f.problem.macs):
        for p in f.window(u) if macs and any(kinds) else ():
            inside = f.at(u, p)
            if not all(kinds):
                both = f.model.boolean()
                f.model.clause(-both, inside)
                f.model.clause(-both, *(w for w, fpga in zip(f.w[p], kinds, strict=True) if fpga))
                inside = both
            yield macs, inside


def _add_borders(f: Formulation, value: Value) -> None:
    """A value that is barred, or that a reordering view makes or reads, stays inside FPGA runs."""
    inner = f.problem.inner
    barred = value.barred is not None
    makes_inner = value.producer in inner
    readers = [c for c in value.consumers if barred or c in inner]
    if not (barred or makes_inner or readers) or not f.options:
        return
    for p in f.places.single:
        apart = negated(fpga_at(f, p))
        made = False if value.producer is None else f.at(value.producer, p)
        for c in readers:
            f.model.clause(negated(f.at(c, p)), made, apart)
        if not (barred or makes_inner):
            continue
        if value.is_output:
            f.model.clause(negated(made), apart)
        for c in value.consumers:
            f.model.clause(negated(made), f.at(c, p), apart)


def is_exactly(f: Formulation, units: frozenset[int], place: int) -> list[Any] | None:
    """Literals that are all false where the run at ``place`` is of those units; None: never."""
    found = []
    for u in range(len(f.problem.units)):
        literal = f.at(u, place)
        literal = negated(literal) if u in units else literal
        if literal is True:
            return None
        if literal is not False:
            found.append(literal)
    return found


def _add_sets(f: Formulation, k: int, choice: Choice) -> None:
    """Runs that do not fit, and runs that break a rule."""
    sort = choice.machine.sort
    for p in f.places.single:
        here = negated(f.w[p][k])
        for units in f.problem.misfits.get(sort, ()):
            f.model.clause(*(negated(f.at(u, p)) for u in sorted(units)), here)
        for name, units in sorted(f.problem.banned, key=lambda b: (b[0], sorted(b[1]))):
            other = is_exactly(f, units, p) if name == sort else None
            if other is not None:
                f.model.clause(*other, here)
