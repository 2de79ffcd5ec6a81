"""The serial requantiser gives the parallel one's bytes: numpy's float32, every INTERVAL cycles."""

import numpy as np
import pytest
from amaranth.sim import Simulator
from requant_cases import LAYERS, all_cases, differences, double_roundings, split

from trivet.hdl.requant_serial import SerialRequantiser


def simulate(runs, gaps=None):
    """Results of (sums, m, layer) runs, read exactly ``LATENCY`` cycles after their start."""
    dut = SerialRequantiser()
    results = []

    async def bench(ctx):
        for sums, m, (zp, lo, hi) in runs:
            ctx.set(dut.zp, zp)
            ctx.set(dut.lo, lo)
            ctx.set(dut.hi, hi)
            gap = np.zeros(len(sums), int) if gaps is None else gaps.integers(0, 60, len(sums))
            starts = np.cumsum(gap + dut.INTERVAL).tolist()
            begun = dict(zip(starts, zip(sums.tolist(), m.view(np.uint32).tolist(), strict=True),
                             strict=True))
            due = {start + dut.LATENCY for start in starts}
            found = []
            for cycle in range(starts[-1] + dut.LATENCY + 1):
                if cycle in due:
                    found.append(ctx.get(dut.y))
                if cycle in begun:
                    ctx.set(dut.sum, begun[cycle][0])
                    ctx.set(dut.m, begun[cycle][1])
                    ctx.set(dut.start, 1)
                elif cycle - 1 in begun:
                    ctx.set(dut.sum, -1)  # nothing but the cycle of `start` counts
                    ctx.set(dut.start, 0)
                elif cycle - dut.INTERVAL + 1 in begun:
                    ctx.set(dut.m, 0x3F800001)  # m has been used up
                await ctx.tick()
            results.append(np.array(found))

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return results


def test_results_match_numpy():
    runs = split(*all_cases(2, 60))
    assert not differences(runs, simulate(runs))


def test_gaps_between_sums_do_no_harm():
    runs = split(*all_cases(4, 20))
    assert not differences(runs, simulate(runs, np.random.default_rng(4)))


def test_every_exponent_of_the_multiplier():
    exponents = np.arange(0, 255, dtype=np.uint32) << 23
    bits = np.concatenate([exponents + low for low in (0, 0x7FFFFF)])
    m = np.concatenate([bits[bits > 0].astype(np.uint32).view(np.float32)] * 4)
    sums = np.repeat(np.array([1, -1, 2**31 - 1, -(2**31)], np.int64), len(m) // 4)
    runs = [(sums, m, (0, -128, 127))]
    assert not differences(runs, simulate(runs))


@pytest.mark.slow
def test_double_roundings_at_every_length():
    sums, m = double_roundings(np.random.default_rng(7))
    runs = [(sums, m, layer) for layer in ((0, -128, 127), (128, 0, 255))]
    assert not differences(runs, simulate(runs))


@pytest.mark.slow
def test_many_results_match_numpy():
    runs = split(*all_cases(3, 1500))
    assert len(LAYERS) == len(runs)
    assert not differences(runs, simulate(runs))
