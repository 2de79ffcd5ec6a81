"""cocotb: the engine alone, its memories written through its own ports."""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np
from bench_support import Case, cases, start
from cocotb.triggers import FallingEdge, ReadOnly

from trivet.hdl.engine import READ_LATENCY
from trivet.hdl.isa import Port, predicted_total
from trivet.runtime.link.frame import Space
from trivet.runtime.program_file import ProgramFile


async def write(dut: Any, space: Space, word_bytes: int, offset: int, data: bytes) -> None:
    """A byte a cycle from word ``offset`` on."""
    dut.write_en.value = 1
    dut.write_space.value = int(space)
    for k, byte in enumerate(data):
        dut.write_addr.value = offset + k // word_bytes
        dut.write_byte.value = k % word_bytes
        dut.write_data.value = byte
        await FallingEdge(dut.clk)
    dut.write_en.value = 0


async def write_program(dut: Any, case: Case) -> None:
    program = ProgramFile.from_bytes(case.image)
    for space, data in program.memories.items():
        await write(dut, space, program.word_bytes[space], 0, data)


def padded(case: Case, array: np.ndarray[Any, Any]) -> bytes:
    """A tensor as it lies in memory: pixels of whole words."""
    word = case.program.config.word_bytes
    h, w, c = array.shape
    space = np.zeros((h * w, -(-c // word) * word), np.uint8)
    space[:, :c] = array.reshape(h * w, c).view(np.uint8)
    return space.tobytes()


async def write_inputs(dut: Any, case: Case) -> None:
    for port in case.program.inputs:
        data = padded(case, case.inputs[port.tensor])
        await write(dut, Space.ACT, case.program.config.word_bytes, port.offset, data)


async def read(dut: Any, case: Case, port: Port) -> np.ndarray[Any, Any]:
    word = case.program.config.word_bytes
    h, w, c = port.hwc
    words = -(-c // word)
    data = b""
    for k in range(h * w * words):
        dut.read_en.value = 1
        dut.read_addr.value = port.offset + k
        await FallingEdge(dut.clk)
        dut.read_en.value = 0
        for _ in range(READ_LATENCY - 1):
            await FallingEdge(dut.clk)
        data += int(dut.read_data.value).to_bytes(word, "little")
    pixels = np.frombuffer(data, port.dtype).reshape(h, w, words * word)
    return pixels[:, :, :c]


async def run(dut: Any, first: int = 0, count: int = 0, limit: int = 20_000) -> int:
    """Start, wait for ``done``; the cycles counted."""
    dut.first.value = first
    dut.count.value = count
    dut.start.value = 1
    await FallingEdge(dut.clk)
    dut.start.value = 0
    for _ in range(limit):
        await ReadOnly()
        if dut.done.value == 1:
            assert dut.error.value == 0
            cycles = int(dut.cycles.value)
            await FallingEdge(dut.clk)
            return cycles
        await FallingEdge(dut.clk)
    raise AssertionError(f"not done after {limit} cycles")


async def check(dut: Any, case: Case) -> None:
    for port in case.program.outputs:
        want = case.outputs[port.tensor]
        found = await read(dut, case, port)
        assert np.array_equal(found, want), f"{(found != want).sum()} of {want.size} bytes differ"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def programs_give_golden_bytes_in_the_predicted_cycles(dut: Any) -> None:
    await start(dut)
    for case in cases():
        await write_program(dut, case)
        await write_inputs(dut, case)
        cycles = await run(dut)
        assert cycles == predicted_total(case.program.config, case.program.instructions)
        await check(dut, case)
        for note in case.program.layers:
            dut.counter_addr.value = note.instruction
            await FallingEdge(dut.clk)
            await FallingEdge(dut.clk)
            await FallingEdge(dut.clk)
            counters = int(dut.counter_data.value)
            assert counters & 0xFFFFFFFF == note.cycles
            assert counters >> 64 == note.stalls


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def layers_run_one_by_one_and_after_a_clear(dut: Any) -> None:
    await start(dut)
    case = cases()[0]
    await write_program(dut, case)
    await write_inputs(dut, case)
    dut.start.value = 1
    await FallingEdge(dut.clk)
    dut.start.value = 0
    for _ in range(40):
        await FallingEdge(dut.clk)
    dut.clear.value = 1
    await FallingEdge(dut.clk)
    dut.clear.value = 0
    await FallingEdge(dut.clk)
    assert dut.busy.value == 0
    await write_inputs(dut, case)
    for k in range(len(case.program.forms[0])):
        await run(dut, k, 1)
    await check(dut, case)
