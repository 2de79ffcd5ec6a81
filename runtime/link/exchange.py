"""Requests and their answers over a line that may lose, double, reorder and damage frames.

Go-back-N: up to the board's window of requests are on their way, and when the oldest one's answer
does not come all of them are sent again, under new numbers. The board refuses numbers older than
what it did last, so a copy that comes late does nothing. A run keeps its number, by which the board
knows it and does not run it twice.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from trivet.runtime.device import DeviceError

from .frame import Frame, FrameError, FrameReader, Nak, Type, run_request

__all__ = ["Exchange", "Refused", "Run", "Transport"]

_REFUSALS: Final = {
    Nak.TYPE: "does not know this request; its bitstream is of another release, build it again",
    Nak.LENGTH: "found a request of a wrong length; its bitstream is of another release",
    Nak.BUSY: "is still running; wait for the run's end or reset it",
    Nak.RANGE: "has no such address; compile the model for this board's engine configuration",
    Nak.OWNER: "was reset, or belongs to another session by now; open a new session",
    Nak.OLD: "has done later ones; reset the board",
}
_LEAST_WAIT: Final = 0.05  # seconds before a request is sent again: a busy host is no lost frame
_LONGEST_WAIT: Final = 0.5  # ... before a run is asked for again
_BAD_LINE: Final = 10  # timeouts without the answer to a request, though others come
_SLICE: Final = 0.2  # seconds between two looks at whether somebody ended this


class Refused(DeviceError):
    """The board said no; ``code`` is a :class:`Nak`, or one of a newer release."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class Transport(Protocol):
    """Bytes to and from a board. Both raise DeviceError once the board is gone."""

    def write(self, data: bytes) -> None: ...

    def read(self, timeout: float) -> bytes:
        """Bytes as they come; empty when none came within ``timeout`` seconds."""


@dataclass(eq=False)
class Run:
    """A run that was asked for, and its answer once that is here."""

    ticket: int
    payload: bytes
    seq: int
    began: float
    due: float  # when it is asked for again
    wait: float
    unheard: int = 0  # times that it was asked for since the board last said anything
    known: bool = False  # the board has it
    answer: Frame | None = None


class Exchange:
    """One host's side of the line. Every failure is a DeviceError that names the board.

    Parameters
    ----------
    transport, name
        The line, and the device's name for messages.
    timeout
        Seconds without any answer after which the board counts as gone.
    run_timeout
        Seconds that a run may take while the board answers.
    retries
        How often a request is repeated at least, whatever the time.
    clock
        Seconds; for simulated lines.
    """

    def __init__(
        self,
        transport: Transport,
        name: str,
        *,
        timeout: float,
        run_timeout: float,
        retries: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.window = 1
        """Requests that may be on their way; HELLO tells it."""
        self.epoch = 0
        """Of the lease: its low byte is in every request."""
        self.stopped = False
        """Set by another thread: whoever waits gets a DeviceError soon."""
        self.repeats = 0
        """Requests that were sent again: counted."""
        self._transport = transport
        self._timeout = timeout
        self._run_timeout = run_timeout
        self._retries = retries
        self._clock = clock
        self._reader = FrameReader()
        self._frames: deque[Frame | FrameError] = deque()  # that came and were not looked at
        # Both together say whose a board is.
        self._stream = 1 + secrets.randbelow(255)
        self._seq = secrets.randbits(16)
        self._heard = clock()
        self._trips: tuple[float, float] | None = None  # mean round trip and its deviation
        self._runs: dict[int, Run] = {}
        self._overtaken = False  # a later run was done before an earlier one
        self._clean = False  # the board's decoder is between two blocks

    @property
    def number(self) -> int:
        """Of the request sent last."""
        return self._seq

    def holds(self, epoch: int, after: int) -> bool:
        """Whether the RESET that made this epoch is one that was sent after request ``after``."""
        since = ((epoch >> 16) - after) & 0xFFFF
        return (epoch >> 8) & 0xFF == self._stream and 0 < since <= (self._seq - after) & 0xFFFF

    def request(self, kind: Type, payload: bytes, expected: Type) -> bytes:
        """Send a request; its answer's payload."""
        return self.request_all(kind, (payload,), expected)[0]

    def request_all(self, kind: Type, payloads: Sequence[bytes], expected: Type) -> list[bytes]:
        """The answers' payloads to requests that may be repeated and follow one another."""
        done: list[bytes] = []
        since, failures = self._clock(), 0
        while len(done) < len(payloads):
            flying: deque[tuple[int, float]] = deque()
            wait = min(self._patience() * 2**failures, self._timeout / 2)
            while len(done) < len(payloads):
                while len(flying) < self.window and len(done) + len(flying) < len(payloads):
                    payload = payloads[len(done) + len(flying)]
                    flying.append((self._number(), self._clock()))
                    self._send(kind, payload, flying[-1][0])
                answer = self._answer(flying[0][0], wait)
                if isinstance(answer, str):
                    break
                done.append(self._payload(kind, answer, expected))
                self._learn(self._clock() - flying.popleft()[1])
                since, failures = self._clock(), 0
            else:
                break
            failures += 1
            self.repeats += len(flying)
            self._clean = False
            now = self._clock()
            if failures > self._retries and (
                now - max(since, self._heard) >= self._timeout
                or now - since >= _BAD_LINE * self._timeout
            ):
                raise self._lost(kind, failures, answer)
        return done

    def start_run(self, ticket: int, first: int = 0, count: int = 0) -> Run:
        """Ask for a run and return at once; a board takes two, the second follows the first."""
        if self._overtaken:
            # The board knows its last two runs: one more would make it forget the first of them.
            for run in tuple(self._runs.values()):
                self._wait_long(run)
            self._overtaken = False
        now, wait = self._clock(), self._patience()
        run = Run(ticket, run_request(ticket, first, count), self._number(), now, now + wait, wait)
        self._runs[run.seq] = run
        self._send(Type.RUN, run.payload, run.seq)
        return run

    def wait_run(self, run: Run, seconds: float) -> bool:
        """Whether a run's answer is here, good or bad; waits so long for it."""
        deadline = self._clock() + seconds
        while run.answer is None:
            self._look(min(deadline, run.due))
            now = self._clock()
            if run.answer is None and now >= run.due:
                self._ask_again(run, now)
            elif now >= deadline:
                break
        return run.answer is not None

    def finish_run(self, run: Run) -> Frame:
        """Wait for a run's end; what the board says of it.

        A request or answer that was lost is repeated; so the board may get two runs in the wrong
        order, unless the first was confirmed.
        """
        try:
            return self._wait_long(run)
        finally:
            del self._runs[run.seq]

    def _wait_long(self, run: Run) -> Frame:
        while not self.wait_run(run, _SLICE):
            if self._clock() - run.began >= self._run_timeout:
                raise self._lost(Type.RUN, 1, f"no answer within {self._run_timeout:g} s")
        assert run.answer is not None
        return run.answer

    def confirm_run(self, run: Run) -> None:
        """Make sure that the board has the run just asked for, by asking again: it says busy."""
        while run.answer is None and not run.known:
            self._ask_again(run, self._clock())
            while run.answer is None and not run.known and self._clock() < run.due:
                self._look(run.due)

    def give_back(self) -> None:
        """End the lease, if there is one, and what runs; no answer is waited for."""
        if self.epoch:
            block = Frame(Type.RESET, b"", self._number(), 0, self.epoch & 0xFF).encode()
            self._transport.write(b"\0" + block)
            self.epoch = 0

    def refused(self, kind: Type, answer: Frame) -> DeviceError:
        """What a refusal means."""
        if answer.type == Type.NAK and len(answer.payload) == 1:
            code = answer.payload[0]
            known = code in tuple(Nak)
            reason = _REFUSALS.get(Nak(code)) if known else None
            text = reason or f"refused for the unknown reason {code}; its bitstream is newer"
            return Refused(f"{self.name}: the board refused {kind.name}: it {text}", code)
        if answer.type == Type.ERROR and len(answer.payload) == 3:
            layer = int.from_bytes(answer.payload[1:], "little")
            return DeviceError(
                f"{self.name}: the engine stopped at instruction {layer} with error "
                f"{answer.payload[0]}; the program is invalid for it, compile the model again"
            )
        return DeviceError(
            f"{self.name}: {kind.name} was answered by frame type {answer.type} with "
            f"{len(answer.payload)} bytes; its bitstream is of another release"
        )

    def _payload(self, kind: Type, answer: Frame, expected: Type) -> bytes:
        if answer.type != expected:
            raise self.refused(kind, answer)
        return answer.payload

    def _number(self) -> int:
        self._seq = (self._seq + 1) & 0xFFFF
        return self._seq

    def _send(self, kind: Type, payload: bytes, seq: int) -> None:
        block = Frame(kind, payload, seq, self._stream, self.epoch & 0xFF).encode()
        # An extra 0x00 ends whatever noise the board may have taken for a frame's beginning.
        self._transport.write(block if self._clean else b"\0" + block)
        self._clean = True

    def _patience(self) -> float:
        """Seconds after which an answer is late: mean and four deviations, as TCP's (RFC 6298)."""
        if self._trips is None:
            return self._timeout / 8
        mean, deviation = self._trips
        return min(max(_LEAST_WAIT, mean + 4 * deviation), self._timeout)

    def _learn(self, trip: float) -> None:
        if self._trips is None:
            self._trips = trip, trip / 2
        else:
            mean, deviation = self._trips
            self._trips = mean + (trip - mean) / 8, deviation + (abs(trip - mean) - deviation) / 4

    def _answer(self, seq: int, wait: float) -> Frame | str:
        """The answer to request ``seq``, or what went wrong on the line."""
        deadline = self._clock() + wait
        while True:
            while self._frames:
                found = self._next()
                if isinstance(found, str):
                    return found
                if found is not None and found.seq == seq:
                    if found.type == Type.NAK and found.payload == bytes([Nak.OLD]):
                        return "the board had a later request"
                    return found
                # Otherwise a late answer to a request that was repeated.
            if self._clock() >= deadline:
                return f"no answer within {wait:.2g} s"
            self._read(deadline)

    def _look(self, until: float) -> None:
        """Take what comes until a run is told of, or until then."""
        if not self._frames:
            self._read(until)
        while self._frames:
            if isinstance(self._next(), str):
                self._clean = False  # the run is asked for again when that is due

    def _read(self, until: float) -> None:
        if self.stopped:
            raise DeviceError(f"{self.name}: was closed while an answer was waited for")
        left = min(max(until - self._clock(), 0.0), _SLICE)
        self._frames.extend(self._reader.feed(self._transport.read(left)))

    def _next(self) -> Frame | str | None:
        """The next frame; None if it was about a run or not for us, or what is wrong with it."""
        found = self._frames.popleft()
        if isinstance(found, FrameError):
            return f"damaged answer: {found}"
        self._heard = self._clock()
        for run in self._runs.values():
            run.unheard = 0
        if found.type == Type.NAK and found.payload == bytes([Nak.CRC]):
            return "the board got a damaged request"
        if found.stream != self._stream:
            return None
        told = self._runs.get(found.seq)
        if told is None:
            return found
        self._told(told, found)
        return None

    def _told(self, run: Run, found: Frame) -> None:
        if found.type == Type.NAK and found.payload == bytes([Nak.BUSY]):
            run.known = True  # the first copy of it runs; its answer will come
        elif found.type == Type.NAK and found.payload == bytes([Nak.OLD]):
            # A later run came first and this one never did: only then its number is too old.
            del self._runs[run.seq]
            run.seq, run.due = self._number(), self._clock()
            self._runs[run.seq] = run
            self._overtaken = True
        else:
            run.answer = found

    def _ask_again(self, run: Run, now: float) -> None:
        silent = now - max(self._heard, run.began)
        if run.unheard > self._retries and silent >= self._timeout:
            raise self._lost(Type.RUN, run.unheard + 1, f"no answer for {silent:.1f} s")
        run.unheard += 1
        self.repeats += 1
        self._clean = False
        self._send(Type.RUN, run.payload, run.seq)
        run.wait = min(2 * run.wait, _LONGEST_WAIT)
        run.due = now + run.wait

    def _lost(self, kind: Type, times: int, trouble: str) -> DeviceError:
        return DeviceError(
            f"{self.name}: {kind.name} failed {times} times ({trouble}); "
            "check the cable and the board's power, or use --device to choose another one"
        )
