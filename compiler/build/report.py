"""The report of a build: what it was made from, what came out, and what it took. JSON, format 1."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["CriticalPath", "Phase", "Report", "Resource", "Seed", "read_nextpnr", "without_times"]


class Resource(msgspec.Struct, frozen=True):
    """``used`` of ``budget``; ``error`` is predicted / used - 1."""

    used: int
    budget: int
    predicted: int | None = None
    error: float | None = None


class Seed(msgspec.Struct, frozen=True):
    """One run of place and route; ``fmax_hz`` None when it could not route."""

    seed: int
    fmax_hz: float | None
    seconds: float | None = None


class Phase(msgspec.Struct, frozen=True):
    """Wall-clock seconds and peak resident bytes of a tool; sums and maxima over seeds."""

    name: str
    seconds: float
    memory_bytes: int | None = None


class CriticalPath(msgspec.Struct, frozen=True):
    """The slowest way between two registers; ``text`` says it in words."""

    text: str
    source: str
    target: str
    logic_ns: float
    routing_ns: float
    cells: int
    through: list[str] = []


class Report(msgspec.Struct, frozen=True):
    """A build's report. ``phases`` and the seeds' seconds are measured, all else repeats exactly.

    ``inputs`` holds SHA-256 of configuration, RTL, constraints and recipe.
    """

    board: str
    engine: dict[str, Any]
    engine_sha256: str
    build_sha256: str
    inputs: dict[str, str]
    tools: dict[str, str]
    seed: int | None
    seeds: list[Seed]
    clock_target_hz: int
    fmax_hz: float | None
    critical_path: CriticalPath | None
    resources: dict[str, Resource]
    absorbed: dict[str, Any]
    phases: list[Phase]
    bitstream_sha256: str | None
    bitstream_bytes: int | None
    format: int = 1

    @property
    def met(self) -> bool:
        """Whether the clock's target is reached in the worst corner."""
        return self.fmax_hz is not None and self.fmax_hz >= self.clock_target_hz

    @property
    def seconds(self) -> float:
        return sum(p.seconds for p in self.phases)

    def to_json(self) -> bytes:
        raw = msgspec.json.encode(self, order="sorted")
        return msgspec.json.format(raw, indent=1) + b"\n"


def without_times(report: Report) -> Report:
    """The report as a bundle keeps it: equal for equal inputs, on every machine."""
    seeds = [msgspec.structs.replace(s, seconds=None) for s in report.seeds]
    return msgspec.structs.replace(report, seeds=seeds, phases=[])


def read_nextpnr(
    found: Mapping[str, Any], clock_net: str
) -> tuple[float | None, CriticalPath | None, dict[str, tuple[int, int]]]:
    """Fmax in Hz of the engine's clock, its critical path, and used/available by cell type.

    ``found`` is what nextpnr's ``--report`` wrote. The clock is the one whose name matches
    ``clock_net`` (a name or regular expression), else the slowest one.
    """
    clocks = {name: 1e6 * float(f["achieved"]) for name, f in found.get("fmax", {}).items()}
    named = {n: f for n, f in clocks.items() if n == clock_net or re.search(clock_net, n)}
    clock = min(named or clocks, key=lambda n: clocks[n], default=None)
    use = {n: (u["used"], u["available"]) for n, u in found.get("utilization", {}).items()}
    if clock is None:
        return None, None, use
    path = None
    for candidate in found.get("critical_paths", []):
        ends = (candidate["from"].split()[-1], candidate["to"].split()[-1])
        if ends == (clock, clock):
            path = _in_words(candidate["path"])
    return clocks[clock], path, use


_TOP = "the top level"


def _in_words(steps: list[Mapping[str, Any]]) -> CriticalPath | None:
    if not steps:
        return None
    routing = sum(s["delay"] for s in steps if s["type"] == "routing")
    logic = sum(s["delay"] for s in steps if s["type"] != "routing")
    cells = [s["from"]["cell"] for s in steps] + [steps[-1]["to"]["cell"]]
    modules = list(dict.fromkeys(_module(c) for c in cells))
    inner = sum(s["type"] == "logic" for s in steps)
    source, target = _register(cells[0]), _register(cells[-1])
    ends = (_TOP, _module(cells[0]), _module(cells[-1]))  # parts without a name are in _TOP
    through = [m for m in modules if m not in ends]
    by = f", through {', '.join(through)}" if through else ""
    text = (
        f"from {source} to {target}: {logic + routing:.1f} ns, {logic:.1f} of logic in {inner} "
        f"cells and {routing:.1f} of routing{by}"
    )
    return CriticalPath(text, source, target, round(logic, 3), round(routing, 3), inner, through)


def _plain(cell: str) -> list[str]:
    """A cell's name in parts, without what yosys and nextpnr put behind it."""
    name = re.split(
        r"_(?:TRELLIS_FF|TRELLIS_COMB|MULT18X18D|LUT4|PFUMX|L6MUX21|CCU2C|SB_|DFF)", cell
    )[0]
    name = re.sub(r"\$(?:[\w.]+)?", "", name)
    return [part for part in name.split(".") if part and not part.isdigit()]


def _module(cell: str) -> str:
    """The RTL module that a cell belongs to: its name without the signal."""
    parts = _plain(cell)
    return ".".join(parts[:-1]) or _TOP


def _register(cell: str) -> str:
    return ".".join(_plain(cell)) or _TOP
