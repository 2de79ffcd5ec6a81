"""From a plan's runs to stages: units, edge tensors and the layout in which those travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .contract import edges
from .layout import nhwc_index, view_index
from .planner.problem import Run
from .rig import Rig
from .split import part_name
from .units import Graph, Unit

__all__ = ["StageUnits", "cut", "moves_bytes", "part_nhwc", "travels"]


@dataclass(frozen=True)
class StageUnits:
    """A stage: consecutive units on a device. ``nhwc``: its edges that travel in NHWC order."""

    index: int
    device: str
    kind: str  # of the device: "cpu" or "fpga"
    units: tuple[str, ...]
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nhwc: frozenset[str]


def cut(graph: Graph, rig: Rig, runs: Sequence[Run]) -> tuple[StageUnits, ...]:
    """Stages of the runs, in order. Every 4-D tensor at an FPGA's edge travels in NHWC."""
    pieces = []
    images: set[str] = set()
    for run in runs:
        units = [graph.units[u] for u in sorted(run.units)]
        inputs, outputs = edges(graph, [u.name for u in units])
        kind = rig.device(run.machine).kind
        if kind == "fpga":
            images.update(n for n in (*inputs, *outputs) if len(graph.tensors[n].shape) == 4)
        pieces.append((run.machine, kind, units, inputs, outputs))
    return tuple(
        StageUnits(
            index,
            device,
            kind,
            tuple(u.name for u in units),
            tuple(n for u in units for n in u.nodes),
            inputs,
            outputs,
            frozenset(images.intersection((*inputs, *outputs))),
        )
        for index, (device, kind, units, inputs, outputs) in enumerate(pieces)
    )


def part_nhwc(stage: StageUnits, part: int) -> frozenset[str]:
    """Of a stage that is split: the edges of a part that travel in NHWC order."""
    return frozenset(part_name(n, part) if n in stage.outputs else n for n in stage.nhwc)


def moves_bytes(graph: Graph, unit: Unit) -> bool:
    """Whether a view's NHWC bytes differ from its input's, so that it must stay inside a stage."""
    if unit.kind != "view":
        return False
    places = nhwc_index(graph.tensors[unit.inputs[0]].shape)
    index = view_index(graph, unit, places)
    order = index.transpose(0, 2, 3, 1) if index.ndim == 4 else index
    flat = order.reshape(-1)
    return bool((flat[1:] != flat[:-1] + 1).any())


def travels(graph: Graph, tensor: str) -> str | None:
    """Why a tensor cannot cross to or from an FPGA; None when it can."""
    found = graph.tensors[tensor]
    if found.dtype not in ("int8", "uint8"):
        return f"it is {found.dtype}, an engine takes int8 or uint8"
    if found.quant is None:
        return "it has no scale and zero point"
    if len(found.shape) == 4 and found.shape[0] != 1:
        return f"it holds {found.shape[0]} images, an engine takes 1 at a time"
    return None
