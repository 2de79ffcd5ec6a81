"""The script behind stand_in_tools.py: plays one tool. Imports little, since it starts often."""

import json
import os
import sys
import time
from pathlib import Path


def _after(option: str) -> str:
    return sys.argv[sys.argv.index(option) + 1]


def main(tool: str) -> int:
    with open(os.environ["STAND_IN_CALLS"], "a") as calls:
        calls.write(f"{tool}\n")
    if os.environ.get("STAND_IN_HANG") == tool:
        print("Info: Routing..", flush=True)
        time.sleep(100)
    if os.environ.get("STAND_IN_FAIL") == tool:
        print("Info: so far so good\nERROR: it did not like that.")
        return 3
    if tool == "yosys":
        module: dict[str, object] = {"ports": {}, "cells": {}}
        Path("synth.json").write_text(json.dumps({"modules": {"top": module}}))
        if "write_verilog" in Path("build.ys").read_text():
            Path("top.v").write_text(f"// {Path('top.il').read_text()}")
        cells = {
            "LUT4": 5,
            "DSP48E1": 3,
            "RAMB36E1": 2,
            "RAMB18E1": 1,
            "MULT18X18D": int(os.environ.get("STAND_IN_DSPS", "1")),
        }
        Path("stat.json").write_text(json.dumps({"design": {"num_cells_by_type": cells}}))
        return 0
    if tool == "nextpnr-ecp5":
        seed = int(_after("--seed"))
        speed = float(os.environ.get("STAND_IN_FMAX", "60").split(",")[seed - 1])
        if speed < 0:
            print("ERROR: Failed to route arc.")
            return 1
        report = {
            "fmax": {"$glbnet$clk": {"achieved": speed, "constraint": 50.0}},
            "utilization": {"TRELLIS_COMB": {"used": 7, "available": 24288}},
            "critical_paths": [],
        }
        Path(_after("--report")).write_text(json.dumps(report))
        Path(_after("--textcfg")).write_text(f"{Path('top.il').read_text()} seed {seed}")
        return 0
    Path(_after("--bit")).write_text(Path(_after("--input")).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
