"""What each step shows a person: small tables, no decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trivet.hdl.isa import Program, predicted_total

from .explain import explain
from .load import Loaded
from .planner.show import duration, short
from .rig import Rig
from .units import Graph

if TYPE_CHECKING:
    from .planner.build import Costs
    from .verify import LayerVerdict

__all__ = ["costs", "model", "programs", "units", "verdicts"]


def model(loaded: Loaded) -> RenderableType:
    """Inputs, outputs, operators and notes of a model between two steps."""
    graph = loaded.model.graph
    counts = Counter(node.op_type for node in graph)
    lines = [Text(f"{loaded.name}  sha256 {loaded.sha256[:16]}..", style="bold")]
    for what, values in (("input", graph.inputs), ("output", graph.outputs)):
        lines += [Text(f"{what} {v.name}: {v.dtype} {v.shape}") for v in values]
    lines.append(Text(", ".join(f"{n} {op}" for op, n in counts.most_common())))
    lines += [Text(f"note: {note}", style="dim") for note in loaded.notes]
    return Group(*lines)


def units(graph: Graph, rig: Rig) -> RenderableType:
    """Every unit and where it can run; reasons in words where it cannot."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("unit", no_wrap=True)
    table.add_column("kind")
    table.add_column("MACs", justify="right")
    for device in rig.devices:
        table.add_column(device.name, overflow="fold")
    for report in explain(graph, rig):
        table.add_row(
            Text(short(report.unit)),
            report.kind,
            f"{report.macs:,}" if report.macs else "-",
            *(
                Text("yes", style="green") if reason is None else Text(f"no: {reason}")
                for reason in report.devices.values()
            ),
        )
    return table


def costs(graph: Graph, rig: Rig, found: Costs) -> RenderableType:
    """Seconds of every unit on every CPU, cycles on every FPGA, and where they come from."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("unit", no_wrap=True)
    for device in rig.devices:
        table.add_column(device.name, justify="right")
    for unit in graph.units:
        row = []
        for device in rig.devices:
            if device.engine is None:
                cost = found.cpu[device.name][unit.name]
                spread = "" if cost.spread is None else f" +-{50 * cost.spread:.0f} %"
                row.append(f"{duration(cost.value)}{spread}")
            else:
                count = found.fpga[device.name].cycles.get(unit.name)
                refused = unit.name in found.fpga[device.name].refusals
                row.append("cannot" if refused else f"{count:,} cycles")
        table.add_row(Text(short(unit.name)), *row)
    lines = [Text(f"{d}: {next(iter(c.values())).detail}") for d, c in found.cpu.items() if c]
    lines += [Text(f"{d}: {cost_formula()}") for d in found.fpga]
    return Group(table, *lines)


def cost_formula() -> str:
    from .cost_fpga import FORMULA

    return f"{FORMULA}; what rides behind a layer counts as 0 until the stage is lowered"


def programs(found: Mapping[int, Program]) -> RenderableType:
    """Layers of every program with their predicted cycles and use of the multipliers."""
    parts: list[RenderableType] = []
    for index, program in found.items():
        table = Table(title=f"stage {index}", box=None, pad_edge=False, header_style="bold")
        table.add_column("layer", no_wrap=True)
        for name in ("MACs", "cycles", "stalls", "use"):
            table.add_column(name, justify="right")
        for note in program.layers:
            use = note.macs / (note.cycles * program.config.multipliers)
            table.add_row(
                Text(short(note.unit)),
                f"{note.macs:,}",
                f"{note.cycles:,}",
                f"{note.stalls:,}",
                f"{100 * use:.1f} %",
            )
        cycles = predicted_total(program.config, program.instructions)
        macs = sum(n.macs for n in program.layers)
        use = macs / (cycles * program.config.multipliers)
        table.add_row("all", f"{macs:,}", f"{cycles:,}", "", f"{100 * use:.1f} %", style="bold")
        parts.append(table)
    return Group(*parts) if parts else Text("no FPGA stage, nothing to lower")


def verdicts(found: Sequence[LayerVerdict]) -> RenderableType:
    """Bytes compared and different over all layers."""
    if not found:
        return Text("verify: no program was run")
    compared = sum(v.bytes_compared for v in found)
    different = sum(v.bytes_different for v in found)
    return Text(
        f"verify: {len(found)} layers on the reference machine, {compared:,} bytes compared with "
        f"the contract form, {different} different",
        style="green" if not different else "red",
    )
