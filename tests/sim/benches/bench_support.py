"""What the cocotb benches share: cases, clock, byte streams with stalls, requests over the link.

Everything is driven and sampled at the falling edge of the clock, after which all signals are
settled until the rising edge; so Verilator and Icarus see the same cycles.
"""

from __future__ import annotations

import os
import random
from collections import deque
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly

from trivet.hdl.isa import Program
from trivet.runtime.link.frame import Frame, FrameError, FrameReader, Type

__all__ = ["Case", "Line", "cases", "stalls", "start"]

PERIOD_NS = 10


class Case:
    """A program, one item's inputs and golden's outputs, arrays of shape ``[h, w, c]``."""

    def __init__(self, path: str) -> None:
        with np.load(path) as data:
            self.image = data["program"].tobytes()
            self.inputs = {n[3:]: data[n] for n in data.files if n.startswith("in:")}
            self.outputs = {n[4:]: data[n] for n in data.files if n.startswith("out:")}
        self.program = Program.from_bytes(self.image)


def cases() -> list[Case]:
    return [Case(path) for path in os.environ["TRIVET_BENCH_CASES"].split(os.pathsep)]


def stalls() -> list[float]:
    return [float(text) for text in os.environ["TRIVET_BENCH_STALLS"].split(",")]


async def start(dut: Any) -> None:
    """Inputs at zero, clock running, reset done."""
    for signal in dut:
        name = signal._name
        if name in INPUTS:
            signal.value = 0
    cocotb.start_soon(Clock(dut.clk, PERIOD_NS, unit="ns").start())
    await reset(dut)


INPUTS = (
    "i__payload", "i__valid", "o__ready", "write_en", "write_space", "write_addr", "write_byte",
    "write_data", "read_en", "read_addr", "start", "first", "count", "counter_addr", "clear",
)  # fmt: skip


async def reset(dut: Any) -> None:
    await FallingEdge(dut.clk)
    dut.rst.value = 1
    await FallingEdge(dut.clk)
    await FallingEdge(dut.clk)
    dut.rst.value = 0


class Line:
    """Both byte streams of the board. Each stalls with probability ``stall`` a cycle."""

    def __init__(self, dut: Any, stall: float, seed: int) -> None:
        self.dut = dut
        self.stall = stall
        self.rng = random.Random(seed)
        self.seq = 0
        self.epoch = 0  # as the board has it
        self._to_board: deque[int] = deque()
        self._answers: deque[Frame | FrameError] = deque()
        self._reader = FrameReader()
        self._task = cocotb.start_soon(self._run())

    async def _run(self) -> None:
        dut = self.dut
        offered = False
        while True:
            await FallingEdge(dut.clk)
            if not offered and self._to_board and self.rng.random() >= self.stall:
                offered = True
                dut.i__payload.value = self._to_board[0]
            dut.i__valid.value = offered
            ready = self.rng.random() >= self.stall
            dut.o__ready.value = ready
            await ReadOnly()
            if offered and dut.i__ready.value == 1:
                # A reset may have emptied the queue meanwhile.
                if self._to_board:
                    self._to_board.popleft()
                offered = False
            if ready and dut.o__valid.value == 1:
                byte = int(dut.o__payload.value)
                self._answers.extend(self._reader.feed(bytes([byte])))

    def stop(self) -> None:
        self._task.cancel()

    def send(self, data: bytes) -> None:
        """Queue raw bytes."""
        self._to_board.extend(data)

    async def sent(self) -> None:
        """Wait until the queue is empty."""
        while self._to_board:
            await FallingEdge(self.dut.clk)

    async def answer(self, cycles: int = 20_000) -> Frame:
        """The next answer; AssertionError when it is damaged or does not come."""
        for _ in range(cycles):
            if self._answers:
                found = self._answers.popleft()
                assert isinstance(found, Frame), found
                return found
            await FallingEdge(self.dut.clk)
        raise AssertionError(f"no answer within {cycles} cycles")

    def ask(self, kind: int, payload: bytes = b"") -> int:
        """Queue a request; its sequence number."""
        self.seq = (self.seq + 1) & 0xFFFF
        self.send(Frame(kind, payload, self.seq, flags=self.epoch & 0xFF).encode())
        self.epoch += kind == Type.RESET
        return self.seq

    async def request(self, kind: int, payload: bytes = b"") -> Frame:
        """Send a request and wait for its answer."""
        seq = self.ask(kind, payload)
        found = await self.answer()
        assert found.seq == seq, f"answer to {found.seq} instead of {seq}: {found}"
        return found
