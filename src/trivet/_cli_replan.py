"""The command that places a bundle's stages anew, by what a stream of it took."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trivet._cli_common import Fault, check_target, console, print_json

if TYPE_CHECKING:
    from trivet.compiler.cost import Cost
    from trivet.runtime.bundle import Bundle
    from trivet.runtime.device import Stage

__all__ = ["measured_times", "replan_command"]

Key = tuple[int, str]  # stage, device
Times = dict[Key, tuple[float, str]]  # seconds from item to item, and what stood behind the device
_SIMULATORS = ("virtual", "model")
_SAMPLES = 20
_LIMIT = 2.0  # seconds for a stage's samples on the CPU


def measured_times(path: Path) -> Times:
    """Seconds of an item by stage and device. What the CPU did in a board's place is left out.

    ``path`` is a trace (Chrome's JSON), or what ``trivet run --json`` printed. In a trace an item's
    time on a device begins when the item before it was done, if that was later than its own start.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise Fault(f"trace {path}: cannot be read ({e.strerror}); check the path") from e
    except ValueError as e:
        raise Fault(f"trace {path}: not JSON ({e}); trace a run again") from e
    try:
        if isinstance(data, dict) and "stages" in data:
            rows = [r for r in data["stages"] if r["items"]]
            # A device that failed comes first, and then the CPU in its place.
            times = {
                (int(r["stage"]), str(r["device"])): (r["busy"] / r["items"], str(r["attach"]))
                for r in reversed(rows)
            }
        else:
            times = _traced(data["traceEvents"] if isinstance(data, dict) else data)
    except (KeyError, TypeError, AttributeError) as e:
        raise Fault(
            f"trace {path}: neither a trace nor what trivet run --json prints ({e}); trace a run "
            "again"
        ) from e
    if not times:
        raise Fault(f"trace {path}: no item of any stage is in it; trace a stream of some items")
    return times


def _traced(events: list[Any]) -> Times:
    spans: dict[tuple[int, str, str], list[tuple[float, float]]] = {}
    for event in events:
        facts = event.get("args") or {}
        if event.get("ph") != "X" or not {"stage", "device"} <= set(facts):
            continue
        if "predicted" in str(event.get("cat", "")) or facts.get("predicted"):
            continue
        key = int(facts["stage"]), str(facts["device"]), str(facts.get("attach", ""))
        spans.setdefault(key, []).append((event["ts"], event["ts"] + event["dur"]))
    times: Times = {}
    for (stage, device, attach), found in spans.items():
        found.sort(key=lambda span: span[1])
        free, taken = 0.0, []
        for start, end in found:
            taken.append(end - max(start, free))
            free = end
        if attach != "cpu" or (stage, device) not in times:
            times[stage, device] = statistics.median(taken) / 1e6, attach
    return times


def replan_command(path: Path, trace: Path, out: Path | None, *, as_json: bool) -> None:
    from trivet.compiler.planner.replan import PlacedStage, replan
    from trivet.runtime.bundle import Bundle, BundleWriter

    if out is not None:
        check_target(out)
    times = measured_times(trace)
    with Bundle.open(path) as bundle:
        rig = bundle.rig().devices
        plan = bundle.plan_json()
        stages = bundle.stages()
        infos = bundle.manifest.stages
        for key in times:
            if key[0] >= len(stages) or key[1] not in rig:
                raise Fault(
                    f"trace {trace}: has stage {key[0]} on {key[1]}, which {path} has not; trace a "
                    "run of this bundle"
                )
        placed = []
        for stage, info, entry in zip(stages, infos, plan["stages"], strict=True):
            members = tuple(info.members or [entry["device"]])
            seconds = _seconds(bundle, stage, members, entry, times, trace.name)
            placed.append(PlacedStage(tuple(info.inputs), tuple(info.outputs), members, seconds))
        sorts = {
            name: (device.kind, f"{device.kind} {device.board} {device.clock_hz}")
            for name, device in rig.items()
        }
        found = replan(plan, placed, sorts)
        if out is not None:
            writer = BundleWriter.copy_of(bundle)
            writer.place(json.dumps(found.plan, indent=1).encode() + b"\n", found.homes)
    if out is not None:
        writer.write(out)
    simulated = sorted({n for (_, n), (_, attach) in times.items() if attach in _SIMULATORS})
    if simulated:
        print(
            f"trivet: warning: the times of {', '.join(simulated)} are a simulator's and say "
            "nothing of a board; trace a run with the board",
            file=sys.stderr,
        )
    if as_json:
        print_json(found.plan)
        return
    screen = console()
    for k, (old, new) in enumerate(zip(placed, found.homes, strict=True)):
        cost = old.seconds[new[0]]
        moved = "" if old.members == new else f", was on {', '.join(old.members)}"
        screen.print(
            f"stage {k} on {', '.join(new)}{moved}: {cost.value * 1e3:.4g} ms an item "
            f"({cost.source}: {cost.detail})",
            markup=False,
            soft_wrap=True,
        )
    screen.print(
        f"{found.before * 1e3:.4g} ms from item to item become {found.after * 1e3:.4g}, at least "
        f"{found.solution.lower_bound * 1e3:.4g} with these stages"
        + (f" -> {out}" if out is not None else "; -o NEW.trivet writes it"),
        markup=False,
        soft_wrap=True,
    )


def _seconds(
    bundle: Bundle,
    stage: Stage,
    members: tuple[str, ...],
    entry: Mapping[str, Any],
    times: Times,
    source: str,
) -> dict[str, Cost]:
    """Seconds of an item on every device that may run the stage, and where each is from."""
    from trivet.compiler.cost import Cost

    rig = bundle.rig().devices
    found: dict[str, Cost] = {}
    for (index, name), (seconds, attach) in times.items():
        # What the CPU computed in a board's place says nothing of the board.
        if index == stage.index and (attach != "cpu" or rig[name].kind == "cpu"):
            what = ", of a simulator, not of the board" if attach in _SIMULATORS else ""
            found[name] = Cost(seconds, "s", "measured", f"in {source}{what}")
    own = rig[members[0]]
    for name, device in rig.items():
        alike = (device.kind, device.board, device.clock_hz) == (own.kind, own.board, own.clock_hz)
        if name in found:
            continue
        if device.kind == "cpu" and (stage.kind == "onnx" or stage.fallback is not None):
            found[name] = Cost(
                _on_cpu(stage, device.threads or 0), "s", "measured",
                f"alone on this machine's CPU, {device.threads or 'all'} threads",
            )  # fmt: skip
        elif device.kind == "fpga" and alike and stage.kind == "program":
            known = next((m for m in members if m in found), None)
            if known is not None:
                found[name] = Cost(found[known].value, "s", "measured", f"as {known} in {source}")
            elif name in members and entry.get("compute") is not None:
                found[name] = Cost(float(entry["compute"]), "s", "predicted", "as the plan has it")
    return found


def _on_cpu(stage: Stage, threads: int) -> float:
    """Median seconds of an item in onnxruntime, on zeros."""
    from trivet.runtime.devices.cpu import CpuDevice
    from trivet.runtime.measure import item_seconds

    device = CpuDevice("cpu", {"threads": str(threads)})
    try:
        device.prepare(stage)
        return statistics.median(item_seconds(device, stage, _SAMPLES, least=2, limit=_LIMIT))
    finally:
        device.close()
