"""Concat by placement: who writes straight into the joint tensor, and who is copied there.

An input of a Concat *is* a run of the joint tensor's channels wherever nothing forbids it: its
producer writes there (with the joint's words from pixel to pixel), its other readers read there,
and the Concat costs nothing. What forbids it: an Add or Mul at either end (a skip tensor has as
many words a pixel as the result, and lies in another bank than the source), a border of the stage
(the host sees whole tensors), a scale other than the joint's while others read the input as it is,
a second Concat. Then the lanes copy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from .layout import hwc_of
from .units import AddSpec, ConcatSpec, Graph, MulSpec, Unit

__all__ = ["Joints"]


@dataclass
class Joints:
    """Placement of the tensors of one stage.

    ``root``: for every tensor the stored tensor that it is. ``kept``: tensors that must stay whole:
    the stage's inputs and outputs.
    """

    graph: Graph
    root: Mapping[str, str]
    kept: Collection[str]
    word_bytes: int
    spread: Mapping[str, str]  # spread tensors (compiler/spread.py) -> what they become
    inside: dict[str, tuple[str, int]] = field(default_factory=dict)  # part -> joint, first channel

    def locate(self, name: str) -> tuple[str, int]:
        """The tensor of its own place in memory that holds ``name``, and at which channel."""
        at, channel = self.root[name], 0
        while at in self.inside:
            at, first = self.inside[at]
            channel += first
        return at, channel

    def may_live_inside(self, name: str) -> bool:
        """Whether all that this stage does with a tensor allows that it is part of another."""
        if self.root[name] != name or name in self.inside:
            return False
        same = [n for n, r in self.root.items() if r == name]
        return not self.is_added(name) and not any(n in self.kept for n in same)

    def is_added(self, name: str) -> bool:
        """Whether an Add or Mul reads a tensor, and so perhaps as a skip tensor."""
        same = {n for n, r in self.root.items() if r == name}
        return any(
            isinstance(unit.spec, AddSpec | MulSpec) and same.intersection(unit.inputs)
            for unit in self.graph.units
        )

    def is_made(self, name: str, results: Collection[str]) -> bool:
        """Whether layers of this stage write all of a tensor, ``results`` being what they write."""
        parts = [n for n, (joint, _) in self.inside.items() if joint == name]
        return name in results or bool(parts)

    def parts(self, unit: Unit, spec: ConcatSpec) -> list[tuple[str, int, int]]:
        """(tensor, first channel, channels) of each input; each begins at a whole word."""
        found, first = [], 0
        for name in unit.inputs:
            channels = hwc_of(self.graph.tensors[name].shape)[2]
            found.append((name, first, channels))
            first += -(-channels // self.word_bytes) * self.word_bytes
        return found
