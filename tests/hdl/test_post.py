"""The post pipeline: right bytes in the cycle that the formula names, for every kind of layer."""

from dataclasses import replace

import numpy as np
import pytest
from amaranth.sim import Simulator
from golden import requant

from trivet.hdl.config import SMALL
from trivet.hdl.post import SKIP_OFFSET, Post, Table, latency


def pack(values, bits):
    """Channel 0 in the low bits."""
    mask = (1 << bits) - 1
    return sum((int(v) & mask) << k * bits for k, v in enumerate(values))


class Layer:
    """A layer of random beats, some cycles empty, and what should come out."""

    def __init__(self, rng, config, tables, addends, *, has_add, has_table, unsigned, beats=120):
        self.has_add, self.has_table = has_add, has_table
        low, high = (0, 255) if unsigned else (-128, 127)
        number = lambda: int(rng.integers(low, high + 1))  # noqa: E731
        self.zp_y, self.zp_a = number(), number()
        self.lo, self.hi = (self.zp_y, high) if rng.integers(2) else (low, high)
        self.lo_a, self.hi_a = (low, max(low, number())) if rng.integers(2) else (low, high)
        self.table_index = int(rng.integers(config.tables))
        self.addend_index = int(rng.integers(config.addends))
        shape = (beats, config.requantisers)
        self.gaps = rng.integers(0, 3, beats) * rng.integers(0, 2, beats)
        self.sums = rng.integers(-(1 << 20), 1 << 20, shape)
        self.bias = rng.integers(-(1 << 15), 1 << 15, shape)
        self.sums[0], self.bias[0] = 2**31 - 1, 0
        self.sums[1], self.bias[1] = -(2**31) + 5, -5
        self.m = (2.0 ** rng.uniform(-16, -10, shape)).astype(np.float32)
        self.skip = rng.integers(0, 256, shape)
        y = requant(self.sums + self.bias, self.m, self.zp_y, self.lo, self.hi)
        if has_add:
            ta, tb = addends[self.addend_index].T
            y = np.clip(((ta[y & 255] + tb[self.skip]) >> 16) + self.zp_a, self.lo_a, self.hi_a)
        y &= 255
        self.expected = tables[self.table_index][y] if has_table else y


def run(config, layers, tables, addends):
    """Per layer: [(cycles after its beat went in, bytes)] of each beat that came out."""
    dut = Post(config)
    rng = np.random.default_rng(0)
    results = []

    async def bench(ctx):
        async def write(enable, addr, byte, value):
            ctx.set(dut.write_addr, addr)
            ctx.set(dut.write_byte, byte)
            ctx.set(dut.write_data, int(value))
            if enable is not None:
                ctx.set(enable, 1)
            await ctx.tick()
            for which in (dut.write_table, dut.write_addend):
                ctx.set(which, 0)

        for addr, value in enumerate(tables.ravel()):
            await write(dut.write_table, addr, 0, value)
        for k, value in enumerate(addends.astype("<i4").tobytes()):
            await write(dut.write_addend, k >> 3, k & 7, value)
        await write(None, 0, 0, 0xAA)  # other memories' business
        for _ in range(3):
            await ctx.tick()

        for layer in layers:
            for name in ("zp_y", "lo", "hi", "zp_a", "lo_a", "hi_a", "has_add", "has_table",
                         "table_index", "addend_index"):
                ctx.set(getattr(dut, name), getattr(layer, name))
            starts = np.cumsum(1 + layer.gaps) - 1
            beat_at = {int(cycle): k for k, cycle in enumerate(starts)}
            found = []
            for cycle in range(int(starts[-1]) + 30):
                if ctx.get(dut.o_valid):
                    data = ctx.get(dut.o_bytes).to_bytes(config.requantisers, "little")
                    found.append((cycle, list(data)))
                beat = beat_at.get(cycle)
                ctx.set(dut.i_valid, beat is not None)
                # What is not asked for is noise: nothing may depend on it.
                noise = int.from_bytes(rng.bytes(8 * config.requantisers), "little")
                if beat is None:
                    ctx.set(dut.i_sums, noise & ((1 << 32 * config.requantisers) - 1))
                    ctx.set(dut.i_params, noise)
                else:
                    ctx.set(dut.i_sums, pack(layer.sums[beat], 32))
                    bits = layer.m[beat].view(np.uint32).astype(np.int64)
                    ctx.set(dut.i_params, pack((bits << 32) | (layer.bias[beat] & 0xFFFFFFFF), 64))
                due = beat_at.get(cycle - SKIP_OFFSET)
                skip = noise if due is None else pack(layer.skip[due], 8)
                ctx.set(dut.skip, skip & ((1 << 8 * config.requantisers) - 1))
                await ctx.tick()
            results.append((starts, found))

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return results


@pytest.mark.parametrize("requantisers", [1, 2, 4])
def test_bytes_and_cycles_of_every_kind_of_layer(requantisers):
    config = replace(SMALL, requantisers=requantisers)
    rng = np.random.default_rng(requantisers)
    tables = rng.integers(0, 256, (config.tables, 256))
    addends = rng.integers(-(1 << 23), 1 << 23, (config.addends, 256, 2))
    layers = [
        Layer(rng, config, tables, addends, has_add=has_add, has_table=has_table, unsigned=unsigned)
        for unsigned in (False, True) for has_add in (0, 1) for has_table in (0, 1)
    ]
    for layer, (starts, found) in zip(layers, run(config, layers, tables, addends), strict=True):
        due = starts + latency(config, layer.has_add, layer.has_table)
        assert [cycle for cycle, _ in found] == due.tolist()
        assert [data for _, data in found] == layer.expected.tolist()


def test_the_sums_of_the_latency():
    found = [latency(SMALL, add, table) for add in (0, 1) for table in (0, 1)]
    assert found == [14, 16, 19, 21]


def test_a_table_keeps_what_was_written():
    dut = Table(2)
    rng = np.random.default_rng(4)
    content = rng.integers(0, 256, 512).tolist()
    order = rng.permutation(512).tolist()
    found = []

    async def bench(ctx):
        ctx.set(dut.write_en, 1)
        for addr in order:
            ctx.set(dut.write_addr, addr)
            ctx.set(dut.write_data, content[addr])
            await ctx.tick()
        ctx.set(dut.write_en, 0)
        for cycle in range(512 + dut.LATENCY):
            if cycle >= dut.LATENCY:
                found.append(ctx.get(dut.o))
            if cycle < 512:
                ctx.set(dut.i, order[cycle] & 255)
                ctx.set(dut.index, order[cycle] >> 8)
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert found == [content[addr] for addr in order]
