"""cocotb: the whole board through its byte streams, with stalls, damage and resets."""

from __future__ import annotations

import random
from typing import Any

import cocotb
import numpy as np
from bench_support import Case, Line, cases, reset, stalls, start
from cocotb.triggers import ClockCycles

from trivet.hdl.isa import Port, predicted_total
from trivet.runtime.link.frame import (
    LOAD_BYTES,
    Counters,
    Done,
    Frame,
    Hello,
    Nak,
    Space,
    Type,
    counters_request,
    load_request,
    peek_request,
    run_request,
)
from trivet.runtime.program_file import ProgramFile


async def load_program(line: Line, case: Case) -> None:
    program = ProgramFile.from_bytes(case.image)
    for space, data in program.memories.items():
        word = program.word_bytes[space]
        step = LOAD_BYTES // word * word
        for begin in range(0, len(data), step):
            payload = load_request(space, begin // word, data[begin : begin + step])
            assert (await line.request(Type.LOAD, payload)).type == Type.ACK


async def load_inputs(line: Line, case: Case) -> None:
    for port in case.program.inputs:
        data = case.inputs[port.tensor].tobytes()
        payload = load_request(Space.ACT, port.offset, data, port.hwc[2])
        assert (await line.request(Type.LOAD, payload)).type == Type.ACK


async def run(line: Line, case: Case, ticket: int) -> None:
    """Run the item; cycles are those predicted."""
    answer = await line.request(Type.RUN, run_request(ticket))
    assert answer.type == Type.DONE
    cycles = predicted_total(case.program.config, case.program.instructions)
    assert Done.from_payload(answer.payload) == Done(ticket, 0, cycles)


async def check_outputs(line: Line, case: Case) -> None:
    for port in case.program.outputs:
        want = case.outputs[port.tensor]
        payload = peek_request(Space.ACT, port.offset, port.nbytes, port.hwc[2])
        answer = await line.request(Type.PEEK, payload)
        assert answer.type == Type.DATA
        found = np.frombuffer(answer.payload, port.dtype).reshape(port.hwc)
        assert np.array_equal(found, want), f"{(found != want).sum()} of {want.size} bytes differ"


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def stalled_streams_change_no_byte_and_no_cycle(dut: Any) -> None:
    await start(dut)
    for seed, stall in enumerate(stalls()):
        line = Line(dut, stall, seed)
        for case in cases():
            await load_program(line, case)
            await load_inputs(line, case)
            await run(line, case, ticket=seed)
            await check_outputs(line, case)
            notes = case.program.layers
            answer = await line.request(Type.COUNTERS, counters_request(0, len(notes)))
            found = Counters.from_payload(answer.payload)
            assert [(c.cycles, c.stalls) for c in found] == [(n.cycles, n.stalls) for n in notes]
        line.stop()


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def the_heaviest_stalls_lose_nothing(dut: Any) -> None:
    await start(dut)
    line = Line(dut, 0.9, seed=9)
    hello = Hello.from_payload((await line.request(Type.HELLO)).payload)
    assert hello.config_sha256 == cases()[0].program.config_sha256
    data = random.Random(9).randbytes(60)
    assert (await line.request(Type.LOAD, load_request(0, 3, data))).type == Type.ACK
    assert (await line.request(Type.PEEK, peek_request(0, 3, 60))).payload == data


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def damage_and_noise_change_nothing(dut: Any) -> None:
    await start(dut)
    rng = random.Random(11)
    line = Line(dut, 0.2, seed=11)
    case = cases()[0]
    await load_program(line, case)
    await load_inputs(line, case)
    for port in case.program.inputs:  # damaged LOADs of other bytes to the same place
        payload = load_request(Space.ACT, port.offset, rng.randbytes(port.nbytes), port.hwc[2])
        for _ in range(4):
            line.ask(Type.LOAD, payload)
            # The checksum's last byte stands just before the 0x00; never turn it into 0x00.
            place = -2
            line._to_board[place] ^= 0xFF if line._to_board[place] != 0xFF else 0x7F
            answer = await line.answer()
            assert (answer.type, answer.payload) == (Type.NAK, bytes([Nak.CRC]))
    line.send(bytes(rng.randrange(1, 256) for _ in range(200)) + b"\0")
    assert (await line.answer()).payload == bytes([Nak.CRC])
    await run(line, case, ticket=5)
    await check_outputs(line, case)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def resets_in_the_middle_are_survived(dut: Any) -> None:
    await start(dut)
    case = cases()[0]
    line = Line(dut, 0.0, seed=12)
    await load_program(line, case)

    # RESET while the engine runs: both requests are answered, the memories are kept.
    await load_inputs(line, case)
    first = line.ask(Type.RUN, run_request(1))
    second = line.ask(Type.RESET)
    answers = [await line.answer(), await line.answer()]
    assert [(a.type, a.seq) for a in answers] == [(Type.DONE, first), (Type.ACK, second)]
    assert Done.from_payload(answers[0].payload) == Done(1, 1, 0)
    await load_inputs(line, case)
    await run(line, case, ticket=2)
    await check_outputs(line, case)

    # The reset pin in the middle of a frame, and of a run.
    for cycles in (9, 60):
        line.ask(Type.RUN, run_request(3))
        await ClockCycles(dut.clk, cycles)
        line.stop()
        dut.i__valid.value = 0
        await reset(dut)
        line = Line(dut, 0.3, seed=cycles)
        await load_program(line, case)
        await load_inputs(line, case)
        await run(line, case, ticket=4)
        await check_outputs(line, case)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def runs_back_to_back_are_independent(dut: Any) -> None:
    await start(dut)
    case = cases()[0]
    line = Line(dut, 0.1, seed=13)
    await load_program(line, case)
    for ticket in range(4):
        await load_inputs(line, case)
        await run(line, case, ticket)
        await check_outputs(line, case)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def two_runs_are_queued_while_bytes_move(dut: Any) -> None:
    """Forms in turn; while one runs, the other's outputs are read and its inputs written anew."""
    await start(dut)
    case = cases()[0]
    odd = case.program.odd
    assert odd is not None
    assert not odd.release
    forms = ((0, case.program.inputs, case.program.outputs), (odd.first, odd.inputs, odd.outputs))
    epoch = seq = 0
    for stall in stalls():
        line = Line(dut, stall, seed=14)
        line.epoch, line.seq = epoch, seq
        await load_program(line, case)
        answers: dict[int, Frame] = {}

        async def answer(seq: int, line: Line = line, found: dict[int, Frame] = answers) -> Frame:
            while seq not in found:
                frame = await line.answer(200_000)
                found[frame.seq] = frame
            return found.pop(seq)

        def load(port: Port, line: Line = line) -> int:
            data = case.inputs[port.tensor].tobytes()
            return line.ask(Type.LOAD, load_request(Space.ACT, port.offset, data, port.hwc[2]))

        running: list[tuple[int, int]] = []
        for ticket in range(8):
            first, inputs, outputs = forms[ticket % 2]
            if len(running) == 2:
                seq, asked = running.pop(0)
                done = await answer(seq)
                assert (done.type, Done.from_payload(done.payload).ticket) == (Type.DONE, asked)
                for port in outputs:
                    payload = peek_request(Space.ACT, port.offset, port.nbytes, port.hwc[2])
                    found = await answer(line.ask(Type.PEEK, payload))
                    assert found.payload == case.outputs[port.tensor].tobytes()
            for seq in [load(port) for port in inputs]:
                assert (await answer(seq)).type == Type.ACK
            running.append((line.ask(Type.RUN, run_request(ticket, first)), ticket))
        # A reset with a run queued: each of the three requests is answered once.
        reset_seq = line.ask(Type.RESET)
        for seq, _ in running:
            assert (await answer(seq)).type == Type.DONE
        assert (await answer(reset_seq)).type == Type.ACK
        assert not answers
        await load_inputs(line, case)
        await run(line, case, ticket=9)
        await check_outputs(line, case)
        line.stop()
        epoch, seq = line.epoch, line.seq
