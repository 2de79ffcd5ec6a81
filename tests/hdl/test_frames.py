"""Frames in hardware equal the host's codec, with stalls on every stream."""

import random

import pytest
from streams import collect, feed, simulate

from trivet.hdl.link.frames import FrameReceiver, FrameTransmitter, Nak
from trivet.runtime.link.frame import Frame, Type

STALLS = [(0.0, 0.0), (0.4, 0.2), (0.1, 0.7)]
RNG = random.Random(4)
FRAMES = [
    Frame(Type.LOAD, RNG.randbytes(n), RNG.randrange(1 << 16), RNG.randrange(256))
    for n in (0, 1, 2, 33, 200)
]


def symbols(block, error=0):
    return [
        *({"data": b, "end": 0, "error": 0} for b in block),
        {"data": 0, "end": 1, "error": error},
    ]


@pytest.mark.parametrize(("stall_in", "stall_out"), STALLS)
def test_transmitter_sends_what_the_host_would(stall_in, stall_out):
    dut = FrameTransmitter()
    headers = [
        {"type": f.type, "stream": f.stream, "seq": f.seq, "length": len(f.payload)} for f in FRAMES
    ]
    got = []
    simulate(
        dut,
        feed(dut.header, headers, stall_in),
        feed(dut.i, b"".join(f.payload for f in FRAMES), stall_in, 3),
        collect(dut.o, got, len(FRAMES), lambda byte: byte.last, stall=stall_out),
    )
    assert bytes(b.data for b in got) == b"".join(f.to_bytes() for f in FRAMES)


@pytest.mark.parametrize("stall", [0.0, 0.5])
def test_receiver_offers_frames_with_their_payload(stall):
    dut = FrameReceiver()
    found = []

    async def take(ctx):
        rng = random.Random(6)
        for frame in FRAMES:
            for _ in range(20_000):
                if ctx.get(dut.valid):
                    break
                await ctx.tick()
            header = ctx.get(dut.frame)
            assert (header.type, header.stream, header.seq, header.length, header.nak) == (
                frame.type,
                frame.stream,
                frame.seq,
                len(frame.payload),
                0,
            )
            text = []
            while len(text) < header.length:
                ready = rng.random() >= stall
                ctx.set(dut.payload.ready, ready)
                _, _, valid, byte = await ctx.tick().sample(dut.payload.valid, dut.payload.payload)
                if ready and valid:
                    text.append(byte)
            ctx.set(dut.payload.ready, 0)
            found.append(bytes(text))
            ctx.set(dut.release, 1)
            await ctx.tick()
            ctx.set(dut.release, 0)

    simulate(dut, take, feed(dut.i, [s for f in FRAMES for s in symbols(f.to_bytes())], stall))
    assert found == [f.payload for f in FRAMES]


@pytest.mark.parametrize(
    ("block", "error", "reason"),
    [
        (FRAMES[3].to_bytes(), 1, Nak.CRC),
        (FRAMES[3].to_bytes()[:-1], 0, Nak.CRC),
        (FRAMES[3].to_bytes() + b"x", 0, Nak.CRC),
        (b"\0" * 11, 0, Nak.CRC),
        (b"", 0, Nak.CRC),
    ],
)
def test_receiver_says_what_is_wrong(block, error, reason):
    dut = FrameReceiver()

    async def look(ctx):
        await ctx.tick().until(dut.valid)
        assert ctx.get(dut.frame).nak == reason

    simulate(dut, look, feed(dut.i, symbols(block, error)))
