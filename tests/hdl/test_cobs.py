"""COBS in hardware equals the ``cobs`` package."""

import random

import pytest
from cobs import cobs
from streams import collect, feed, simulate

from trivet.hdl.link.cobs import CobsDecoder, CobsEncoder

RNG = random.Random(20)
BLOCKS = [
    b"\0",
    b"\0\0",
    b"a",
    b"a\0",
    b"\0a",
    bytes(range(1, 255)),
    bytes(range(1, 256)),
    bytes(range(256)),
    bytes([7]) * 253,
    bytes([7]) * 254 + b"\0",
    bytes([7]) * 255,
    bytes([7]) * 508,
    RNG.randbytes(300),
    *(bytes(RNG.choice((0, 0, 5)) for _ in range(20)) for _ in range(4)),
]
STALLS = [(0.0, 0.0), (0.5, 0.1), (0.1, 0.6)]


def decode(stream, stall_in=0.0, stall_out=0.0, blocks=1):
    """Blocks out of the decoder as (bytes, error)."""
    dut = CobsDecoder()
    symbols = []
    simulate(
        dut,
        feed(dut.i, stream, stall_in),
        collect(dut.o, symbols, blocks, lambda symbol: symbol.end, stall=stall_out),
    )
    found, block = [], bytearray()
    for symbol in symbols:
        if symbol.end:
            found.append((bytes(block), symbol.error))
            block.clear()
        else:
            block.append(symbol.data)
    return found


@pytest.mark.parametrize(("stall_in", "stall_out"), STALLS)
def test_decoder_inverts_the_package(stall_in, stall_out):
    stream = b"".join(cobs.encode(b) + b"\0" for b in BLOCKS)
    assert decode(stream, stall_in, stall_out, len(BLOCKS)) == [(b, 0) for b in BLOCKS]


@pytest.mark.parametrize(("stall_in", "stall_out"), STALLS)
def test_encoder_equals_the_package(stall_in, stall_out):
    dut = CobsEncoder()
    items = [{"data": v, "last": k == len(b) - 1} for b in BLOCKS for k, v in enumerate(b)]
    expected = b"".join(cobs.encode(b) + b"\0" for b in BLOCKS)
    got = []
    simulate(dut, feed(dut.i, items, stall_in), collect(dut.o, got, len(expected), stall=stall_out))
    assert bytes(got) == expected


def test_decoder_takes_a_byte_a_cycle():
    block = RNG.randbytes(500)
    stream = cobs.encode(block) + b"\0"
    dut = CobsDecoder()
    symbols = []
    simulate(
        dut,
        feed(dut.i, stream),
        collect(dut.o, symbols, 1, lambda symbol: symbol.end, limit=len(stream) + 3),
    )
    assert bytes(s.data for s in symbols[:-1]) == block


def test_decoder_finds_the_next_block_after_a_cut_one():
    stream = cobs.encode(b"first block")[:5] + b"\0\0\0" + cobs.encode(b"second\0") + b"\0"
    (cut, error), second = decode(stream, blocks=2)
    assert error == 1
    assert cut == b"firs"
    assert second == (b"second\0", 0)
