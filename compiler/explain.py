"""Explain: for every unit and device, whether it can run there, and if not, why not."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .lower import refusal
from .rig import Rig
from .units import Graph

__all__ = ["UnitReport", "explain"]


@dataclass(frozen=True)
class UnitReport:
    """A unit, its nodes, and device -> why it cannot run there (None: it can)."""

    unit: str
    kind: str
    nodes: tuple[str, ...]
    macs: int
    devices: dict[str, str | None]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def explain(graph: Graph, rig: Rig) -> tuple[UnitReport, ...]:
    """A report for each unit of the graph, on the devices of the rig."""
    reports = []
    for unit in graph.units:
        devices: dict[str, str | None] = {}
        for device in rig.devices:
            if device.engine is None:
                devices[device.name] = unit.refusals.get(device.kind)
            else:
                devices[device.name] = unit.refusals.get("fpga") or refusal(
                    graph, unit, device.engine
                )
        reports.append(UnitReport(unit.name, unit.kind, unit.nodes, unit.macs, devices))
    return tuple(reports)
