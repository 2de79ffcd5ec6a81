"""yosys, nextpnr and ecppack played by one script, so that builds take a tenth of a second.

What they do is steered by environment variables: ``STAND_IN_FMAX`` (MHz for seed 1, 2, ...; a
negative one is a seed that cannot be routed), ``STAND_IN_FAIL`` (a tool that fails),
``STAND_IN_HANG`` (a tool that never ends), ``STAND_IN_DSPS`` (multipliers counted). Every call is
a line in the file ``STAND_IN_CALLS``.
"""

import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trivet import boards
from trivet.boards.board import Board, Toolchain
from trivet.compiler.build import build
from trivet.compiler.build.design import Design
from trivet.compiler.build.tools import Tool
from trivet.hdl.config import EngineConfig

__all__ = ["BOARD", "TINY", "hears_ctrl_c", "use"]

SCRIPT = Path(__file__).with_name("stand_in_script.py")
TINY = EngineConfig(
    lanes=1, simd=1, requantisers=1, act_bank_words=512, weight_words=512, param_words=64,
    tables=1, addends=1, instructions=16,
)  # fmt: skip
BOARD: Board = replace(
    boards.get("colorlight-i5"),
    clock_hz=50_000_000,
    engine=TINY.to_dict(),
    toolchain=Toolchain("ecp5", ("--25k", "--package", "CABGA381", "--speed", "6")),
)


def hears_ctrl_c() -> None:
    """For ``preexec_fn``: children of a shell's background job would ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def use(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Builds use the script's tools, a design without Amaranth, and a cache of their own."""
    tools = {
        name: Tool(name, (sys.executable, "-I", str(SCRIPT), name), "1.0", "native")
        for name in ("yosys", "nextpnr-ecp5", "ecppack")
    }
    monkeypatch.setattr(build, "toolset", lambda family: tools)
    monkeypatch.setattr(build, "design", _design)
    monkeypatch.setitem(boards.BOARDS, BOARD.name, BOARD)
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(cache))
    monkeypatch.setenv("STAND_IN_CALLS", str(cache / "calls"))
    cache.mkdir(parents=True, exist_ok=True)


def _design(board: Board, config: EngineConfig, build_sha256: bytes) -> Design:
    text = f"{config.to_dict()} {build_sha256.hex()}"
    return Design("top", text, ("top.lpf", ""), board.clock_hz or 0, "clk")
