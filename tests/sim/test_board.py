"""The compiled RTL under random programs: golden's bytes, the predicted cycles, any stall."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden_graph
import numpy as np
import pytest
from layerwise import feeds, nhwc
from random_graphs import random_graph, random_inputs

from trivet.compiler.errors import CompileError
from trivet.compiler.lower import lower
from trivet.hdl.config import DEFAULT, SMALL, EngineConfig
from trivet.hdl.isa import predicted_total
from trivet.runtime.device import DeviceError
from trivet.runtime.link.client import BoardClient
from trivet.runtime.link.frame import Frame, FrameReader, Nak, Space, Type, load_request
from trivet.sim.board import VirtualBoard
from trivet.sim.build import build

pytestmark = pytest.mark.rtl

CONFIGS = {"4x4": SMALL, "16x8": DEFAULT}


def boards(config: EngineConfig, **stalls: Any) -> tuple[VirtualBoard, BoardClient]:
    board = VirtualBoard(build(config), **stalls)
    return board, BoardClient(board, "fpga0")


def check_graphs(config: EngineConfig, seeds: range, client: BoardClient, **shape: Any) -> int:
    """Random graphs on the board: every layer and output is golden's, cycles are as predicted."""
    ran = 0
    for seed in seeds:
        graph = random_graph(seed, 5, **shape)
        try:
            program = lower(graph, [u.name for u in graph.units], config)
        except CompileError:
            continue  # does not fit this engine, or an addition has no exact tables
        client.load_program(program.to_bytes())
        for item, inputs in enumerate(random_inputs(graph, seed, 2)):
            values = golden_graph.run(graph, inputs)
            for port in program.inputs:
                client.write_tensor(port, feeds(program, values)[port.tensor])
            if item == 0:
                cycles = client.run(seed)
                assert cycles == predicted_total(config, program.instructions)
                found = client.counters(len(program.layers))
                assert [(c.cycles, c.stalls) for c in found] == [
                    (note.cycles, note.stalls) for note in program.layers
                ]
            else:
                for note in program.layers:
                    client.run(seed, note.instruction, 1)
                    want = nhwc(values[note.output.tensor]).reshape(note.output.hwc)
                    got = client.read_tensor(note.output)
                    assert np.array_equal(got, want), f"seed {seed}, {note.unit}"
            for port in program.outputs:
                want = nhwc(values[port.tensor]).reshape(port.hwc)
                assert np.array_equal(client.read_tensor(port), want), f"seed {seed}, {port.tensor}"
        ran += 1
    return ran


@pytest.mark.parametrize("name", CONFIGS)
def test_random_programs_give_golden_bytes(name: str) -> None:
    board, client = boards(CONFIGS[name])
    assert check_graphs(CONFIGS[name], range(12), client, channels=24, side=8) >= 4
    board.close()


@pytest.mark.parametrize("name", CONFIGS)
def test_depthwise_between_other_layers(name: str) -> None:
    """Windows of three taps a cycle, started early and followed by early starts."""
    board, client = boards(CONFIGS[name])
    kinds = ("depthwise", "depthwise", "conv", "max", "add")
    ran = check_graphs(CONFIGS[name], range(40, 60), client, channels=24, side=8, kinds=kinds)
    assert ran >= 8
    board.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_many_random_programs(name: str) -> None:
    board, client = boards(CONFIGS[name])
    assert check_graphs(CONFIGS[name], range(100, 250), client) >= 30
    board.close()


@pytest.mark.parametrize("stall", [0.1, 0.5, 0.9])
def test_stalls_change_no_byte(stall: float) -> None:
    board, client = boards(SMALL, seed=7, stall_in=stall, stall_out=stall)
    assert check_graphs(SMALL, range(4), client, channels=9, side=5) >= 2
    board.close()


@pytest.fixture
def small() -> Iterator[VirtualBoard]:
    board = VirtualBoard(build(SMALL))
    yield board
    board.close()


def answers(board: VirtualBoard, data: bytes) -> list[Any]:
    board.write(data)
    return list(FrameReader().feed(board.read()))


def test_random_damage_never_silences_the_board(small: VirtualBoard) -> None:
    rng = np.random.default_rng(3)
    good = Frame(Type.LOAD, load_request(Space.ACT, 0, bytes(range(200))), 1).encode()
    for _ in range(300):
        damaged = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            kind, place = rng.integers(3), int(rng.integers(len(damaged) - 1))
            if kind == 0:
                damaged[place] ^= 1 << rng.integers(8)
            elif kind == 1:
                del damaged[place : place + int(rng.integers(1, 30))]
            else:
                damaged[place:place] = rng.bytes(int(rng.integers(1, 1500)))
        data = bytes(damaged) + b"\0"
        blocks = sum(bool(block) for block in data.split(b"\0"))
        found = answers(small, data + Frame(Type.HELLO, seq=2).encode())
        assert len(found) == blocks + 1  # every block is answered once
        assert all(f.type in (Type.NAK, Type.ACK) for f in found[:-1])
        assert (found[-1].type, found[-1].seq) == (Type.HELLO, 2)


def test_reset_pin_in_the_middle_of_a_frame(small: VirtualBoard) -> None:
    data = Frame(Type.LOAD, load_request(Space.ACT, 0, bytes(range(1, 200)))).encode()
    for cut in (1, 5, 50, 150):
        small.write(data[:cut])
        small.run(1_000)
        small.reset()
        (answer,) = answers(small, Frame(Type.HELLO, seq=cut).encode())
        assert (answer.type, answer.seq) == (Type.HELLO, cut)


def test_time_stands_still_while_nothing_is_asked(small: VirtualBoard) -> None:
    small.read()
    before = small.cycles
    assert small.run(1_000_000)
    assert small.cycles - before < 20


def test_wrong_addresses_are_refused(small: VirtualBoard) -> None:
    request = Frame(Type.LOAD, load_request(Space.WGHT, SMALL.weight_words, b"x")).encode()
    (answer,) = answers(small, request)
    assert (answer.type, answer.payload) == (Type.NAK, bytes([Nak.RANGE]))


def test_another_configuration_is_refused(small: VirtualBoard) -> None:
    graph = random_graph(7, 3, channels=9, side=5)
    program = lower(graph, [u.name for u in graph.units], DEFAULT)
    with pytest.raises(DeviceError, match="fpga0: board 'virtual' holds engine"):
        BoardClient(small, "fpga0").load_program(program.to_bytes())


def test_stalls_are_probabilities() -> None:
    with pytest.raises(ValueError, match=r"stall_in is 1.5, must be at least 0, below 1"):
        VirtualBoard(build(SMALL), stall_in=1.5)


def test_damaged_library_is_named(tmp_path: Path) -> None:
    library = tmp_path / "board.so"
    library.write_bytes(b"\x7fELF")
    with pytest.raises(OSError, match=r"board\.so is damaged .*; delete it"):
        VirtualBoard(library)
