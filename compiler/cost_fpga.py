"""Cycles per unit on an engine, from lowered programs: the closed form, nothing measured.

A unit's figure is what it adds at least to a run that contains it, so sums over units are lower
bounds of a run's cycles; the planner replaces them by the run's own program once it has chosen one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from trivet.hdl.config import EngineConfig
from trivet.hdl.isa import Program, predicted_cycles, predicted_total

from .errors import CompileError
from .lower import lower, refusal
from .units import Graph, Unit

__all__ = ["EngineCosts", "program_cycles", "weigh"]

FORMULA = "closed form of hdl.isa.predicted_cycles"


@dataclass(frozen=True)
class EngineCosts:
    """``cycles``: unit -> cycles at least; ``refusals``: unit -> why the engine cannot run it."""

    cycles: dict[str, int]
    refusals: dict[str, str] = field(default_factory=dict)


def program_cycles(program: Program) -> int:
    """Predicted cycles of a whole program, from its start to its last byte."""
    return predicted_total(program.config, program.instructions)


def weigh(
    graph: Graph, config: EngineConfig, *, progress: Callable[[str], None] | None = None
) -> EngineCosts:
    """Cycles or the reason for every unit of the graph on an engine of ``config``."""
    refusals: dict[str, str] = {}
    for unit in graph.units:
        reason = unit.refusals.get("fpga") or refusal(graph, unit, config)
        if reason is not None:
            refusals[unit.name] = reason
    cycles: dict[str, int] = {}
    for stretch in _stretches(graph, refusals):
        if progress is not None:
            progress(f"lowering {len(stretch)} units to cost them")
        found = _whole(graph, stretch, config)
        cycles.update(_one_by_one(graph, stretch, config, refusals) if found is None else found)
    return EngineCosts(cycles, refusals)


def _stretches(graph: Graph, refusals: dict[str, str]) -> list[list[Unit]]:
    """Longest consecutive sequences of units that the engine takes, views at their ends cut off."""
    found: list[list[Unit]] = [[]]
    for unit in graph.units:
        if unit.name in refusals:
            found.append([])
        else:
            found[-1].append(unit)
    return [s for s in found if s]


def _whole(graph: Graph, stretch: Sequence[Unit], config: EngineConfig) -> dict[str, int] | None:
    """Cycles by unit of the stretch's own program; None when it does not fit as one."""
    names = [u.name for u in stretch]
    while names and graph.unit(names[0]).kind == "view":
        names = names[1:]
    while names and graph.unit(names[-1]).kind == "view":
        names = names[:-1]
    cycles = {u.name: 0 for u in stretch}
    if not names:
        return cycles
    try:
        program = lower(graph, names, config)
    except CompileError:
        return None
    _attribute(graph, program, cycles)
    return cycles


def _attribute(graph: Graph, program: Program, cycles: dict[str, int]) -> None:
    """Give every instruction's cycles to the unit that computes; what rides behind it is free."""
    owner = {node: u.name for u in graph.units for node in (*u.nodes, u.name)}
    for note in program.layers:
        units = list(dict.fromkeys(owner[n] for n in (*note.nodes, note.unit) if n in owner))
        heads = [n for n in units if graph.unit(n).kind in ("conv", "pool", "mul")]
        count = note.cycles
        if len(units) > 1:
            instruction = program.instructions[note.instruction]
            bare = replace(instruction, has_add=0, has_table=0)
            count = min(count, predicted_cycles(program.config, bare))
        name = (heads or [note.unit])[0]
        cycles[name] = cycles.get(name, 0) + count


def _one_by_one(
    graph: Graph, stretch: Sequence[Unit], config: EngineConfig, refusals: dict[str, str]
) -> dict[str, int]:
    """Units that do not fit together: each alone. Adds, tables, Concats may ride along: nothing."""
    cycles: dict[str, int] = {}
    for unit in stretch:
        if unit.kind in ("view", "add", "table", "concat"):
            cycles[unit.name] = 0
            continue
        try:
            cycles[unit.name] = program_cycles(lower(graph, [unit.name], config))
        except CompileError as e:
            refusals[unit.name] = str(e)
    return cycles
