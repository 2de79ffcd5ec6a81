"""Memories return what was written, at the latency they state."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from trivet.hdl.config import EngineConfig
from trivet.hdl.memories import ActivationMemory, ByteMemory, chunks


def simulate(dut, testbench):
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()


@pytest.mark.parametrize("depth", [1, 3, 64, 511, 512, 513, 2048, 2112, 3000, 65536])
def test_chunks_cover_the_memory_once(depth):
    pieces = chunks(depth)
    assert sum(words for _, words in pieces) == depth
    base = 0
    for start, words in pieces:
        assert start == base
        # The low address bits are the address within the chunk.
        assert start % (1 << (words - 1).bit_length()) == 0
        base += words
    assert all(words & (words - 1) == 0 for _, words in pieces[:-1])


def test_default_weights_are_a_power_of_two_and_a_rest():
    assert chunks(2112) == ((0, 2048), (2048, 64))


@pytest.mark.parametrize(("compact", "far"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize(("width", "depth"), [(1, 1), (4, 5), (2, 64), (3, 514), (1, 1024 + 37)])
def test_bytes_come_back(width, depth, compact, far):
    dut = ByteMemory(width, depth, compact, far)
    rng = np.random.default_rng(depth)
    words = rng.integers(0, 256, (depth, width), dtype=np.uint8)
    order = [a * width + k for a in rng.permutation(depth).tolist() for k in range(width)]
    reads = rng.permutation(depth).tolist()
    found = []

    async def testbench(ctx):
        ctx.set(dut.write_en, 1)
        if width > 1 and not compact:  # a word broken off is forgotten
            ctx.set(dut.write_data, 0xA5)
            await ctx.tick()
        for k in order:
            ctx.set(dut.write_addr, k // width)
            ctx.set(dut.write_byte, k % width)
            ctx.set(dut.write_data, int(words.reshape(-1)[k]))
            await ctx.tick()
        ctx.set(dut.write_en, 0)
        await ctx.tick()
        for k in range(depth + dut.latency):
            if k >= dut.latency:
                found.append(ctx.get(dut.read_data).to_bytes(width, "little"))
            if k < depth:
                ctx.set(dut.read_addr, reads[k])
            await ctx.tick()

    simulate(dut, testbench)
    assert found == [words[k].tobytes() for k in reads]


def test_activation_reads_in_different_banks_do_not_disturb_each_other():
    config = EngineConfig(lanes=2, simd=4, requantisers=1, act_banks=3, act_bank_words=8)
    dut = ActivationMemory(config)
    rng = np.random.default_rng(1)
    words = rng.integers(0, 256, (24, 4), dtype=np.uint8)
    cycles = 60
    main = rng.integers(0, 24, cycles).tolist()
    skip = [(a + int(rng.integers(8, 17)) // 8 * 8) % 24 for a in main]
    enabled = rng.integers(0, 2, cycles).tolist()
    got = []

    async def testbench(ctx):
        for k, word in enumerate(words):
            for byte in range(4):
                ctx.set(dut.write_en, 1 << byte << k // 8 * 4)
                ctx.set(dut.write_addr, k)
                ctx.set(dut.write_data, int.from_bytes(word.tobytes(), "little"))
                await ctx.tick()
        ctx.set(dut.write_en, 0)
        for k in range(cycles + 6):
            got.append((ctx.get(dut.read_data), ctx.get(dut.skip_data)))
            # The main read of a cycle meets the skip read asked for one cycle earlier.
            ctx.set(dut.read_addr, main[k] if k < cycles else 0)
            ctx.set(dut.read_bank, 1 << main[k] // 8 if k < cycles else 1)
            ctx.set(dut.skip_addr, skip[k + 1] if k + 1 < cycles else 0)
            ctx.set(dut.skip_en, enabled[k + 1] if k + 1 < cycles else 0)
            await ctx.tick()

    simulate(dut, testbench)
    value = [int.from_bytes(word.tobytes(), "little") for word in words]
    for k in range(cycles):
        assert got[k + dut.LATENCY][0] == value[main[k]]
    for k in range(1, cycles):
        expected = value[skip[k]] if enabled[k] else 0
        assert got[k - 1 + dut.SKIP_LATENCY][1] == expected


def test_the_host_reads_beside_the_engine_and_changes_nothing():
    config = EngineConfig(lanes=2, simd=4, requantisers=1, act_banks=3, act_bank_words=8)
    dut = ActivationMemory(config)
    rng = np.random.default_rng(2)
    words = rng.integers(0, 256, (24, 4), dtype=np.uint8)
    cycles = 600
    main = rng.integers(0, 24, cycles).tolist()
    reads = rng.integers(0, 4, cycles).astype(bool).tolist()
    skip = [(a + int(rng.integers(8, 17)) // 8 * 8) % 24 for a in main]
    skips = (rng.integers(0, 4, cycles) == 0).tolist()
    host = rng.integers(0, 24, cycles).tolist()
    asks = rng.integers(0, 4, cycles).astype(bool).tolist()
    got = []

    async def testbench(ctx):
        for k, word in enumerate(words):
            ctx.set(dut.write_en, 15 << k // 8 * 4)
            ctx.set(dut.write_addr, k)
            ctx.set(dut.write_data, int.from_bytes(word.tobytes(), "little"))
            await ctx.tick()
        ctx.set(dut.write_en, 0)
        for k in range(cycles):
            got.append((ctx.get(dut.read_data), ctx.get(dut.skip_data), ctx.get(dut.host_ready)))
            ctx.set(dut.read_bank, reads[k] << main[k] // 8)
            ctx.set(dut.read_addr, main[k])
            later = min(k + 1, cycles - 1)  # its main read is that of the cycle after
            ctx.set(dut.skip_en, skips[later])
            ctx.set(dut.skip_addr, skip[later])
            ctx.set(dut.host_en, asks[k])
            ctx.set(dut.host_addr, host[k])
            await ctx.tick()

    simulate(dut, testbench)
    value = [int.from_bytes(word.tobytes(), "little") for word in words]
    answered = 0
    for k in range(1, cycles - dut.SKIP_LATENCY - 1):
        if reads[k]:
            assert got[k + dut.LATENCY][0] == value[main[k]]
        if skips[k]:
            assert got[k - 1 + dut.SKIP_LATENCY][1] == value[skip[k]]
        # Lost where a skip read is, or where the main read meets it, a cycle later.
        wins = not skips[k + 1] and not (reads[k + 1] and main[k + 1] // 8 == host[k] // 8)
        assert got[k + dut.HOST_DECISION][2] == (asks[k] and wins)
        if asks[k] and wins:
            assert got[k + dut.SKIP_LATENCY][1] == value[host[k]]
            answered += 1
    assert answered > 100
