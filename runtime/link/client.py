"""Speaks frames with a board: requests are repeated when the line damaged them.

One request at a time, but for runs: a run may be started and its end waited for later, with other
requests in between, and a second one queued behind it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trivet.runtime.device import DeviceError
from trivet.runtime.program_file import ProgramFile, ProgramFileError

from .expand import ExpandLike, expand_requests
from .frame import (
    COUNTERS_MAX,
    LOAD_BYTES,
    PAYLOAD_BYTES,
    Counters,
    Done,
    Frame,
    FrameError,
    FrameReader,
    Hello,
    Nak,
    Space,
    Type,
    counters_request,
    load_request,
    peek_request,
    run_request,
)
from .items import Items

__all__ = ["BoardClient", "PortLike", "Run", "Transport"]

_REFUSALS = {
    Nak.TYPE: "does not know this request; its bitstream is of another release, build it again",
    Nak.LENGTH: "found a request of a wrong length; its bitstream is of another release",
    Nak.BUSY: "is still running; wait for the run's end or reset it",
    Nak.RANGE: "has no such address; compile the model for this board's engine configuration",
}


def _is_busy(frame: Frame) -> bool:
    return frame.type == Type.NAK and frame.payload == bytes([Nak.BUSY])


class Transport(Protocol):
    """Bytes to and from a board. Both raise DeviceError once the board is gone."""

    def write(self, data: bytes) -> None: ...

    def read(self, timeout: float) -> bytes:
        """Bytes as they come; empty when none came within ``timeout`` seconds."""


class PortLike(Protocol):
    """A tensor in activation memory (:class:`~trivet.runtime.program_file.PortInfo`)."""

    @property
    def tensor(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def hwc(self) -> tuple[int, int, int]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def expand(self) -> ExpandLike | None: ...
    @property
    def pixel_words(self) -> int: ...
    @property
    def row_words(self) -> int: ...


@dataclass(frozen=True)
class Run:
    """A run that was asked for: what its answer must look like."""

    ticket: int
    seq: int
    request: bytes  # frame


class BoardClient:
    """A board behind a byte stream. Every failure is a DeviceError that names the board.

    Parameters
    ----------
    transport : Transport
        The line to the board.
    name : str
        Name of the device in the rig, for messages.
    timeout, run_timeout : float
        Seconds to wait for an answer, and for a run's end.
    retries : int
        How often a request is repeated after a damaged or missing answer.
    """

    def __init__(
        self,
        transport: Transport,
        name: str = "fpga",
        *,
        timeout: float = 2.0,
        run_timeout: float = 60.0,
        retries: int = 3,
    ) -> None:
        self.name = name
        self._transport = transport
        self._timeout = timeout
        self._run_timeout = run_timeout
        self._retries = retries
        self._reader = FrameReader()
        self._frames: deque[Frame | FrameError] = deque()  # that came and were not looked at
        self._seq = 0
        self._runs: dict[int, Frame | None] = {}  # by number: its answer, if it came already
        self._program: ProgramFile | None = None

    @property
    def program(self) -> ProgramFile:
        """The program that was loaded last."""
        if self._program is None:
            raise DeviceError(f"{self.name}: no program is loaded; prepare a stage first")
        return self._program

    def hello(self) -> Hello:
        """Who answers."""
        return Hello.from_payload(self._request(Type.HELLO, b"", Type.HELLO))

    def reset(self) -> None:
        """Stop whatever runs; counters zero, memories kept."""
        self._request(Type.RESET, b"", Type.ACK)

    def load_program(self, trvp: bytes) -> ProgramFile:
        """Load a program's memories; DeviceError when the board has another configuration."""
        try:
            program = ProgramFile.from_bytes(trvp)
        except ProgramFileError as e:
            raise DeviceError(f"{self.name}: {e}") from e
        hello = self.hello()
        if hello.config_sha256 != program.config_sha256:
            raise DeviceError(
                f"{self.name}: board {hello.board!r} holds engine {hello.config_sha256[:12]}, "
                f"the program needs {program.config_sha256[:12]}; "
                "load the bundle's bitstream or compile for this engine"
            )
        for space, data in program.memories.items():
            step = LOAD_BYTES // program.word_bytes[space] * program.word_bytes[space]
            for start in range(0, len(data), step):
                offset = start // program.word_bytes[space]
                self._load(space, offset, data[start : start + step])
        word = program.word_bytes[Space.ACT]
        for port in (port for form in program.forms for port in form.inputs):
            if port.expand is not None:
                # The padding among it stays: nothing else is ever written there.
                h, w, c = port.expand.stored
                left, offset = h * w * -(-c // word), port.offset
                while left:
                    words = min(left, LOAD_BYTES // word)
                    self._load(Space.ACT, offset, bytes([port.expand.zp & 0xFF]) * words * word)
                    left, offset = left - words, offset + words
        self._program = program
        return program

    def write_tensor(self, port: PortLike, array: npt.NDArray[Any]) -> None:
        """Write a tensor's NHWC bytes; any shape of ``h * w * c`` items of the port's dtype."""
        h, w, c = port.hwc
        if array.dtype != port.dtype or array.size != h * w * c:
            raise DeviceError(
                f"{self.name}: tensor {port.tensor!r} is {array.dtype}{list(array.shape)}, "
                f"must be {port.dtype} with {h * w * c} items ({h}x{w}x{c})"
            )
        data = np.ascontiguousarray(array).tobytes()
        if port.expand is not None:
            word = self.program.word_bytes[Space.ACT]
            for payload in expand_requests(port.expand, port.offset, word, data):
                self._request(Type.LOAD, payload, Type.ACK)
            return
        for offset, start, stop, run in self._pieces(port, LOAD_BYTES):
            self._load(Space.ACT, offset, data[start:stop], run)

    def read_tensor(self, port: PortLike) -> npt.NDArray[Any]:
        """Read a tensor: array of shape (h, w, c) and the port's dtype."""
        if port.expand is not None:
            raise DeviceError(
                f"{self.name}: input {port.tensor!r} lies spread over the windows of its "
                "convolution and cannot be read back; read a layer's output"
            )
        data = b""
        for offset, start, stop, run in self._pieces(port, PAYLOAD_BYTES):
            request = peek_request(Space.ACT, offset, stop - start, run)
            piece = self._request(Type.PEEK, request, Type.DATA)
            if len(piece) != stop - start:
                raise DeviceError(
                    f"{self.name}: {len(piece)} bytes of tensor {port.tensor!r} came back, "
                    f"{stop - start} were asked for; reset the board"
                )
            data += piece
        return np.frombuffer(data, port.dtype).reshape(port.hwc).copy()

    def run(self, ticket: int, first: int = 0, count: int = 0) -> int:
        """Run ``count`` instructions from ``first`` (0: up to END); cycles until the last byte."""
        return self.finish_run(self.start_run(ticket, first, count))

    def _cycles(self, ticket: int, answer: Frame) -> int:
        """What the answer to a run says."""
        if answer.type != Type.DONE:
            self._refused(Type.RUN, answer)
        done = Done.from_payload(answer.payload)
        if done.ticket != ticket:
            raise DeviceError(
                f"{self.name}: run {ticket} was answered as {done.ticket}; reset the board"
            )
        if done.status != 0:
            raise DeviceError(f"{self.name}: run {ticket} was stopped by a reset; run it again")
        return done.cycles

    def start_run(self, ticket: int, first: int = 0, count: int = 0) -> Run:
        """Ask for a run and return at once; a board takes two, the second follows the first."""
        self._seq = (self._seq + 1) & 0xFFFF
        frame = Frame(Type.RUN, run_request(ticket, first, count), self._seq).encode()
        self._runs[self._seq] = None
        self._transport.write(b"\0" + frame if self._seq == 1 else frame)
        return Run(ticket, self._seq, frame)

    def finish_run(self, run: Run) -> int:
        """Wait for a run's end; its cycles, as :meth:`run` tells them.

        Those of a run that was queued in time count from the end of the one before. A request or
        answer that was lost is repeated; so the board may get two runs in the wrong order, unless
        the first was confirmed.
        """
        try:
            trouble = ""
            for attempt in range(self._retries + 1):
                if attempt:
                    self._transport.write(b"\0" + run.request)
                answer: Frame | str | None = self._runs[run.seq]
                if answer is None:
                    answer = self._answer(self._run_timeout, run.seq, patient=attempt > 0)
                if isinstance(answer, Frame):
                    return self._cycles(run.ticket, answer)
                trouble = answer
            raise self._lost(Type.RUN, trouble)
        finally:
            del self._runs[run.seq]

    def wait_run(self, run: Run, seconds: float) -> bool:
        """Whether a run's answer is here, good or bad; waits so long for it."""
        deadline = time.monotonic() + seconds
        while self._runs[run.seq] is None:
            left = deadline - time.monotonic()
            if not self._frames:
                if left <= 0:
                    return False
                self._frames.extend(self._reader.feed(self._transport.read(left)))
            if self._frames:
                found = self._frames.popleft()
                if isinstance(found, FrameError):
                    return True  # finish_run asks again
                if found.seq in self._runs and not _is_busy(found):
                    self._runs[found.seq] = found
        return True

    def confirm_run(self, run: Run) -> None:
        """Make sure that the board has the run just asked for, by asking again: it says busy."""
        trouble = ""
        for _ in range(self._retries + 1):
            if self._runs[run.seq] is not None:
                return
            self._transport.write(b"\0" + run.request)
            answer = self._answer(self._timeout, run.seq)
            if isinstance(answer, Frame):
                if not _is_busy(answer):
                    self._runs[run.seq] = answer
                return
            trouble = answer
        raise self._lost(Type.RUN, trouble)

    def stream(
        self, items: Iterable[dict[str, npt.NDArray[Any]]]
    ) -> Iterator[tuple[dict[str, npt.NDArray[Any]], int]]:
        """Outputs and cycles of each item, in order; inputs and outputs by tensor name.

        With a program of two forms an item's inputs are written, and its predecessor's outputs
        read, while the engine runs: then cycles are those since the last item's end.
        """
        flying = Items(self)
        for k, item in enumerate(items):
            if len(flying) == flying.depth:
                yield flying.finish()[1:]
            flying.begin(k, item)
        while flying:
            yield flying.finish()[1:]

    def counters(self, count: int, first: int = 0) -> list[Counters]:
        """Counters of ``count`` instructions from ``first`` on."""
        found: list[Counters] = []
        while len(found) < count:
            step = min(COUNTERS_MAX, count - len(found))
            request = counters_request(first + len(found), step)
            some = Counters.from_payload(self._request(Type.COUNTERS, request, Type.COUNTERS))
            if len(some) != step:
                raise DeviceError(
                    f"{self.name}: {len(some)} counters came back, {step} were asked for; "
                    "reset the board"
                )
            found += some
        return found

    def _pieces(self, port: PortLike, most: int) -> Iterator[tuple[int, int, int, int]]:
        """(word, first byte, byte after the last, run) of the frames that carry a tensor."""
        word = self.program.word_bytes[Space.ACT]
        h, w, c = port.hwc
        own = -(-c // word)
        pixel_words = port.pixel_words or own
        row_words = port.row_words or w * pixel_words
        dense = (pixel_words, row_words) == (own, w * own)
        total = h * w * c
        if c % word == 0 and dense:  # no padding anywhere
            step = most // word * word
            for start in range(0, total, step):
                yield port.offset + start // word, start, min(start + step, total), 0
        elif c <= most and dense:  # whole pixels
            step = most // c * c
            for start in range(0, total, step):
                yield port.offset + start // c * pixel_words, start, min(start + step, total), c
        else:
            step = most // word * word
            for pixel in range(h * w):
                for start in range(0, c, step):
                    y, x = divmod(pixel, w)
                    offset = port.offset + y * row_words + x * pixel_words + start // word
                    stop = min(start + step, c)
                    yield offset, pixel * c + start, pixel * c + stop, 0

    def _load(self, space: Space, offset: int, data: bytes, run: int = 0) -> None:
        self._request(Type.LOAD, load_request(space, offset, data, run), Type.ACK)

    def _request(self, kind: Type, payload: bytes, expected: Type) -> bytes:
        """Send a request and return its answer's payload; repeats what the line damaged."""
        self._seq = (self._seq + 1) & 0xFFFF
        frame = Frame(kind, payload, self._seq).encode()
        trouble = ""
        for attempt in range(self._retries + 1):
            # An extra 0x00 ends whatever noise the board may have taken for a frame's beginning.
            self._transport.write(b"\0" + frame if attempt or self._seq == 1 else frame)
            answer = self._answer(self._timeout, self._seq)
            if isinstance(answer, str):
                trouble = answer
                continue
            if answer.type == expected:
                return answer.payload
            self._refused(kind, answer)
        raise self._lost(kind, trouble)

    def _lost(self, kind: Type, trouble: str) -> DeviceError:
        return DeviceError(
            f"{self.name}: {kind.name} failed {self._retries + 1} times ({trouble}); "
            "check the cable and the board's power, or use --device to choose another one"
        )

    def _answer(self, timeout: float, seq: int, *, patient: bool = False) -> Frame | str:
        """The answer to request ``seq``, or what went wrong on the line.

        Answers to runs that nobody waits for yet are kept; ``patient``: busy is no answer.
        """
        deadline = time.monotonic() + timeout
        while True:
            while self._frames:
                found = self._frames.popleft()
                if isinstance(found, FrameError):
                    return f"damaged answer: {found}"
                if found.type == Type.NAK and found.payload == bytes([Nak.CRC]):
                    return "the board got a damaged request"
                is_busy = _is_busy(found)
                if found.seq != seq:
                    # A run's end, or a late answer to a request that was repeated.
                    if found.seq in self._runs and not is_busy:
                        self._runs[found.seq] = found
                elif not (patient and is_busy):
                    return found
                # Otherwise the first copy of this request runs; its answer will come.
            if (left := deadline - time.monotonic()) <= 0:
                break
            self._frames.extend(self._reader.feed(self._transport.read(left)))
        return f"no answer within {timeout:g} s"

    def _refused(self, kind: Type, answer: Frame) -> None:
        """Raise what a refusal means."""
        if answer.type == Type.NAK and len(answer.payload) == 1:
            code = answer.payload[0]
            known = code in tuple(Nak)
            reason = _REFUSALS.get(Nak(code)) if known else None
            text = reason or f"refused for the unknown reason {code}; its bitstream is newer"
            raise DeviceError(f"{self.name}: the board refused {kind.name}: it {text}")
        if answer.type == Type.ERROR and len(answer.payload) == 3:
            layer = int.from_bytes(answer.payload[1:], "little")
            raise DeviceError(
                f"{self.name}: the engine stopped at instruction {layer} with error "
                f"{answer.payload[0]}; the program is invalid for it, compile the model again"
            )
        raise DeviceError(
            f"{self.name}: {kind.name} was answered by frame type {answer.type} with "
            f"{len(answer.payload)} bytes; its bitstream is of another release"
        )
