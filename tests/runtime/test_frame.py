"""Frames survive the trip, and nothing that is no frame passes for one."""

import random
import zlib

import pytest
from cobs import cobs

from trivet.runtime.link.frame import (
    PAYLOAD_BYTES,
    Counters,
    Done,
    Frame,
    FrameError,
    FrameReader,
    Hello,
    Type,
)


def test_a_frame_lies_as_the_format_says() -> None:
    frame = Frame(Type.RUN, b"abc", seq=0x0201, stream=7, flags=9)
    body = b"\x01\x06\x07\x09\x01\x02\x03\x00abc"
    assert frame.to_bytes() == body + zlib.crc32(body).to_bytes(4, "little")
    assert frame.encode() == cobs.encode(frame.to_bytes()) + b"\0"


def test_frames_come_back_in_pieces_of_any_size() -> None:
    rng = random.Random(1)
    frames = [
        Frame(
            rng.randrange(1, 13),
            rng.randbytes(rng.choice((0, 1, 90, 1024))),
            rng.randrange(1 << 16),
        )
        for _ in range(20)
    ]
    line = b"\0" + b"".join(f.encode() for f in frames)
    for piece in (1, 7, 1000, len(line)):
        reader = FrameReader()
        found = [f for k in range(0, len(line), piece) for f in reader.feed(line[k : k + piece])]
        assert found == frames


def test_every_flipped_bit_is_noticed() -> None:
    frame = Frame(Type.LOAD, b"\x00\x01payload", seq=5)
    data = frame.to_bytes()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError, match="checksum"):
            Frame.from_bytes(bytes(damaged))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"short", "5 bytes are too few"),
        (b"\x02\x01\0\0\0\0\0\0", "version 2, this release speaks 1"),
        (b"\x01\x01\0\0\0\0\x05\0", "length field 5 for 0 bytes"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, text: str) -> None:
    if len(data) == 8:
        data += zlib.crc32(data).to_bytes(4, "little")
    with pytest.raises(FrameError, match=text):
        Frame.from_bytes(data)


def test_reader_goes_on_after_noise_of_any_length() -> None:
    reader = FrameReader()
    good = Frame(Type.ACK, seq=3)
    noise = bytes([9]) * 5000
    found = [*reader.feed(noise), *reader.feed(noise + b"\0\x05x\0" + good.encode())]
    assert [type(f) for f in found] == [FrameError, FrameError, Frame]
    assert "more than" in str(found[0])
    assert "COBS" in str(found[1])
    assert found[2] == good
    assert len(reader._partial) == 0


def test_payload_has_a_bound() -> None:
    with pytest.raises(ValueError, match=f"1025 bytes, at most {PAYLOAD_BYTES}"):
        Frame(Type.LOAD, bytes(1025)).encode()


def test_answers_of_a_wrong_size_are_refused() -> None:
    for kind, text in ((Hello, "HELLO"), (Done, "DONE"), (Counters, "COUNTERS")):
        with pytest.raises(FrameError, match=f"{text} carries 5 bytes"):
            kind.from_payload(bytes(5))
