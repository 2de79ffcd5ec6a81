"""nextpnr's report in our words: the engine's clock, its critical path, modules by name."""

from typing import Any

import msgspec

from trivet.compiler.build.report import (
    Phase,
    Report,
    Resource,
    Seed,
    read_nextpnr,
    without_times,
)


def step(kind: str, delay: float, source: str, target: str) -> dict[str, Any]:
    return {"type": kind, "delay": delay, "from": {"cell": source}, "to": {"cell": target}}


START = "engine.address.running_TRELLIS_FF_Q"
PATH = [
    step("clk-to-q", 0.5, START, START),
    step("routing", 1.0, START, "engine.lanes.x_LUT4_Z$comb"),
    step("logic", 0.2, "engine.lanes.x_LUT4_Z$comb", "engine.lanes.x_LUT4_Z$comb"),
    step("routing", 2.0, "engine.lanes.x_LUT4_Z$comb", "engine.weight_memory.chunk0.0.3"),
    step("setup", 0.1, "engine.weight_memory.chunk0.0.3", "engine.weight_memory.chunk0.0.3"),
]  # fmt: skip
NEXTPNR = {
    "fmax": {
        "$glbnet$clk25": {"achieved": 300.0, "constraint": 25.0},
        "$glbnet$engine_clk": {"achieved": 104.5, "constraint": 100.0},
        "$glbnet$other": {"achieved": 50.0, "constraint": 25.0},
    },
    "critical_paths": [
        {"from": "posedge $glbnet$clk25", "to": "posedge $glbnet$engine_clk", "path": []},
        {"from": "posedge $glbnet$engine_clk", "to": "posedge $glbnet$engine_clk", "path": PATH},
    ],
    "utilization": {"TRELLIS_FF": {"used": 3, "available": 24288}},
}


def test_the_engines_clock_and_its_path_are_read() -> None:
    fmax, path, use = read_nextpnr(NEXTPNR, "engine_clk")
    assert fmax == 104.5e6
    assert use == {"TRELLIS_FF": (3, 24288)}
    assert path is not None
    assert path.text == (
        "from engine.address.running to engine.weight_memory.chunk0: 3.8 ns, 0.8 of logic in 1 "
        "cells and 3.0 of routing, through engine.lanes"
    )
    assert (path.logic_ns, path.routing_ns, path.through) == (0.8, 3.0, ["engine.lanes"])


def test_without_a_clock_of_that_name_the_slowest_counts() -> None:
    assert read_nextpnr(NEXTPNR, "nothing_like_it")[0] == 50e6
    assert read_nextpnr({}, "clk") == (None, None, {})


def test_a_bundles_report_has_no_times() -> None:
    report = Report(
        board="b", engine={"lanes": 1}, engine_sha256="e", build_sha256="s", inputs={}, tools={},
        seed=1, seeds=[Seed(1, 1e8, 3.5)], clock_target_hz=100_000_000, fmax_hz=1e8,
        critical_path=None, resources={"lut": Resource(10, 20, 11, 0.1)}, absorbed={},
        phases=[Phase("yosys", 2.0, 100)], bitstream_sha256="x", bitstream_bytes=4,
    )  # fmt: skip
    assert report.met
    assert report.seconds == 2.0
    bare = without_times(report)
    assert bare.seeds == [Seed(1, 1e8)]
    assert bare.phases == []
    assert msgspec.json.decode(bare.to_json(), type=Report) == bare
