"""The residual add equals its formula, and writes land where they should."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from trivet.hdl.addend import Addend


def write(dut, tables):
    """Writes of ``tables[pair, 256, 2]`` (int32 Ta, Tb) as (entry, byte, data)."""
    data = tables.astype("<i4").tobytes()
    return [(k >> 3, k & 7, value) for k, value in enumerate(data)]


def simulate(dut, writes, index, pairs, zp, lo, hi):
    found = []

    async def bench(ctx):
        for entry, byte, value in writes:
            ctx.set(dut.write_en, 1)
            ctx.set(dut.write_addr, entry)
            ctx.set(dut.write_byte, byte)
            ctx.set(dut.write_data, value)
            await ctx.tick()
        ctx.set(dut.write_en, 0)
        ctx.set(dut.index, index)
        ctx.set(dut.zp, zp)
        ctx.set(dut.lo, lo)
        ctx.set(dut.hi, hi)
        for cycle in range(len(pairs) + dut.LATENCY):
            if cycle >= dut.LATENCY:
                found.append(ctx.get(dut.o))
            if cycle < len(pairs):
                ctx.set(dut.a, int(pairs[cycle][0]))
                ctx.set(dut.b, int(pairs[cycle][1]))
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return np.array(found)


@pytest.mark.parametrize(
    ("index", "bits", "layer"),
    [
        (0, 24, (0, -128, 127)),
        (1, 24, (200, 0, 255)),
        (1, 27, (-5, -5, 100)),
        (0, 31, (1, -128, 127)),
    ],
)
def test_sums_match_the_formula(index, bits, layer):
    rng = np.random.default_rng(bits + index)
    tables = rng.integers(-(1 << bits), 1 << bits, (2, 256, 2))
    low, high = -(1 << bits), (1 << bits) - 1
    tables[:, :4] = [[low, low], [high, high], [0, -1], [-1, 0]]
    pairs = np.concatenate([np.stack(np.meshgrid(range(4), range(4)), -1).reshape(-1, 2),
                            rng.integers(0, 256, (6000, 2))])
    zp, lo, hi = layer
    dut = Addend(2)
    found = simulate(dut, write(dut, tables), index, pairs, zp, lo, hi)
    ta, tb = tables[index, :, 0], tables[index, :, 1]
    want = np.clip(((ta[pairs[:, 0]] + tb[pairs[:, 1]]) >> 16) + zp, lo, hi)
    assert np.array_equal(found, want)


@pytest.mark.slow
def test_every_pair_of_bytes():
    rng = np.random.default_rng(9)
    tables = rng.integers(-(1 << 24), 1 << 24, (1, 256, 2))
    pairs = np.stack(np.meshgrid(range(256), range(256)), -1).reshape(-1, 2)
    dut = Addend(1)
    found = simulate(dut, write(dut, tables), 0, pairs, 3, -128, 127)
    total = (tables[0, pairs[:, 0], 0] + tables[0, pairs[:, 1], 1]) >> 16
    assert np.array_equal(found, np.clip(total + 3, -128, 127))
