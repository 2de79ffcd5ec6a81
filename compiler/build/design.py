"""The engine's top level as a board's design (stand-in: a byte stream, no pins)."""

from __future__ import annotations

from dataclasses import dataclass

from trivet.boards.board import Board
from trivet.compiler.errors import CompileError
from trivet.hdl.config import EngineConfig

__all__ = ["Design", "design"]


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
    toolchain = board.toolchain
    if toolchain is None or "--lpf-allow-unconstrained" not in toolchain.arguments:
        raise CompileError(
            f"build: board {board.name!r} has no top level with pins yet; run on the virtual "
            "board, or use --no-bitstream"
        )
    from amaranth.back import rtlil  # type: ignore[attr-defined]

    from trivet.hdl.top import Top

    top = Top(config, build_sha256, board=board.name)  # type: ignore[no-untyped-call]
    text = rtlil.convert(top, name="top", emit_src=False)
    return Design("top", text, ("top.lpf", ""), board.clock_hz or 50_000_000, "clk")
