"""Decides which units share an instruction: a residual Add and a table ride behind their producer.

An instruction is exactly ``requantise + clamp -> add -> table`` (``hdl/isa.py``), so a fusion here
never changes a byte: the producer's own clamp is applied before the add, the table comes last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import numpy.typing as npt

from .addends import add_semantic
from .joint import Joints
from .products import mul_semantic
from .units import (
    AddSpec,
    Array,
    ConcatSpec,
    ConvSpec,
    Graph,
    MulSpec,
    PadSpec,
    PoolSpec,
    ResizeSpec,
    TableSpec,
    Unit,
)

__all__ = ["Group", "fuse"]


@dataclass
class Group:
    """One instruction in the making.

    ``source`` is the tensor it reads; ``head`` the unit that computes (None: a copy of ``source``);
    ``skip`` is the second operand of ``add`` or of a Mul as head; swapped when the instruction's
    own result is the second operand. ``part``: the result is only this run of the output's
    channels (first, count). ``phase``: it is only every so many rows and columns of the output,
    from this one on. ``shown``: tensor and first channel that the result is of, for those who look.
    """

    source: str
    output: str
    units: list[Unit]
    head: Unit | None = None
    add: Unit | None = None
    skip: str | None = None
    swapped: bool = False
    table: Array | None = None  # uint8 [256]
    views: list[Unit] = field(default_factory=list)
    part: tuple[int, int] | None = None
    phase: tuple[int, int] | None = None
    shown: tuple[str, int] | None = None

    @property
    def add_spec(self) -> AddSpec | None:
        return self.add.spec if self.add and isinstance(self.add.spec, AddSpec) else None

    @property
    def name(self) -> str:
        return self.units[-1].name


def fuse(graph: Graph, units: list[Unit], joints: Joints) -> list[Group]:
    """Groups in an order in which they can run; ``joints`` learns what lies inside what.

    A group runs where its last unit stood; only that unit could have been waiting for the others.
    """
    root = joints.root
    uses = Counter(name for unit in graph.units for name in unit.inputs)
    uses.update(graph.outputs)
    groups: list[Group] = []

    def producer(name: str) -> Group | None:
        """The group that makes ``name``, when nothing else ever reads it."""
        found = next((g for g in groups if g.output == name and not (g.part or g.phase)), None)
        return found if uses[name] == 1 else None

    def makers(name: str) -> list[Group]:
        """All that write ``name``: one group, or the phases of a Resize."""
        return [g for g in groups if g.output == name]

    for unit in units:
        spec = unit.spec
        if isinstance(spec, ConvSpec | PoolSpec):
            group = Group(unit.inputs[0], unit.outputs[0], [unit], unit, table=spec.table)
            groups.append(group)
        elif isinstance(spec, PadSpec):
            groups.append(Group(unit.inputs[0], unit.outputs[0], [unit], unit))
        elif isinstance(spec, ResizeSpec):
            for phase in product(range(spec.factors[0]), range(spec.factors[1])):
                groups.append(Group(unit.inputs[0], unit.outputs[0], [unit], unit, phase=phase))
        elif isinstance(spec, ConcatSpec):
            alone = [n for n in unit.inputs if uses[n] == 1]
            _join(groups, {n: makers(n) for n in alone}, unit, spec, joints)
        elif isinstance(spec, TableSpec):
            _append_table(groups, producer(unit.inputs[0]), unit, spec.table)
        elif isinstance(spec, AddSpec | MulSpec) and root[unit.inputs[0]] == root[unit.inputs[1]]:
            # A tensor joined with itself is a function of one byte.
            pairs = add_semantic(spec) if isinstance(spec, AddSpec) else mul_semantic(spec)
            own = np.diagonal(pairs).astype(spec.y.dtype).view(np.uint8)
            both = producer(unit.inputs[0]) if unit.inputs[0] != unit.inputs[1] else None
            _append_table(groups, both, unit, _compose(own, spec.table))
        elif isinstance(spec, MulSpec):
            first, second = unit.inputs
            out = graph.tensors[unit.outputs[0]].shape
            swapped = graph.tensors[first].shape == out != graph.tensors[second].shape
            if swapped:  # a single pixel is the source, which may be read again and again
                first, second = second, first
            group = Group(first, unit.outputs[0], [unit], unit, skip=second, table=spec.table)
            group.swapped = swapped
            groups.append(group)
        elif isinstance(spec, AddSpec):
            _append_add(groups, [producer(n) for n in unit.inputs], unit, spec, root)
    return groups


def _join(
    groups: list[Group],
    makers: dict[str, list[Group]],
    unit: Unit,
    spec: ConcatSpec,
    joints: Joints,
) -> None:
    """Place each input in the joint tensor, or else append a copy."""
    (out,) = unit.outputs
    made = {g.output for g in groups if g.skip is None}
    added = joints.is_added(out)
    copies = []
    shown: tuple[str, int] | None = None
    seen = 0
    for k, (name, first, channels) in enumerate(joints.parts(unit, spec)):
        if out in joints.spread:
            shown = (joints.spread[out], seen)
        seen += channels
        table, own, free = spec.tables[k], makers.get(name, []), joints.may_live_inside(name)
        if table is None and free and not added and joints.is_made(name, made):
            joints.inside[name] = (out, first)
        elif own and free and not any(g.skip or g.part for g in own):
            # Nobody else reads it: its producer may change the scale at once.
            for maker in own:
                maker.table = table if maker.table is None else _compose(maker.table, table)
                maker.output, maker.part, maker.shown = out, (first, channels), shown
        else:
            copies.append(
                Group(name, out, [unit], table=table, part=(first, channels), shown=shown)
            )
    groups += copies
    if not copies:
        groups[-1].views.append(unit)


def _append_table(groups: list[Group], before: Group | None, unit: Unit, table: Array) -> None:
    if before is None:
        groups.append(Group(unit.inputs[0], unit.outputs[0], [unit], table=table))
        return
    before.table = table if before.table is None else _compose(before.table, table)
    _extend(groups, before, unit)


def _append_add(
    groups: list[Group],
    makers: list[Group | None],
    unit: Unit,
    spec: AddSpec,
    root: Mapping[str, str],
) -> None:
    # The later producer first: its operand then lives shortest.
    ranked = sorted((0, 1), key=lambda k: groups.index(g) if (g := makers[k]) else -1, reverse=True)
    for k in ranked:
        maker, skip = makers[k], unit.inputs[1 - k]
        # Source and skip tensor are read in the same cycle and so must be two tensors.
        if (
            maker is None
            or maker.skip is not None
            or maker.table is not None
            or root[maker.source] == root[skip]
        ):
            continue
        maker.add, maker.skip, maker.swapped, maker.table = unit, skip, k == 1, spec.table
        _extend(groups, maker, unit)
        return
    first, second = unit.inputs
    groups.append(Group(first, unit.outputs[0], [unit], add=unit, skip=second, table=spec.table))


def _extend(groups: list[Group], group: Group, unit: Unit) -> None:
    groups.remove(group)
    groups.append(group)
    group.units.append(unit)
    group.output = unit.outputs[0]


def _compose(first: Array, second: Array | None) -> npt.NDArray[np.uint8]:
    inner = np.asarray(first, np.uint8)
    return inner if second is None else np.asarray(second, np.uint8)[inner]
