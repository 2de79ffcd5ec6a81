"""Lanes sum products of slices as numpy does, for pixels of any length."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from trivet.hdl.config import EngineConfig
from trivet.hdl.lanes import Lanes

SHAPES = [(1, 1, 1), (4, 4, 2), (8, 2, 8), (2, 8, 1)]


def pixels(config, rng, count):
    """Pixels of random length: a list of slices (word, part, pad, weights) each."""
    small = min(config.lanes, config.simd)
    out = []
    for _ in range(count):
        length = int(rng.integers(1, 5))
        out.append([(
            rng.integers(0, 256, config.word_bytes, dtype=np.uint8),
            int(rng.integers(0, config.word_bytes // small)),
            int(rng.integers(0, 4) == 0),
            rng.integers(-128, 128, (config.lanes, config.simd), dtype=np.int8),
        ) for _ in range(length)])
    return out


def expected(config, pixel, *, is_lane, unsigned, maximum, zp):
    totals = []
    for word, part, pad, weights in pixel:
        size = config.lanes if is_lane else config.simd
        where = part if size < config.word_bytes else 0
        data = word[where * size : (where + 1) * size]
        data = (data if unsigned else data.view(np.int8)).astype(np.int64)
        if pad:
            data[:] = zp
        w = weights.astype(np.int64)
        totals.append(w[:, 0] * data if is_lane else w @ data)
    return (np.max if maximum else np.sum)(totals, 0)


@pytest.mark.parametrize("maximum", [0, 1], ids=["sum", "max"])
@pytest.mark.parametrize("is_lane", [0, 1], ids=["dot", "lane"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}r{s[2]}")
def test_sums_match_numpy(shape, is_lane, maximum):
    config = EngineConfig(*shape)
    dut = Lanes(config)
    rng = np.random.default_rng(sum(shape))
    unsigned, zp = maximum ^ is_lane, 201 if maximum ^ is_lane else -77
    work = pixels(config, rng, 30)
    feed = []  # cycle -> slice with tags
    due = {}  # cycle -> channels
    for pixel in work:
        for k, slice_ in enumerate(pixel):
            feed.append((*slice_, k == 0, k == len(pixel) - 1))
        sums = expected(config, pixel, is_lane=is_lane, unsigned=unsigned, maximum=maximum, zp=zp)
        start = len(feed) - 1 + dut.latency
        for beat, channels in enumerate(sums.reshape(config.beats, config.requantisers)):
            due[start + beat] = channels.tolist()
        feed += [None] * max(0, config.beats - len(pixel), int(rng.integers(-3, 3)))

    async def testbench(ctx):
        ctx.set(dut.is_lane, is_lane)
        ctx.set(dut.x_unsigned, unsigned)
        ctx.set(dut.acc_max, maximum)
        ctx.set(dut.zp_x, zp)
        late = [None] * (dut.weight_lag + 1)  # weights by the cycles since their slice
        for cycle in range(max(due) + 1):
            if cycle in due:
                bits = ctx.get(dut.sums).to_bytes(4 * config.requantisers, "little")
                assert np.frombuffer(bits, np.int32).tolist() == due[cycle], cycle
            slice_ = feed[cycle] if cycle < len(feed) else None
            if late[-2] is not None:
                ctx.set(dut.weights, int.from_bytes(late[-2].tobytes(), "little"))
            late = [None, *late[:-1]]
            ctx.set(dut.last, 0)
            ctx.set(dut.valid, slice_ is not None)
            if slice_ is not None:
                word, part, pad, late[0], first, last = slice_
                ctx.set(dut.word, int.from_bytes(word.tobytes(), "little"))
                ctx.set(dut.part, part)
                ctx.set(dut.pad, pad)
                ctx.set(dut.first, first)
                ctx.set(dut.last, last)
            await ctx.tick()

    assert dut.weight_lag == 1 + (not config.compact)
    simulate(dut, testbench)


def simulate(dut, testbench):
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()


@pytest.mark.parametrize("shape", [(4, 4, 4), (2, 8, 1)], ids=lambda s: f"{s[0]}x{s[1]}r{s[2]}")
def test_windows_take_the_two_columns_before(shape):
    """Columns of three slices with gaps between them, which hold the shift register."""
    config = EngineConfig(*shape)
    dut = Lanes(config)
    rng = np.random.default_rng(3)
    zp, history = -5, [None] * 6
    feed, due = [], {}
    for column in range(40):
        sums = 0
        blind = int(rng.integers(0, 3) == 0)
        for row in range(3):
            (word, part, pad, weights), = pixels(config, rng, 1)[0][:1]
            size = config.lanes
            data = word.view(np.int8)
            if size < len(word):
                data = data[part * size :][:size]
            data = np.full(size, zp) if pad else data.astype(np.int64)
            if column >= 2:
                last = np.full(size, zp) if blind else history[-6]
                taps = np.stack([data, history[-3], last], 1)
                sums = sums + (weights[:, :3] * taps).sum(1)
            history.append(data)
            feed.append((word, part, pad, weights, row == 0, column >= 2 and row == 2, blind))
        if column >= 2:
            for beat, channels in enumerate(sums.reshape(config.beats, config.requantisers)):
                due[len(feed) - 1 + dut.latency + beat] = channels.tolist()
        feed += [None] * int(rng.integers(0, 3))

    async def testbench(ctx):
        ctx.set(dut.is_lane, 1)
        ctx.set(dut.window, 1)
        ctx.set(dut.zp_x, zp)
        late = [None] * (dut.weight_lag + 1)
        for cycle in range(max(due) + 1):
            if cycle in due:
                bits = ctx.get(dut.sums).to_bytes(4 * config.requantisers, "little")
                assert np.frombuffer(bits, np.int32).tolist() == due[cycle], cycle
            slice_ = feed[cycle] if cycle < len(feed) else None
            if late[-2] is not None:
                ctx.set(dut.weights, int.from_bytes(late[-2].tobytes(), "little"))
            late = [None, *late[:-1]]
            ctx.set(dut.valid, slice_ is not None)
            ctx.set(dut.last, 0)
            if slice_ is not None:
                word, part, pad, late[0], first, last, blind = slice_
                ctx.set(dut.word, int.from_bytes(word.tobytes(), "little"))
                for port, value in ((dut.part, part), (dut.pad, pad), (dut.first, first),
                                    (dut.last, last), (dut.blind, blind)):
                    ctx.set(port, value)
            await ctx.tick()

    simulate(dut, testbench)
