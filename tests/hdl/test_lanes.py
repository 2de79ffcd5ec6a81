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
        late = None
        for cycle in range(max(due) + 1):
            if cycle in due:
                bits = ctx.get(dut.sums).to_bytes(4 * config.requantisers, "little")
                assert np.frombuffer(bits, np.int32).tolist() == due[cycle], cycle
            slice_ = feed[cycle] if cycle < len(feed) else None
            if late is not None:
                ctx.set(dut.weights, int.from_bytes(late.tobytes(), "little"))
            late = None
            ctx.set(dut.last, 0)
            if slice_ is not None:
                word, part, pad, late, first, last = slice_
                ctx.set(dut.word, int.from_bytes(word.tobytes(), "little"))
                ctx.set(dut.part, part)
                ctx.set(dut.pad, pad)
                ctx.set(dut.first, first)
                ctx.set(dut.last, last)
            await ctx.tick()

    assert dut.WEIGHT_LAG == 1
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
