"""The board in Python from frames on, as a reference and for lossy lines; and such lines."""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from trivet.hdl.config import EngineConfig
from trivet.hdl.isa import Program, predicted_total
from trivet.hdl.loader import memories
from trivet.runtime.link.frame import Frame, FrameError, FrameReader, Nak, Space, Type
from trivet.sim.reference import ReferenceMachine

__all__ = ["LinkBoard", "LossyLine", "places"]


def places(word: int, offset: int, run: int) -> Iterator[int]:
    """Byte addresses of a transfer into a memory of ``word`` bytes a word."""
    place, left = offset * word, run
    while True:
        yield place
        place, left = place + 1, left - 1
        if run and left == 0:
            place, left = -(-place // word) * word, run


class LinkBoard:
    """Takes frames, one at a time, and answers at once; a transport without losses.

    ``program`` says what the instructions mean; its memories must be loaded all the same, and what
    is in them is what runs. ``seconds`` is the board's clock: leases last ``lease`` of them.
    """

    def __init__(
        self, config: EngineConfig, *, name: str = "python", program: Program | None = None,
        window: int = 1, lease: float = 1e9,
    ) -> None:  # fmt: skip
        self.config, self.name, self.window, self.lease = config, name, window, lease
        self.program = program
        self.spaces = [bytearray(m.word_bytes * m.words) for m in memories(config)]
        self.words = [m.word_bytes for m in memories(config)]
        self.seconds = 0.0
        self.wedged = False
        self.executed: list[int] = []  # tickets
        self.requests = 0
        self._machine: ReferenceMachine | None = None
        self._reader = FrameReader()
        self._out = b""
        self.power_up()

    def power_up(self) -> None:
        """As after a loss of power: memories hold anything, nobody owns it."""
        self.epoch = 0
        self.until = -1.0  # end of the lease
        self.last = 0  # number of the LOAD or RUN done last
        self.runs: deque[tuple[int, int, int, bytes]] = deque(maxlen=2)
        for space in self.spaces:
            space[:] = bytes([0x5A]) * len(space)
        self._machine = None

    def write(self, data: bytes) -> None:
        for found in self._reader.feed(data):
            self.requests += 1
            if self.wedged:
                continue
            if isinstance(found, FrameError):
                self._out += Frame(Type.NAK, bytes([Nak.CRC])).encode()
            else:
                self._out += self.answer(found).encode()

    def read(self, timeout: float) -> bytes:
        if not self._out:
            self.seconds += max(timeout, 1e-4)
        out, self._out = self._out, b""
        return out

    def close(self) -> None:
        pass

    def answer(self, frame: Frame) -> Frame:
        refusal = self._judge(frame)
        kind, payload = (Type.NAK, bytes([refusal])) if refusal else self._do(frame)
        return Frame(kind, payload, frame.seq, frame.stream)

    def _judge(self, frame: Frame) -> Nak | None:
        owner = frame.flags == self.epoch & 0xFF
        if frame.type == Type.RESET and not owner and frame.flags == 0:
            owner = self.seconds >= self.until
        elif frame.type == Type.HELLO:
            if owner and self.epoch:
                self.until = self.seconds + self.lease
            return None
        if not owner:
            return Nak.OWNER
        if self.epoch and frame.type == Type.LOAD and not self._after(frame.seq, self.last):
            return Nak.OLD
        numbers = [seq for seq, *_ in self.runs]
        if self.epoch and frame.type == Type.RUN and frame.seq not in numbers:
            last = numbers[-1] if numbers else self.first
            if not self._after(frame.seq, last):
                return Nak.OLD
        self.until = self.seconds + self.lease
        return None

    @staticmethod
    def _after(seq: int, other: int) -> bool:
        return 0 < (seq - other) & 0xFFFF <= 0x8000

    def _do(self, frame: Frame) -> tuple[Type, bytes]:
        payload = frame.payload
        if frame.type == Type.HELLO:
            head = bytes(32) + bytes.fromhex(self.config.sha256)
            head += self.name.encode().ljust(16, b"\0")
            facts = struct.pack("<HBBI", self.config.isa, self.window, 2, self.epoch)
            return Type.HELLO, head + facts
        if frame.type == Type.RESET:
            count = self.epoch & 0xFF
            self.epoch = (1 if count == 0xFF else count + 1) | frame.stream << 8 | frame.seq << 16
            self.last = self.first = frame.seq
            self.runs.clear()
            if frame.stream == 0:
                self.until = self.seconds
            return Type.ACK, b""
        if frame.type == Type.LOAD:
            space, _, run, offset = struct.unpack_from("<BBHI", payload)
            self.last = frame.seq
            if space >= len(self.spaces):
                return Type.NAK, bytes([Nak.RANGE])
            for place, value in zip(
                places(self.words[space], offset, run), payload[8:], strict=False
            ):
                self.spaces[space][place] = value
            if space != Space.ACT:
                self._machine = None
            return Type.ACK, b""
        if frame.type == Type.PEEK:
            space, _, run, offset, length = struct.unpack("<BBHIH", payload)
            found = places(self.words[space], offset, run)
            return Type.DATA, bytes(self.spaces[space][next(found)] for _ in range(length))
        assert frame.type == Type.RUN, frame
        return Type.DONE, self._run(frame)

    def _run(self, frame: Frame) -> bytes:
        ticket, first, count = struct.unpack("<IHH", frame.payload)
        for seq, stream, known, answer in self.runs:
            if (seq, stream, known) == (frame.seq, frame.stream, ticket):
                return answer
        self.executed.append(ticket)
        if self._after(frame.seq, self.last):
            self.last = frame.seq
        cycles = 0
        if self.program is not None:
            cycles = predicted_total(self.config, self.program.forms[0])
            machine = self._loaded(self.program)
            machine._memory.reshape(-1)[:] = np.frombuffer(self.spaces[Space.ACT], np.uint8)
            for layer in (layer for form in machine._forms for layer in form):
                end = first + count if count else _end(self.program, first)
                if first <= layer.index < end:
                    layer.execute(machine._memory)
            self.spaces[Space.ACT][:] = machine._memory.tobytes()
        answer = struct.pack("<IB3xI", ticket, 0, cycles)
        self.runs.append((frame.seq, frame.stream, ticket, answer))
        return answer

    def _loaded(self, program: Program) -> ReferenceMachine:
        """The program with the memories that are really loaded."""
        if self._machine is None:
            parts = {
                name: bytes(self.spaces[space][: len(getattr(program, name))])
                for name, space in (("weights", Space.WGHT), ("params", Space.PARM),
                                    ("tables", Space.TABL), ("addends", Space.ADDT))
            }  # fmt: skip
            self._machine = ReferenceMachine(replace(program, **parts))
        return self._machine


def _end(program: Program, first: int) -> int:
    starts = [0] if program.odd is None else [0, program.odd.first]
    form = max(k for k, start in enumerate(starts) if start <= first)
    return starts[form] + len(program.forms[form])


class LossyLine:
    """A line that loses, doubles, swaps and damages blocks in both directions; seeded.

    Each happens with its probability to each block; one that is swapped comes up to three blocks
    later. ``seconds`` is the clock of whoever waits here.
    """

    def __init__(
        self, board: object, seed: int, *, lose: float = 0.01, double: float = 0.01,
        swap: float = 0.01, damage: float = 0.01,
    ) -> None:  # fmt: skip
        self.board: LinkBoard = board  # type: ignore[assignment]
        self.rng = random.Random(seed)
        self.odds = {"lose": lose, "double": double, "swap": swap, "damage": damage}
        self.happened = dict.fromkeys(self.odds, 0)
        self.seconds = 0.0
        self._held: dict[bool, list[tuple[int, bytes]]] = {True: [], False: []}
        self._partial = {True: b"", False: b""}

    def write(self, data: bytes) -> None:
        self.board.write(self._spoil(data, True))

    def read(self, timeout: float) -> bytes:
        found = self._spoil(self.board.read(min(timeout, 0.001)), False)
        if not found:
            self.seconds += timeout
        return found

    def close(self) -> None:
        pass

    def _spoil(self, data: bytes, to_board: bool) -> bytes:
        *blocks, self._partial[to_board] = (self._partial[to_board] + data).split(b"\0")
        out = b""
        for block in blocks:
            if not block:
                continue
            out += b"".join(copy + b"\0" for copy in self._fate(block, to_board))
            held = [(left - 1, late) for left, late in self._held[to_board]]
            out += b"".join(late + b"\0" for left, late in held if left < 0)
            self._held[to_board] = [(left, late) for left, late in held if left >= 0]
        return out

    def _fate(self, block: bytes, to_board: bool) -> list[bytes]:
        what = [name for name, odds in self.odds.items() if self.rng.random() < odds]
        for name in what:
            self.happened[name] += 1
        copies = [] if "lose" in what else [block] * (2 if "double" in what else 1)
        if copies and "damage" in what:
            at, spoiled = self.rng.randrange(len(block)), bytearray(block)
            spoiled[at] ^= 1 << self.rng.randrange(8)
            copies[0] = bytes(spoiled)
        if copies and "swap" in what:
            self._held[to_board].append((self.rng.randrange(1, 4), copies.pop()))
        return copies
