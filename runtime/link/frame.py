"""Frames of the host link: one request or answer, COBS-encoded on byte streams.

``u8 version | u8 type | u8 stream | u8 flags | u16 seq | u16 length | payload | u32 crc32``,
little-endian; the checksum is zlib's over all bytes before it. A frame on a byte stream is one
COBS block ended by 0x00. ``flags`` of a request is the low byte of the epoch whose owner asks, 0 of
one who owns nothing. The epoch is a count in its low byte, above it stream and number of the RESET
that made it; on compact engines a count alone. RESET of stream 0 ends a lease at once.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from cobs import cobs

__all__ = [
    "COUNTERS_MAX",
    "LOAD_BYTES",
    "PAYLOAD_BYTES",
    "VERSION",
    "Counters",
    "Done",
    "Frame",
    "FrameError",
    "FrameReader",
    "Hello",
    "Nak",
    "Space",
    "Type",
    "counters_request",
    "load_request",
    "peek_request",
    "run_request",
]

VERSION = 1
PAYLOAD_BYTES = 1024
_HEADER = struct.Struct("<BBBBHH")
_CRC = struct.Struct("<I")
_LOAD = struct.Struct("<BBHI")
_PEEK = struct.Struct("<BBHIH")
_RUN = struct.Struct("<IHH")
_COUNTERS = struct.Struct("<HH")
_COUNTER = struct.Struct("<III")
_DONE = struct.Struct("<IB3xI")
_HELLO = struct.Struct("<32s32s16sHBBI")
LOAD_BYTES = PAYLOAD_BYTES - _LOAD.size
COUNTERS_MAX = 64
# The longest block: a whole frame and COBS's overhead of one byte in 254.
_BLOCK_BYTES = _HEADER.size + PAYLOAD_BYTES + _CRC.size + 8


class Type(enum.IntEnum):
    HELLO = 1
    ACK = 2
    NAK = 3
    CREDIT = 4
    LOAD = 5
    RUN = 6
    DATA = 7
    DONE = 8
    COUNTERS = 9
    PEEK = 10
    RESET = 11
    ERROR = 12


class Nak(enum.IntEnum):
    """Why the board refused a request."""

    CRC = 1
    TYPE = 2
    LENGTH = 3
    BUSY = 4
    RANGE = 5
    OWNER = 6  # the request is of another epoch than the board; RESET: another's lease lasts
    OLD = 7  # its number is older than that of what the board did last


class Space(enum.IntEnum):
    """Memories of the engine; offsets are in words of each. EXPAND: see ``link/expand.py``."""

    ACT = 0
    WGHT = 1
    PARM = 2
    TABL = 3
    ADDT = 4
    INST = 5
    EXPAND = 6


class FrameError(ValueError):
    """Bytes that are no frame."""


@dataclass(frozen=True)
class Frame:
    """One frame; ``type`` and ``seq`` may hold any value that arrived."""

    type: int
    payload: bytes = b""
    seq: int = 0
    stream: int = 0
    flags: int = 0

    def to_bytes(self) -> bytes:
        """The frame as bytes; ValueError when the payload is longer than a frame carries."""
        if len(self.payload) > PAYLOAD_BYTES:
            raise ValueError(
                f"frame: payload has {len(self.payload)} bytes, at most {PAYLOAD_BYTES}; split it"
            )
        head = _HEADER.pack(
            VERSION, self.type, self.stream, self.flags, self.seq, len(self.payload)
        )
        body = head + self.payload
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def from_bytes(cls, data: bytes) -> Frame:
        """Inverse of :meth:`to_bytes`; FrameError says what is wrong."""
        if len(data) < _HEADER.size + _CRC.size:
            raise FrameError(f"frame: {len(data)} bytes are too few for a frame")
        (crc,) = _CRC.unpack_from(data, len(data) - _CRC.size)
        if zlib.crc32(data[: -_CRC.size]) != crc:
            raise FrameError("frame: checksum is wrong")
        version, kind, stream, flags, seq, length = _HEADER.unpack_from(data)
        if version != VERSION:
            raise FrameError(f"frame: version {version}, this release speaks {VERSION}")
        payload = data[_HEADER.size : -_CRC.size]
        if length != len(payload) or length > PAYLOAD_BYTES:
            raise FrameError(f"frame: length field {length} for {len(payload)} bytes of payload")
        return cls(kind, payload, seq, stream, flags)

    def encode(self) -> bytes:
        """The frame for a byte stream: one COBS block with its 0x00."""
        return bytes(cobs.encode(self.to_bytes())) + b"\0"

    @classmethod
    def decode(cls, block: bytes) -> Frame:
        """A frame from a COBS block without its 0x00; FrameError says what is wrong."""
        try:
            data = bytes(cobs.decode(block))
        except cobs.DecodeError as e:
            raise FrameError(f"frame: not a COBS block ({e})") from e
        return cls.from_bytes(data)


class FrameReader:
    """Splits a byte stream into frames, in order; damaged blocks come as :class:`FrameError`."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self._overlong = False

    def feed(self, data: bytes) -> Iterator[Frame | FrameError]:
        """Take bytes; yield what they complete. Endless noise takes no memory."""
        pieces = data.split(b"\0")
        for k, piece in enumerate(pieces):
            self._partial += piece
            if len(self._partial) > _BLOCK_BYTES:
                self._overlong = True
                self._partial.clear()
            if k == len(pieces) - 1:
                break
            block, overlong = bytes(self._partial), self._overlong
            self._partial.clear()
            self._overlong = False
            if overlong:
                yield FrameError(f"frame: a block of more than {_BLOCK_BYTES} bytes")
            elif block:
                try:
                    yield Frame.decode(block)
                except FrameError as e:
                    yield e


@dataclass(frozen=True)
class Hello:
    """What a board says about itself."""

    build_sha256: str
    config_sha256: str
    board: str
    isa: int
    window: int
    credits: int
    epoch: int

    @classmethod
    def from_payload(cls, payload: bytes) -> Hello:
        if len(payload) != _HELLO.size:
            raise FrameError(f"frame: HELLO carries {len(payload)} bytes, must be {_HELLO.size}")
        build, config, board, isa, window, credit, epoch = _HELLO.unpack(payload)
        name = board.rstrip(b"\0").decode("ascii", "replace")
        return cls(build.hex(), config.hex(), name, isa, window, credit, epoch)


@dataclass(frozen=True)
class Done:
    """The end of a run. ``status``: 0 ok, 1 stopped by a RESET."""

    ticket: int
    status: int
    cycles: int

    @classmethod
    def from_payload(cls, payload: bytes) -> Done:
        if len(payload) != _DONE.size:
            raise FrameError(f"frame: DONE carries {len(payload)} bytes, must be {_DONE.size}")
        return cls(*_DONE.unpack(payload))


@dataclass(frozen=True)
class Counters:
    """What one instruction cost when it last ran, in cycles."""

    cycles: int
    busy: int  # cycles that issued a slice
    stalls: int  # issue cycles that waited for the requantisers

    @classmethod
    def from_payload(cls, payload: bytes) -> list[Counters]:
        if len(payload) % _COUNTER.size:
            raise FrameError(
                f"frame: COUNTERS carries {len(payload)} bytes, "
                f"must be a multiple of {_COUNTER.size}"
            )
        return [cls(*values) for values in _COUNTER.iter_unpack(payload)]


def load_request(space: int, offset: int, data: bytes, run: int = 0) -> bytes:
    """Payload of LOAD: ``data`` from word ``offset`` on; after each ``run`` bytes the next word."""
    return _LOAD.pack(space, 0, run, offset) + data


def peek_request(space: int, offset: int, length: int, run: int = 0) -> bytes:
    """Payload of PEEK: ``length`` bytes as LOAD would have written them."""
    return _PEEK.pack(space, 0, run, offset, length)


def run_request(ticket: int, first: int = 0, count: int = 0) -> bytes:
    """Payload of RUN: ``count`` instructions from ``first`` on; 0 means up to END."""
    return _RUN.pack(ticket, first, count)


def counters_request(first: int, count: int) -> bytes:
    """Payload of COUNTERS for ``count`` instructions from ``first`` on."""
    return _COUNTERS.pack(first, count)
