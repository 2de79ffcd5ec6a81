"""Renders the tables of docs/boards.md from the build reports in docs/builds.

    cp "$(trivet build --board B --folder)/report.json" docs/builds/B.json   # a report
    python benchmarks/boards.py --count B ...   # cycles of the networks on B's engine
    python benchmarks/boards.py                 # the tables
    python benchmarks/boards.py --check         # exit code 1 when they are out of date

Inferences a second are twofold. Engine-bound: Fmax over the cycles of a run, which the RTL was
counted to need (tests/end_to_end hold the closed form against the RTL). Link-bound: one over the
seconds that the plan gives to the link. A real board does not exceed the smaller of the two.
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
    """Write cycles and link seconds of the networks on the engines of these boards."""
    from trivet.compiler.driver import InfeasiblePlan, Options, compile_model
    from trivet.compiler.errors import CompileError
    from trivet.compiler.rig import default_rig
    from trivet.hdl.isa import predicted_total

    folder = Path(os.environ.get("TRIVET_SHARED", ROOT.parent / "shared")) / "models"
    table = counts()
    for name in names:
        rig = default_rig(name).with_options(place="fpga")
        row: dict[str, Any] = {}
        for short, (file, _) in NETWORKS.items():
            try:
                work = compile_model(folder / file, None, Options(rig, stop_after="lower")).work
            except (CompileError, InfeasiblePlan) as e:
                row[short] = {"refused": str(e)}
                continue
            assert work.plan is not None
            assert work.graph is not None
            programs = list((work.programs or {}).items())
            if not programs:
                row[short] = {"refused": "no layer fits"}
                continue
            done = sum(note.macs for _, p in programs for note in p.layers)
            row[short] = {
                "cycles": sum(predicted_total(p.config, p.instructions) for _, p in programs),
                "link_seconds": sum(work.plan.stages[k].communication for k, _ in programs),
                "macs_share": round(done / sum(u.macs for u in work.graph.units), 4),
            }
        device = next(d for d in rig.devices if d.engine is not None)
        assert device.engine is not None
        table[name] = {"engine_sha256": device.engine.sha256, "networks": row}
    COUNTS.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")


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
    table = counts()
    lines = [
        "Inferences a second, one at a time (closed form of the cycles, equal to the RTL's count):",
        "",
        "| | IC | KWS | AD | source |",
        "|---|---|---|---|---|",
    ]
    for r in found:
        row = table.get(r["board"])
        if row is None or row["engine_sha256"] != r["engine_sha256"] or r["fmax_hz"] is None:
            continue
        engine, link = [], []
        for short in NETWORKS:
            n = row["networks"][short]
            whole = "refused" not in n and n["macs_share"] == 1
            engine.append(f"{r['fmax_hz'] / n['cycles']:,.0f}" if whole else "does not fit")
            link.append(f"{1 / n['link_seconds']:,.0f}" if whole else "-")
        lines.append(
            f"| {r['board']}, engine-bound | {' | '.join(engine)} | counted cycles, routed Fmax |"
        )
        lines.append(f"| {r['board']}, link-bound | {' | '.join(link)} | the plan's link |")
    for name, speeds in PUBLISHED:
        cells = " | ".join(f"{speeds[s]:,}" if s in speeds else "-" for s in NETWORKS)
        lines.append(f"| {name} | {cells} | published |")
    return "\n".join(lines) + f"\n\n{SOURCE[0].upper()}{SOURCE[1:]}.\n"


def page() -> str:
    """docs/boards.md with its tables as they should be."""
    text = PAGE.read_text(encoding="utf-8")
    start = text.index(MARKS[0]) + len(MARKS[0])
    return f"{text[:start]}{render()}{text[text.index(MARKS[1], start) :]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", nargs="+", metavar="BOARD", default=[])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.count:
        count(options.count)
    wanted = page()
    if options.check:
        return int(wanted != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
