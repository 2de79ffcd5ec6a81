"""The client against a board in Python that loses, damages and repeats as told."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from link_board import places

from trivet.hdl.config import SMALL
from trivet.hdl.isa import Expand, Instruction, Op, Port, Program
from trivet.runtime.device import DeviceError
from trivet.runtime.link.client import BoardClient
from trivet.runtime.link.expand import expand_requests
from trivet.runtime.link.frame import Counters, Frame, FrameError, FrameReader, Nak, Type

PROGRAM = Program(SMALL, (Instruction(op=Op.END),), bytes(1024), bytes(64), b"", b"", (), (), ())
WORD = SMALL.word_bytes


class PythonBoard:
    """Answers as the hardware does; ``spoil(answer, number)`` is what the line makes of it."""

    def __init__(self, spoil: Callable[[bytes, int], bytes] | None = None) -> None:
        self.reader = FrameReader()
        self.memory = bytearray(b"\xee" * (SMALL.act_words * WORD))
        self.spoil = spoil or (lambda data, number: data)
        self.requests: list[Frame] = []
        self.runs = 0
        self.config = SMALL.sha256
        self.refuse: dict[Type, bytes] = {}
        self.out = b""

    def write(self, data: bytes) -> None:
        for frame in self.reader.feed(data):
            answer = (
                Frame(Type.NAK, bytes([Nak.CRC]))
                if isinstance(frame, FrameError)
                else self.answer(frame)
            )
            self.out += self.spoil(answer.encode(), len(self.requests))

    def read(self, timeout: float) -> bytes:
        out, self.out = self.out, b""
        return out

    def answer(self, frame: Frame) -> Frame:
        self.requests.append(frame)

        def reply(kind: Type, payload: bytes = b"") -> Frame:
            return Frame(kind, payload, frame.seq, frame.stream)

        if Type(frame.type) in self.refuse:
            return reply(Type.NAK, self.refuse[Type(frame.type)])
        if frame.type == Type.HELLO:
            payload = bytes(32) + bytes.fromhex(self.config) + b"python".ljust(16, b"\0")
            return reply(Type.HELLO, payload + struct.pack("<HBBI", 1, 1, 1, 0))
        if frame.type == Type.LOAD:
            space, _, run, offset = struct.unpack_from("<BBHI", frame.payload)
            if space == 0:
                for place, value in zip(places(WORD, offset, run), frame.payload[8:], strict=False):
                    self.memory[place] = value
            return reply(Type.ACK)
        if frame.type == Type.PEEK:
            _, _, run, offset, length = struct.unpack("<BBHIH", frame.payload)
            found = places(WORD, offset, run)
            return reply(Type.DATA, bytes(self.memory[next(found)] for _ in range(length)))
        if frame.type == Type.RUN:
            self.runs += 1
            return reply(Type.DONE, frame.payload[:4] + struct.pack("<II", 0, 77))
        if frame.type == Type.COUNTERS:
            first, count = struct.unpack("<HH", frame.payload)
            values = b"".join(struct.pack("<III", k, 2, 3) for k in range(first, first + count))
            return reply(Type.COUNTERS, values)
        return reply(Type.ACK)


def client(board: PythonBoard, **options: Any) -> BoardClient:
    return BoardClient(board, "fpga0", **{"timeout": 0.05, "run_timeout": 5.0} | options)


@pytest.mark.parametrize("hwc", [(1, 1, 3), (3, 4, 4), (5, 60, 6), (2, 2, 1100), (1, 1, 2048)])
def test_tensors_of_any_shape_come_back(hwc: tuple[int, int, int]) -> None:
    board = PythonBoard()
    link = client(board)
    link.load_program(PROGRAM.to_bytes())
    array = np.random.default_rng(1).integers(-128, 128, hwc).astype(np.int8)
    port = Port("x", 5, hwc, "int8")
    link.write_tensor(port, array)
    assert np.array_equal(link.read_tensor(port), array)
    words = -(-hwc[2] // WORD)  # pixels start at words
    for pixel, want in enumerate(array.reshape(-1, hwc[2])):
        start = (5 + pixel * words) * WORD
        assert bytes(board.memory[start : start + hwc[2]]) == want.tobytes()


def test_expanded_input_is_filled_once_and_sent_in_requests_that_repeat() -> None:
    expand = Expand((24, 24, 2), 3, 3, 1, 1, 1, 1, 24, 24, -3)
    port = Port("x", 7, (24, 24, 2), "int8", expand)
    lost = {2}
    board = PythonBoard()
    link = client(board)
    image = Program(SMALL, PROGRAM.instructions, b"", b"", b"", b"", (port,), (), ())
    link.load_program(image.to_bytes())
    words = 576 * 5  # 18 channels in words of 4 bytes
    filled = slice(7 * WORD, (7 + words) * WORD)
    inside = bytes([253]) * len(board.memory[filled])
    assert board.memory[filled] == inside
    assert board.memory[: 7 * WORD] == b"\xee" * 7 * WORD
    assert board.memory[filled.stop :] == b"\xee" * len(board.memory[filled.stop :])

    before = len(board.requests)
    board.spoil = lambda data, number: b"" if number - before in lost else data
    array = np.random.default_rng(1).integers(-128, 128, (24, 24, 2)).astype(np.int8)
    link.write_tensor(port, array)
    sent = board.requests[before:]
    wanted = list(expand_requests(expand, 7, WORD, array.tobytes()))
    assert [f.payload for f in sent] == [wanted[0], wanted[1], wanted[1]]
    with pytest.raises(DeviceError, match=r"input 'x' lies spread over .* cannot be read back"):
        link.read_tensor(port)


def test_damaged_and_lost_answers_are_asked_for_again() -> None:
    def spoil(data: bytes, number: int) -> bytes:
        if number % 3 == 1:
            return data[:4] + bytes([data[4] ^ 1 or 2]) + data[5:]
        return b"" if number % 3 == 2 else data

    board = PythonBoard(spoil)
    assert client(board).run(ticket=9) == 77
    seqs = [f.seq for f in board.requests]
    assert len(seqs) == 3
    assert len(set(seqs)) == 1  # the board tells repetitions by their number


def test_damaged_request_is_sent_again() -> None:
    board = PythonBoard()
    original, sent = board.write, []

    def damage(data: bytes) -> None:
        sent.append(data)
        original(data if len(sent) > 1 else data[:5] + bytes([data[5] ^ 1 or 2]) + data[6:])

    board.write = damage  # type: ignore[method-assign]
    client(board).reset()
    assert [f.type for f in board.requests] == [Type.RESET, Type.HELLO]
    assert len(sent) == 3
    assert sent[1].startswith(b"\0")


def test_retries_end() -> None:
    board = PythonBoard(lambda data, number: b"")
    with pytest.raises(DeviceError, match=r"^fpga0: RESET failed \d+ times \(no answer within"):
        client(board, retries=7, timeout=0.01).reset()
    assert len(board.requests) >= 8


def test_late_answers_are_not_taken_for_others() -> None:
    held: list[bytes] = []

    def spoil(data: bytes, number: int) -> bytes:
        if number == 1:
            held.append(data)
            return b""
        return (held.pop() if held else b"") + data

    board = PythonBoard(spoil)
    link = client(board)
    link.reset()
    assert link.run(3) == 77
    assert all(b.seq - a.seq in (0, 1) for a, b in pairwise(board.requests))


def test_counters_beyond_one_frame() -> None:
    found = client(PythonBoard()).counters(150, first=2)
    assert found == [Counters(k, 2, 3) for k in range(2, 152)]


def test_another_engine_is_refused() -> None:
    board = PythonBoard()
    board.config = "ab" * 32
    with pytest.raises(DeviceError, match=r"fpga0: board 'python' holds engine abab.*bitstream"):
        client(board).load_program(PROGRAM.to_bytes())
    assert [f.type for f in board.requests] == [Type.HELLO]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (Nak.RANGE, "has no such address"),
        (Nak.OWNER, "was reset, or belongs to another session"),
        (Nak.TYPE, "does not know this request"),
        (9, "unknown reason 9"),
    ],
)
def test_refusals_are_explained(code: int, text: str) -> None:
    board = PythonBoard()
    board.refuse[Type.RUN] = bytes([code])
    with pytest.raises(DeviceError, match=f"fpga0: the board refused RUN: it .*{text}|{text}"):
        client(board).run(1)


def test_engine_errors_name_the_instruction() -> None:
    board = PythonBoard()
    board.answer = lambda f: Frame(Type.ERROR, b"\x01\x05\x00", f.seq, f.stream)  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="stopped at instruction 5 with error 1"):
        client(board).run(1)


def test_wrong_arrays_and_damaged_programs_are_refused() -> None:
    link = client(PythonBoard())
    with pytest.raises(DeviceError, match="no program is loaded"):
        link.read_tensor(Port("x", 0, (1, 1, 4), "int8"))
    with pytest.raises(DeviceError, match="fpga0: program: no TRVP header"):
        link.load_program(b"zip")
    link.load_program(PROGRAM.to_bytes())
    with pytest.raises(DeviceError, match=r"'x' is uint8\[4\], must be int8 with 4 items"):
        link.write_tensor(Port("x", 0, (1, 1, 4), "int8"), np.zeros(4, np.uint8))
