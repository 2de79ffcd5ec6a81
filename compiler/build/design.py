"""A board's design as RTLIL and constraints: pins, clock, UART, engine."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import Any

from trivet.boards.board import Board
from trivet.compiler.errors import CompileError
from trivet.hdl.config import EngineConfig

__all__ = ["Design", "design"]

MARGIN = 1.25
_CONSTRAINTS = {"ecp5": "top.lpf", "ice40": "top.pcf", "gowin": "top.cst", "xilinx": "top.xdc"}


@dataclass(frozen=True)
class Design:
    """A whole board as RTLIL.

    ``name`` is the top module; ``constraints`` are file name and text; ``clock_hz`` is the target
    of the engine's clock domain, and ``clock_net`` what nextpnr's report calls that clock.
    """

    name: str
    rtlil: str
    constraints: tuple[str, str]
    clock_hz: int
    clock_net: str


def design(board: Board, config: EngineConfig, build_sha256: bytes) -> Design:
    """The design of a board with an engine; CompileError when the board has no pins here."""
    if board.toolchain is None or board.wiring is None or board.clock_hz is None:
        raise CompileError(
            f"build: board {board.name!r} has no top level with pins yet; run on the virtual "
            "board, or use --no-bitstream"
        )
    from trivet.hdl.board.top import BoardTop
    from trivet.hdl.verilog import drop_zero_contents

    platform = _platform(board.wiring.platform)
    try:
        top = BoardTop(config, build_sha256, board)  # type: ignore[no-untyped-call]
    except ValueError as e:
        raise CompileError(f"build: {board.name}: {e}") from e
    files = platform.prepare(top, "top").files
    name = _CONSTRAINTS[board.toolchain.family]
    constraints = (name, _text(files[name]) + _margin(board))
    # Where a line of RTL came from names folders of this machine; the text must be the same on all.
    rtlil = re.sub(r"^ *attribute \\src .*\n", "", _text(files["top.il"]), flags=re.M)
    if board.toolchain.family == "xilinx":  # its memories hold zeros unless told otherwise
        rtlil = drop_zero_contents(rtlil)  # type: ignore[no-untyped-call]
    return Design("top", rtlil, constraints, board.clock_hz, r"clock\.clk$")


def _margin(board: Board) -> str:
    """A quarter more than the clock: placement leaves alone what meets its constraint, and routing
    costs some of it again. Reports compare with the clock itself."""
    if board.toolchain is None or board.clock_hz is None or board.toolchain.family != "ecp5":
        return ""
    return f'\nFREQUENCY NET "clock.clk" {board.clock_hz * MARGIN / 1e6:g} MHZ;\n'


def _platform(path: str) -> Any:
    """A fresh platform; each serves one design."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)()
    except ModuleNotFoundError as e:
        raise CompileError(
            f"build: {e.name} is not installed, which knows the board's pins; "
            "pip install 'trivet[build-ecp5]'"
        ) from e


def _text(content: str | bytes) -> str:
    return content if isinstance(content, str) else content.decode()
