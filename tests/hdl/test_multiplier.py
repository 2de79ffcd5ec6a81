"""Products of signed numbers, exact and on time, at the widths that are used."""

import gc

import numpy as np
import pytest
from amaranth.sim import Simulator

from trivet.hdl.multiplier import Multiplier


def products(dut, pairs):
    found = []

    async def bench(ctx):
        for cycle in range(len(pairs) + dut.latency):
            if cycle >= dut.latency:
                found.append(ctx.get(dut.o))
            if cycle < len(pairs):
                ctx.set(dut.a, pairs[cycle][0])
                ctx.set(dut.b, pairs[cycle][1])
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return found


@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize(("width_a", "width_b"), [(9, 8), (18, 18), (18, 8), (8, 18), (1, 1)])
def test_products_are_exact_after_the_latency(width_a, width_b, pipelined):
    rng = np.random.default_rng(width_a * 100 + width_b)
    low_a, low_b = -(1 << width_a - 1), -(1 << width_b - 1)
    pairs = [(a, b) for a in (low_a, -1 - low_a, 0, -1) for b in (low_b, -1 - low_b, 0, -1)]
    pairs += rng.integers([low_a, low_b], [-low_a, -low_b], (300, 2)).tolist()
    dut = Multiplier(width_a, width_b, pipelined=pipelined)
    assert dut.latency == 2 + pipelined
    assert products(dut, pairs) == [a * b for a, b in pairs]


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
@pytest.mark.parametrize("widths", [(19, 8), (8, 0)])
def test_a_width_beyond_a_dsp_block_is_refused(widths):
    with pytest.raises(ValueError, match=r"multiplier: width_[ab] is (19|0), must be 1\.\.18"):
        Multiplier(*widths)
    gc.collect()  # while the warning about the half-made component is still ignored
