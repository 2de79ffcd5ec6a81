"""A plan for people: stage table, bottleneck and why, bound, provenance, rules."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from .plan import Plan, RuleResult, StagePlan

__all__ = ["duration", "render", "short"]


def duration(seconds: float) -> str:
    """Seconds with three significant digits and a fitting unit."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1.0:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def amount(plan: Plan, value: float) -> str:
    """A time of the plan: seconds, or the plain number of a workload file."""
    return duration(value) if plan.unit == "s" else f"{value:.6g}"


def render(plan: Plan) -> RenderableType:
    """Everything of the plan, as rich renderables."""
    parts: list[RenderableType] = [_header(plan)]
    if not plan.feasible:
        parts += [Text.from_markup(f"  [red]conflict[/red] {escape(c)}") for c in plan.conflict]
    else:
        parts += [_stages(plan), _summary(plan)]
        if any(stage.costs for stage in plan.stages):
            parts.append(_provenance(plan))
        if plan.rules:
            parts.append(_rules(plan.rules))
    parts += [Text(f"note: {note}", style="dim") for note in plan.notes]
    return Group(*parts)


def _header(plan: Plan) -> Text:
    if not plan.feasible or plan.bottleneck is None or plan.lower_bound is None:
        return Text("plan: infeasible", style="bold red")
    rate = ""
    if plan.objective == "throughput" and plan.bottleneck:
        rate = f", {1 / plan.bottleneck:.4g} items/s" if plan.unit == "s" else ""
    proof = f"lower bound {amount(plan, plan.lower_bound)}, gap {100 * (plan.gap or 0):.2g} %"
    took = "" if plan.seconds is None else f", solved in {duration(plan.seconds)}"
    return Text(
        f"plan: {plan.objective} {amount(plan, plan.bottleneck)} an item{rate}; "
        f"{proof} ({plan.status}{took})",
        style="bold",
    )


def short(name: str, width: int = 32) -> str:
    """A name cut in its middle: the ends of node names tell them apart."""
    if len(name) <= width:
        return name
    half = (width - 2) // 2
    return f"{name[:half]}..{name[-half:]}"


def _units(stage: StagePlan) -> str:
    """First and last unit by their anchors, and how many; nodes where a plan names no units."""
    names = [short(n, 16) for n in stage.units or stage.nodes]
    if len(names) <= 1:
        return ", ".join(names)
    return f"{names[0]} .. {names[-1]} ({len(names)})"


def _devices(stage: StagePlan) -> str:
    """The device, and how many of its kind run the stage: replicas, shards."""
    text = stage.device
    if stage.replicas > 1:
        text += f" x {stage.replicas}"
    return text + (f" / {stage.shards}" if stage.shards > 1 else "")


def _stages(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True, width=1)
    for name in ("stage", "device"):
        table.add_column(name, no_wrap=True)
    table.add_column("units", overflow="fold")
    for name in ("compute", "link", "memory"):
        table.add_column(name, justify="right", no_wrap=True, min_width=8)
    for stage in plan.stages:
        marked = stage.index == plan.bottleneck_stage
        table.add_row(
            ">" if marked else "",
            str(stage.index),
            _devices(stage),
            Text(_units(stage)),
            amount(plan, stage.compute),
            amount(plan, stage.communication) if stage.communication else "-",
            _size(stage.memory_bytes),
            style="yellow" if marked else None,
        )
    return table


def _size(nbytes: int) -> str:
    if nbytes < 10_000:
        return f"{nbytes} B"
    size, unit = nbytes / 1024, "KiB"
    for larger in ("MiB", "GiB"):
        if size >= 1000:
            size, unit = size / 1024, larger
    return f"{size:.4g} {unit}"


def _summary(plan: Plan) -> Text:
    text = ""
    if plan.bottleneck_stage is not None:
        device = plan.stages[plan.bottleneck_stage].device
        text = (
            f"> bottleneck: stage {plan.bottleneck_stage} on {device}, because of its "
            f"{plan.bottleneck_reason}\n"
        )
    if plan.auto is not None and plan.bottleneck is not None:
        devices = ", ".join(dict.fromkeys(str(s["device"]) for s in plan.auto.stages))
        text += f"auto would use {devices}: {duration(plan.auto.bottleneck)} an item"
        if plan.auto.loss > 0:
            text += f"; this plan takes {1 + plan.auto.loss:.3g} times as long, as asked for"
    return Text(text)


def _provenance(plan: Plan) -> Text:
    """A line for each number; what the line before said of the same device is not repeated."""
    lines = []
    for stage in plan.stages:
        for name, cost in stage.costs.items():
            if cost.unit != "s":
                continue  # cycles: their seconds follow, with the count
            spread = "" if cost.spread is None else f", spread {100 * cost.spread:.2g} %"
            detail = cost.detail.partition("; ")[0] if name == "send" else cost.detail
            lines.append(
                f"  stage {stage.index} {name}: {duration(cost.value)} {cost.source}{spread} "
                f"({detail})"
            )
    return Text("where the numbers come from\n" + "\n".join(lines))


def _rules(rules: list[RuleResult]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("rule")
    table.add_column("where", overflow="fold")
    table.add_column("value", justify="right")
    table.add_column("limit", justify="right")
    table.add_column("")
    for rule in rules:
        if rule.limit is None:
            verdict = Text("reported", style="dim")
        elif rule.ok:
            verdict = Text("ok", style="green")
        else:
            verdict = Text("broken" if rule.hard else "missed", style="red")
        limit = "-" if rule.limit is None else f"{rule.limit:.4g}"
        table.add_row(rule.name, rule.where, f"{rule.value:.4g}", limit, verdict)
    return table
