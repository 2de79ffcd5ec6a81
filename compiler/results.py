"""What each step has made, as plain values for ``--json``; :mod:`.show` is the same for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from trivet.hdl.isa import predicted_total

from .explain import explain

if TYPE_CHECKING:
    from .driver import Work
    from .load import Loaded

__all__ = ["result"]


def result(step: str, work: Work) -> Any:
    """The result of the step that was stopped after; None where the summary holds all of it."""
    if step in ("load", "normalise", "quantise") and work.loaded is not None:
        return _model(work.loaded)
    if step == "map" and work.graph is not None:
        return [report.to_dict() for report in explain(work.graph, work.rig)]
    if step == "cost":
        return _costs(work)
    if step == "plan" and work.plan is not None:
        return msgspec.to_builtins(work.plan)
    if step == "lower":
        return _programs(work)
    return None


def _model(loaded: Loaded) -> dict[str, Any]:
    graph = loaded.model.graph
    counts = Counter(node.op_type for node in graph)
    return {
        "name": loaded.name,
        "sha256": loaded.sha256,
        "inputs": [_port(v) for v in graph.inputs],
        "outputs": [_port(v) for v in graph.outputs],
        "operators": dict(counts.most_common()),
        "notes": list(loaded.notes),
    }


def _port(value: Any) -> dict[str, Any]:
    shape = [d if isinstance(d, int) else str(d) for d in value.shape or ()]
    return {"name": value.name, "dtype": str(value.dtype).lower(), "shape": shape}


def _costs(work: Work) -> list[dict[str, Any]]:
    """A row for each unit: device -> its cost, None where it cannot run."""
    assert work.graph is not None
    assert work.costs is not None
    rows = []
    for unit in work.graph.units:
        devices: dict[str, Any] = {
            name: msgspec.to_builtins(found[unit.name]) for name, found in work.costs.cpu.items()
        }
        for name, engine in work.costs.fpga.items():
            refused = unit.name in engine.refusals
            devices[name] = None if refused else {"cycles": engine.cycles.get(unit.name, 0)}
        rows.append({"unit": unit.name, "devices": devices})
    return rows


def _programs(work: Work) -> list[dict[str, Any]]:
    return [
        {
            "stage": index,
            "cycles_predicted": predicted_total(program.config, program.instructions),
            "layers": [
                {"node": n.unit, "macs": n.macs, "cycles_predicted": n.cycles, "stalls": n.stalls}
                for n in program.layers
            ],
        }
        for index, program in (work.programs or {}).items()
    ]
