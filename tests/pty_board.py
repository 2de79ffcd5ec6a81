"""A board's pins, bit by bit, behind a pseudo-terminal: BoardCore by Verilator, a process each."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trivet.hdl.board.top import BoardCore
from trivet.hdl.config import EngineConfig
from trivet.hdl.verilog import to_verilog
from trivet.sim.build import verilator_root

__all__ = ["BAUD", "CLOCK_HZ", "compile_board", "running"]

CLOCK_HZ, BAUD = 24_000_000, 3_000_000


def compile_board(folder: Path, config: EngineConfig, board: str, build: bytes) -> Path:
    """The simulator of a board; ``build`` is what its HELLO tells."""
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    core = BoardCore(config, build, board=board, clock_hz=CLOCK_HZ, baud=BAUD, receive_depth=2048)
    (folder / "board.v").write_text(to_verilog(core, "board"))
    root = verilator_root()
    environment = {**os.environ, "VERILATOR_ROOT": str(root)}
    subprocess.run(
        [root / "bin" / "verilator_bin", "--cc", "-O3", "--x-assign", "fast", "--x-initial",
         "fast", "--no-assert", "-Wno-fatal", "-Wno-lint", "--top-module", "board", "--prefix",
         "Vboard", "--Mdir", ".", "board.v"],
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
