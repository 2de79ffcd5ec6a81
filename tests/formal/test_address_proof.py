"""A layer reads no word outside its tensors, except where the slice is masked (bounded)."""

from dataclasses import fields

import pytest
from amaranth import *
from amaranth.hdl import Assert, Assume
from formal.proof import constants, free, holds, refuted

from trivet.hdl.address import AddressGenerator
from trivet.hdl.config import EngineConfig
from trivet.hdl.isa import Instruction, Op

pytestmark = pytest.mark.synth

STEPS = 8  # two cycles to start, then slices or idle cycles
LONG, LONGER = 10, 12
# Largest values tried; every smaller one too, from 1 (0 for the margins).
SIZES = {
    "blocks": 2, "out_h": 2, "out_w": 2, "kernel_h": 2, "kernel_w": 2, "c_slices": 2,
    "in_h": 3, "in_w": 3, "pixel_words": 2, "stride_h": 2, "stride_w": 2,
    "dilation_h": 2, "dilation_w": 2,
}  # fmt: skip
MARGINS = {"pad_top": 2, "pad_left": 2, "idle": 1}
HAS_WINDOW = any(f.name == "window" for f in fields(Instruction))
# A window takes kernels of 3 x 3, or it is none: what the instruction set says.
WINDOW = {"window": 1, "op": Op.LANE, "kernel_h": 3, "kernel_w": 3, "dilation_w": 1, "c_slices": 1}
TINY = EngineConfig(lanes=4, simd=2, requantisers=2)  # a word holds two slices
WIDE = EngineConfig(lanes=4, simd=4, requantisers=2)


class ReadsInside(Elaboratable):
    """Any layer of small sizes, at any place in memory, started at any time.

    Derived fields are those of ``Instruction.derived``, computed on the free values. ``slip`` is
    what the step from row to row is wrong by: the proof must see it.
    """

    def __init__(self, *, window=False, slip=0):
        self.window, self.slip = window, slip

    def elaborate(self, platform):
        m = Module()
        config = WIDE if self.window else TINY
        m.submodules.dut = dut = AddressGenerator(config)
        fixed = WINDOW if self.window else {}
        value = dict(fixed)
        for name, most in (SIZES | MARGINS).items():
            if name in fixed:
                continue
            if self.window and name == "pad_left":
                most = 1
            (value[name],) = constants(m, 1, name, range(most + 1))
            m.d.comb += Assume((value[name] <= most) & (value[name] >= (name in SIZES)))
        for name in ("src", "weights"):
            (value[name],) = constants(m, 1, name, 16)
        (value["weight_hold"],) = constants(m, 1, "weight_hold", 1)
        (is_lane,) = constants(m, 1, "is_lane", 1)
        if self.window:
            m.d.comb += Assume(is_lane)
        else:
            value["op"] = Mux(is_lane, Op.LANE, Op.DOT)
        layer = Instruction(**value)
        derived = layer.derived()
        for name, bits in (value | derived | {"step_y": derived["step_y"] + self.slip}).items():
            m.d.comb += dut.instruction[name].eq(bits)
        # Slices and blocks fit a pixel: the compiler's duty.
        bytes_read = Mux(is_lane, layer.blocks * config.lanes, layer.c_slices * config.simd)
        m.d.comb += Assume(bytes_read <= layer.pixel_words * config.word_bytes)
        m.d.comb += Assume(~is_lane | (layer.c_slices == 1))

        loaded, gone, finished, issued = (Signal(name=n) for n in ("ld", "gone", "end", "issued"))
        m.d.comb += [dut.load.eq(~gone), dut.go.eq(free(m, 1, "go") & loaded & ~gone)]
        m.d.sync += [loaded.eq(1), gone.eq(gone | dut.go), issued.eq(dut.issuing)]
        with m.If(dut.finish):
            m.d.sync += finished.eq(1)
        slices = Signal(8)
        with m.If(dut.issuing):
            m.d.sync += slices.eq(slices + 1)
            m.d.comb += Assert(gone & ~finished)

        columns = derived.get("columns", layer.out_w)
        work = layer.blocks * layer.out_h * columns * layer.slices
        m.d.comb += Assert(slices <= work)
        m.d.comb += Assert(~dut.finish | (slices + 1 == work))
        within = (dut.addr - layer.src)[:16]
        m.d.comb += Assert(~issued | dut.pad | (within < layer.in_h * derived["row_words"]))
        offset = (dut.weight - layer.weights)[:16]
        m.d.comb += Assert(
            ~issued | (offset < Mux(layer.weight_hold, 1, layer.blocks * layer.slices))
        )
        return m


@pytest.mark.parametrize(
    ("window", "steps"),
    [
        (False, STEPS),
        (True, STEPS),
        pytest.param(False, LONG, marks=pytest.mark.slow),
        pytest.param(True, LONGER, marks=pytest.mark.slow),
    ],
)
def test_reads_lie_inside_the_tensors(window, steps):
    if window and not HAS_WINDOW:
        pytest.skip("the instruction set has no window")
    assert holds(ReadsInside(window=window), steps=steps)


@pytest.mark.parametrize("slip", [1, -1])
def test_a_wrong_step_is_found(slip):
    assert refuted(ReadsInside(slip=slip), steps=STEPS)
