"""Speaks with a board: takes it, loads programs, moves tensors, starts runs.

A run may be started and its end waited for later, with other requests in between, and a second one
queued behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trivet.runtime.device import DeviceError
from trivet.runtime.program_file import ProgramFile, ProgramFileError

from .exchange import Exchange, Refused, Run, Transport
from .expand import ExpandLike, expand_requests
from .frame import (
    COUNTERS_MAX,
    LOAD_BYTES,
    PAYLOAD_BYTES,
    Counters,
    Done,
    Hello,
    Nak,
    Space,
    Type,
    counters_request,
    load_request,
    peek_request,
)
from .items import Items

__all__ = ["BoardClient", "PortLike", "Run", "Transport"]


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


class BoardClient:
    """A board behind a byte stream. Every failure is a DeviceError that names the board.

    Parameters
    ----------
    transport, name, timeout, run_timeout, retries, clock
        See :class:`~trivet.runtime.link.exchange.Exchange`.
    """

    def __init__(
        self,
        transport: Transport,
        name: str = "fpga",
        *,
        timeout: float = 2.0,
        run_timeout: float = 60.0,
        retries: int = 3,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._exchange = Exchange(
            transport, name, timeout=timeout, run_timeout=run_timeout, retries=retries, clock=clock
        )
        self._program: ProgramFile | None = None

    @property
    def repeats(self) -> int:
        """Requests that were sent again: counted."""
        return self._exchange.repeats

    @property
    def program(self) -> ProgramFile:
        """The program that was loaded last."""
        if self._program is None:
            raise DeviceError(f"{self.name}: no program is loaded; prepare a stage first")
        return self._program

    def hello(self) -> Hello:
        """Who answers; also keeps the lease."""
        hello = Hello.from_payload(self._request(Type.HELLO, b"", Type.HELLO))
        self._exchange.window = max(1, hello.window)
        return hello

    def reset(self) -> Hello:
        """Take the board, or take it anew: stop whatever runs; counters zero, memories kept.

        From then on the board does nothing for who had it before, and a second owner is refused
        until this one was silent for the time of a lease. DeviceError when this is the second.
        """
        exchange = self._exchange
        first = exchange.number
        refusal: Refused | None = None
        try:
            self._request(Type.RESET, b"", Type.ACK)
        except Refused as e:
            if e.code != Nak.OWNER:
                raise
            refusal = e  # or the board did it, its answer was lost, and this is a copy's
        hello = self.hello()
        if not exchange.holds(hello.epoch, first) and (refusal or hello.epoch >> 8):
            if exchange.epoch:
                exchange.epoch = 0  # what was owned is gone; perhaps nobody has it now
                return self.reset()
            raise DeviceError(
                f"{self.name}: board {hello.board!r} is in use by another session (lease "
                f"{hello.epoch & 0xFF}); close that one, or wait a few seconds after its end"
            ) from refusal
        exchange.epoch = hello.epoch
        return hello

    def stop(self) -> None:
        """Whoever waits for an answer gets a DeviceError soon; from any thread."""
        self._exchange.stopped = True

    def give_back(self) -> None:
        """End the lease at once: the next session need not wait. Without it, it ends by itself."""
        self._exchange.give_back()

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
        self._load(_memory_loads(program))
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
            self._load(expand_requests(port.expand, port.offset, word, data))
            return
        self._load(
            load_request(Space.ACT, offset, data[start:stop], run)
            for offset, start, stop, run in self._pieces(port, LOAD_BYTES)
        )

    def read_tensor(self, port: PortLike) -> npt.NDArray[Any]:
        """Read a tensor: array of shape (h, w, c) and the port's dtype."""
        if port.expand is not None:
            raise DeviceError(
                f"{self.name}: input {port.tensor!r} lies spread over the windows of its "
                "convolution and cannot be read back; read a layer's output"
            )
        pieces = list(self._pieces(port, PAYLOAD_BYTES))
        requests = [
            peek_request(Space.ACT, offset, stop - start, run)
            for offset, start, stop, run in pieces
        ]
        found = self._exchange.request_all(Type.PEEK, requests, Type.DATA)
        for (_, start, stop, _), piece in zip(pieces, found, strict=True):
            if len(piece) != stop - start:
                raise DeviceError(
                    f"{self.name}: {len(piece)} bytes of tensor {port.tensor!r} came back, "
                    f"{stop - start} were asked for; reset the board"
                )
        data = b"".join(found)
        return np.frombuffer(data, port.dtype).reshape(port.hwc).copy()

    def run(self, ticket: int, first: int = 0, count: int = 0) -> int:
        """Run ``count`` instructions from ``first`` (0: up to END); cycles until the last byte."""
        return self.finish_run(self.start_run(ticket, first, count))

    def start_run(self, ticket: int, first: int = 0, count: int = 0) -> Run:
        """Ask for a run and return at once; a board takes two, the second follows the first."""
        return self._exchange.start_run(ticket, first, count)

    def wait_run(self, run: Run, seconds: float) -> bool:
        """Whether a run's answer is here, good or bad; waits so long for it."""
        return self._exchange.wait_run(run, seconds)

    def confirm_run(self, run: Run) -> None:
        """Make sure that the board has the run just asked for, by asking again: it says busy."""
        self._exchange.confirm_run(run)

    def finish_run(self, run: Run) -> int:
        """Wait for a run's end; its cycles, as :meth:`run` tells them.

        Those of a run that was queued in time count from the end of the one before. A request or
        answer that was lost is repeated; so the board may get two runs in the wrong order, unless
        the first was confirmed.
        """
        answer = self._exchange.finish_run(run)
        if answer.type != Type.DONE:
            raise self._exchange.refused(Type.RUN, answer)
        done = Done.from_payload(answer.payload)
        if done.ticket != run.ticket:
            raise DeviceError(
                f"{self.name}: run {run.ticket} was answered as {done.ticket}; reset the board"
            )
        if done.status != 0:
            raise DeviceError(f"{self.name}: run {run.ticket} was stopped by a reset; run it again")
        return done.cycles

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

    def _load(self, pieces: Iterable[bytes]) -> None:
        """Have the board take LOAD payloads, up to its window of them at a time."""
        self._exchange.request_all(Type.LOAD, list(pieces), Type.ACK)

    def _request(self, kind: Type, payload: bytes, expected: Type) -> bytes:
        return self._exchange.request(kind, payload, expected)


def _memory_loads(program: ProgramFile) -> Iterator[bytes]:
    """LOAD payloads of a program's memories, and of the padding among its expanded inputs."""
    for space, data in program.memories.items():
        size = program.word_bytes[space]
        step = LOAD_BYTES // size * size
        for start in range(0, len(data), step):
            yield load_request(space, start // size, data[start : start + step])
    word = program.word_bytes[Space.ACT]
    for port in (port for form in program.forms for port in form.inputs):
        if port.expand is None:
            continue
        # The padding among it stays: nothing else is ever written there.
        h, w, c = port.expand.stored
        left, offset = h * w * -(-c // word), port.offset
        while left:
            words = min(left, LOAD_BYTES // word)
            yield load_request(Space.ACT, offset, bytes([port.expand.zp & 0xFF]) * words * word)
            left, offset = left - words, offset + words
