"""Memory of the items under way: a ring of slots, each with an array for every tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .device import Stage, TensorSpec

__all__ = ["Slot", "specs_of"]

Array = npt.NDArray[Any]


def specs_of(stages: Sequence[Stage]) -> dict[str, TensorSpec]:
    """Every whole tensor at an edge of the stages, by name."""
    return {spec.name: spec for s in stages for spec in (*s.inputs, *s.outputs)}


class Slot:
    """Room for one item: arrays that stay the same for good, so that devices can be bound to them.

    Parameters
    ----------
    stages
        The stages; of a split one the pieces of its outputs have their places, too.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.arrays: dict[str, Array] = {
            name: np.empty(spec.shape, spec.dtype) for name, spec in specs_of(stages).items()
        }
        self._scattered: dict[str, Array] = {}  # piece -> its place in the whole tensor
        for stage in stages:
            for position, whole in enumerate(stage.outputs):
                start = 0
                for part in stage.parts:
                    start += self._place(whole.name, part.outputs[position], stage, start)

    def _place(self, whole: str, piece: TensorSpec, stage: Stage, start: int) -> int:
        """An array for a piece of a tensor, inside it where its bytes lie together; its length."""
        assert stage.shard_axis is not None
        length = piece.shape[stage.shard_axis]
        cut = (slice(None),) * stage.shard_axis + (slice(start, start + length),)
        view = self.arrays[whole][cut]
        if view.flags.c_contiguous:
            self.arrays[piece.name] = view
        else:
            self.arrays[piece.name] = np.empty(piece.shape, piece.dtype)
            self._scattered[piece.name] = view
        return length

    def fill(self, values: Mapping[str, Array]) -> None:
        """Copy an item's inputs in; those that no stage reads are left out."""
        for name, array in values.items():
            target = self.arrays.get(name)
            if target is not None:
                target[...] = array

    def gather(self, specs: Sequence[TensorSpec]) -> None:
        """Put pieces that were just written into their whole tensors."""
        for spec in specs:
            place = self._scattered.get(spec.name)
            if place is not None:
                place[...] = self.arrays[spec.name]
