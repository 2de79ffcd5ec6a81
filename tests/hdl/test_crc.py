"""The checksum in hardware equals zlib's."""

import random
import zlib

from streams import simulate

from trivet.hdl.link.crc import crc32


def test_checksum_equals_zlib_and_its_residue_is_found():
    rng = random.Random(21)
    texts = [
        b"123456789",
        b"\0",
        b"\xff" * 40,
        *(rng.randbytes(rng.randrange(1, 300)) for _ in range(8)),
    ]
    dut = crc32()

    async def testbench(ctx):
        for text in texts:
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            ctx.set(dut.valid, 1)
            for byte in text:
                ctx.set(dut.data, byte)
                await ctx.tick()
            assert ctx.get(dut.crc) == zlib.crc32(text)
            for byte in zlib.crc32(text).to_bytes(4, "little"):
                assert not ctx.get(dut.match_detected)
                ctx.set(dut.data, byte)
                await ctx.tick()
            assert ctx.get(dut.match_detected)
            ctx.set(dut.valid, 0)

    simulate(dut, testbench)
