"""Renders the tables of docs/boards.md from the build reports in docs/builds.

    cp "$(trivet build --board B --folder)/report.json" docs/builds/B.json   # a report
    python benchmarks/boards.py --count [B ...] # cycles of the networks on B's (or any) engine
    python benchmarks/boards.py                 # the tables
    python benchmarks/boards.py --check         # exit code 1 when they are out of date

Inferences a second are twofold. Engine-bound: the clock over the cycles of a run, which the RTL was
counted to need (tests/end_to_end hold the closed form against the RTL); the clock is a routed
design's Fmax, or else the board's planned clock, and the table says which. Link-bound: the link's
bytes a second over an item's bytes, the larger of both directions; or, one item after the other,
one over the seconds that the plan gives to the link. No board exceeds the smaller of the bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUILDS = ROOT / "docs" / "builds"
COUNTS = BUILDS / "networks.json"
PAGE = ROOT / "docs" / "boards.md"
MARKS = ("<!-- builds: python benchmarks/boards.py -->\n", "<!-- end -->\n")
NETWORKS = {
    "IC": ("mlperf_tiny_ic_resnet8_int8.onnx", "image classification, ResNet-8"),
    "KWS": ("mlperf_tiny_kws_dscnn_int8.onnx", "keyword spotting, DS-CNN"),
    "AD": ("mlperf_tiny_ad_autoencoder_int8.onnx", "anomaly detection, AutoEncoder"),
}
# Inferences a second, closed division; all from MLPerf Tiny's results pages, v1.0 to v1.2.
PUBLISHED = (
    ("GAP9, 370 MHz", {"IC": 1623, "KWS": 2103, "AD": 5692}),
    ("fpgaConvNet, ZedBoard (220 DSPs)", {"IC": 2432, "KWS": 3087}),
    ("fpgaConvNet, Zybo", {"IC": 318, "KWS": 465}),
    ("STM32H7", {"IC": 24, "KWS": 88}),
)
SOURCE = "published: MLPerf Tiny results v1.0 - v1.2, mlcommons.org/benchmarks/inference-tiny"
NOTES = (
    "A link's bytes are an item's tensors alone, both directions at once, as many items under way "
    "as it takes; where the board spreads an input over windows, its cycles bound that, too. "
    "Gigabit Ethernet: 1,024 of every 1,102 bytes on the wire are an item's (header and checksum "
    "of the frame 12, UDP, IP and Ethernet 46, preamble and gap 20). Published figures are "
    "measured, with their own rules; nothing of ours ran on a board."
)
ETHERNET_BOARDS = ("ecpix5-85",)
ETHERNET_BYTES_PER_SECOND = 125e6 * 1024 / (1024 + 12 + 46 + 20)


def reports() -> list[dict[str, Any]]:
    found = [
        json.loads(p.read_text(encoding="utf-8"))
        for p in sorted(BUILDS.glob("*.json"))
        if p != COUNTS
    ]
    return sorted(found, key=lambda r: (-r["resources"].get("dsp", {"budget": 0})["budget"],
                                        r["board"]))  # fmt: skip


def counts() -> dict[str, Any]:
    return json.loads(COUNTS.read_text(encoding="utf-8")) if COUNTS.exists() else {}


def count(names: list[str]) -> None:
    """Write what the networks need of the engines and links of these boards."""
    from trivet import boards

    table = counts()
    for name in names:
        table[name] = _count(boards.get(name))
    COUNTS.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _count(board: Any) -> dict[str, Any]:
    from trivet.hdl.config import EngineConfig

    link = board.link
    return {
        "engine_sha256": EngineConfig(**board.engine).sha256,
        "clock_hz": board.clock_hz,
        "link": {
            "kind": link.kind,
            "bytes_per_second": link.bandwidth_bytes_per_second,
            "source": link.source,
        },
        "networks": {short: count_network(board.name, short) for short in NETWORKS},
    }


def count_network(board: str, short: str) -> dict[str, Any]:
    """Cycles, bytes and link seconds of a network on a board's engine; or why there are none."""
    from math import prod

    from trivet.compiler.driver import InfeasiblePlan, Options, compile_model
    from trivet.compiler.errors import CompileError
    from trivet.compiler.rig import default_rig
    from trivet.hdl.isa import predicted_total
    from trivet.hdl.transfer import expand_cycles

    folder = Path(os.environ.get("TRIVET_SHARED", ROOT.parent / "shared")) / "models"
    rig = default_rig(board).with_options(place="fpga")
    try:
        options = Options(rig, stop_after="lower")
        work = compile_model(folder / NETWORKS[short][0], None, options).work
    except (CompileError, InfeasiblePlan) as e:
        return {"refused": str(e)}
    assert work.plan is not None
    assert work.graph is not None
    programs = list((work.programs or {}).items())
    if not programs:
        return {"refused": "no layer fits"}
    done = sum(note.macs for _, p in programs for note in p.layers)
    inputs = [port for _, p in programs for port in p.inputs]
    outputs = [port for _, p in programs for port in p.outputs]
    return {
        "cycles": sum(predicted_total(p.config, p.instructions) for _, p in programs),
        "expand_cycles": sum(expand_cycles(p.expand) for p in inputs if p.expand is not None),
        "bytes_in": sum(prod(port.hwc) for port in inputs),
        "bytes_out": sum(prod(port.hwc) for port in outputs),
        "link_seconds": sum(work.plan.stages[k].communication for k, _ in programs),
        "macs_share": round(done / sum(u.macs for u in work.graph.units), 4),
    }


def render() -> str:
    found = reports()
    if not found:
        return "No build report is kept here yet.\n"
    return "\n".join((_builds(found), _paths(found), _speeds(found)))


def _builds(found: list[dict[str, Any]]) -> str:
    lines = [
        "| board | engine | clock | Fmax, worst corner | LUT | FF | multipliers | block RAMs | "
        "seed | seconds | memory |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in found:
        use = [_use(r["resources"].get(name)) for name in ("lut", "ff", "dsp", "bram")]
        fmax = "export only" if r["fmax_hz"] is None else f"{r['fmax_hz'] / 1e6:.1f} MHz"
        if r["fmax_hz"] is not None and r["fmax_hz"] < r["clock_target_hz"]:
            fmax += " (missed)"
        if "nextpnr-himbaechel" in r["tools"]:
            fmax += " (not to be relied upon)"
        seconds = sum(p["seconds"] for p in r["phases"])
        memory = max((p["memory_bytes"] or 0 for p in r["phases"]), default=0)
        seed = "-" if r["seed"] is None else f"{r['seed']} of {len(r['seeds'])}"
        lines.append(
            f"| {r['board']} | {r['engine']['lanes']} x {r['engine']['simd']} | "
            f"{r['clock_target_hz'] / 1e6:g} MHz | {fmax} | {' | '.join(use)} | {seed} | "
            f"{seconds:.0f} | {memory / 1e9:.2f} GB |"
        )
    return "\n".join(lines) + "\n\nUsed of budget (error of the prediction).\n"


def _use(r: dict[str, Any] | None) -> str:
    if r is None:
        return "-"
    error = "" if r["error"] is None else f" ({100 * r['error']:+.1f} %)"
    return f"{r['used']:,} of {r['budget']:,}{error}"


def _paths(found: list[dict[str, Any]]) -> str:
    lines = ["Critical paths:", ""]
    for r in found:
        if r["critical_path"] is not None:
            lines.append(f"- {r['board']}: {r['critical_path']['text']}")
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def _speeds(found: list[dict[str, Any]]) -> str:
    lines = [
        "Inferences a second, a whole network on the board:",
        "",
        "| | IC | KWS | AD | source |",
        "|---|---|---|---|---|",
    ]
    best: dict[tuple[str, str], float] = {}
    for name, row in sorted(counts().items()):
        lines += _bounds(name, row, next((r for r in found if r["board"] == name), None), best)
    for name, speeds in PUBLISHED:
        cells = " | ".join(f"{speeds[s]:,}" if s in speeds else "-" for s in NETWORKS)
        lines.append(f"| {name} | {cells} | published |")
    return "\n".join(lines) + f"\n\n{SOURCE[0].upper()}{SOURCE[1:]}. {NOTES}\n" + _against(best)


def _bounds(
    name: str,
    row: dict[str, Any],
    report: dict[str, Any] | None,
    best: dict[tuple[str, str], float],
) -> list[str]:
    """Rows of one board: by its engine, by its link. ``best`` takes what routed engines give."""
    networks = row["networks"]
    whole = {s for s, n in networks.items() if "refused" not in n and n["macs_share"] == 1}
    if not whole:
        shares = (f"{100 * networks[s].get('macs_share', 0):.0f} % fits" for s in NETWORKS)
        return [f"| {name} | {' | '.join(shares)} | share of the MACs, counted |"]

    def line(what: str, value: Any, source: str) -> str:
        cells = (
            f"{value(networks[s]):,.0f}"
            if s in whole
            else f"{100 * networks[s].get('macs_share', 0):.0f} % fits"
            for s in NETWORKS
        )
        return f"| {name}, {what} | {' | '.join(cells)} | {source} |"

    clock, told = row["clock_hz"], "planned clock, not routed"
    if report is not None and report["fmax_hz"] and report["engine_sha256"] == row["engine_sha256"]:
        clock, told = report["fmax_hz"], "Fmax of the routed design, not run"
        best.update({(name, s): clock / networks[s]["cycles"] for s in whole})
    lines = [
        line(
            f"engine-bound at {clock / 1e6:.1f} MHz",
            lambda n: clock / n["cycles"],
            f"cycles counted in RTL; {told}",
        )
    ]
    links = [(row["link"]["kind"].upper(), row["link"]["bytes_per_second"])]
    if name in ETHERNET_BOARDS:
        links.append(("gigabit Ethernet", ETHERNET_BYTES_PER_SECOND))
    for kind, rate in links:
        lines.append(
            line(
                f"link-bound, {kind} of {rate / 1e6:.3g} MB/s",
                lambda n, rate=rate: 1 / _link_seconds(n, rate, clock),
                "bytes counted, rate given",
            )
        )
    lines.append(
        line(
            f"one at a time over {links[0][0]}",
            lambda n: 1 / n["link_seconds"],
            "link of the plan: bytes and round trips counted, rate and latency given",
        )
    )
    return lines


def _link_seconds(network: dict[str, Any], rate: float, clock: float) -> float:
    """Both directions at once; what comes in is spread over windows by the board as well."""
    received = max(network["bytes_in"] / rate, network["expand_cycles"] / clock)
    return max(received, network["bytes_out"] / rate)


def _against(best: dict[tuple[str, str], float]) -> str:
    """What routed engines, bound by themselves, are to the published figures."""
    lines = []
    for name, speeds in PUBLISHED:
        for (board, short), speed in sorted(best.items()):
            if short in speeds:
                lines.append(f"- {board}, {short}: {speed / speeds[short]:.2f} times {name}")
    if not lines:
        return ""
    return "\nEngine-bound and routed, over the published:\n\n" + "\n".join(lines) + "\n"


def page() -> str:
    """docs/boards.md with its tables as they should be."""
    text = PAGE.read_text(encoding="utf-8")
    start = text.index(MARKS[0]) + len(MARKS[0])
    return f"{text[:start]}{render()}{text[text.index(MARKS[1], start) :]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", nargs="*", metavar="BOARD", help="none named: all")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.count is not None:
        from trivet import boards

        count(options.count or [b.name for b in boards.BOARDS.values() if b.engine])
    wanted = page()
    if options.check:
        return int(wanted != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
