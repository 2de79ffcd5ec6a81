"""A stream's buffer gives what it took, once and in order, whatever the stalls."""

import pytest
from amaranth import *
from amaranth.hdl import Assert
from formal.proof import chosen, constants, copy_of, free, holds, refuted

pytestmark = pytest.mark.synth

BUFFER = "trivet.hdl.link.buffer"
COUNT = 6


class Passes(Elaboratable):
    """Elements that are all different places of a free row; cleared at any time."""

    def __init__(self, module):
        self.module = module

    def elaborate(self, platform):
        m = Module()
        m.submodules.dut = dut = self.module.Buffer(8)
        row = constants(m, COUNT, "element")
        clear = free(m, 1, "clear")
        taken = Signal(range(COUNT + 1))
        given = Signal(range(COUNT + 1))
        m.d.comb += [
            dut.i.valid.eq(free(m, 1, "i_valid") & (taken != COUNT)),
            dut.i.payload.eq(chosen(row, taken)),
            dut.o.ready.eq(free(m, 1, "o_ready")),
            dut.clear.eq(clear),
        ]
        with m.If(dut.i.valid & dut.i.ready):
            m.d.sync += taken.eq(taken + 1)
        with m.If(dut.o.valid & dut.o.ready):
            m.d.sync += given.eq(given + 1)
        # What was held or came in the cycle of `clear` is gone.
        with m.If(clear):
            m.d.sync += given.eq(taken + (dut.i.valid & dut.i.ready))
        m.d.comb += Assert(given <= taken)
        m.d.comb += Assert(~dut.o.valid | (given < taken))
        m.d.comb += Assert(~dut.o.valid | (dut.o.payload == chosen(row, given)))
        # Nothing is kept back, and never more than two are held.
        m.d.comb += Assert(dut.o.valid == (given != taken))
        m.d.comb += Assert(dut.i.ready == (taken - given < 2))
        return m


def test_passes():
    assert holds(Passes(copy_of(BUFFER)), steps=16)


@pytest.mark.parametrize(
    "change",
    [
        ("self.o.valid.eq(has_spare | self.i.valid)", "self.o.valid.eq(self.i.valid)"),
        ("[has_spare.eq(self.i.valid), spare.eq(self.i.payload)]", "[has_spare.eq(self.i.valid)]"),
        ("m.d.sync += [self.o.valid.eq(0), has_spare.eq(0)]", "m.d.sync += self.o.valid.eq(0)"),
    ],
)
def test_a_wrong_one_is_refuted(change):
    assert refuted(Passes(copy_of(BUFFER, change)), steps=16)
