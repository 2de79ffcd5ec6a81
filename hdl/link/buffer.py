"""A stage of a stream without a combinational path through it."""

from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Buffer"]


class Buffer(wiring.Component):
    """Holds up to two elements; ``valid``, ``ready`` and ``payload`` are registers.

    One element a cycle passes, one cycle late.

    Parameters
    ----------
    shape : ShapeLike
        Of an element.

    Members
    -------
    i, o : stream.Signature(shape)
    clear : :py:`In(1)`
        Forget what is held and what comes in this cycle.
    """

    def __init__(self, shape):
        super().__init__({
            "i": In(stream.Signature(shape)),
            "o": Out(stream.Signature(shape)),
            "clear": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        spare = Signal.like(self.i.payload, reset_less=True)
        has_spare = Signal()
        m.d.comb += self.i.ready.eq(~has_spare)
        with m.If(~self.o.valid | self.o.ready):
            m.d.sync += [self.o.valid.eq(has_spare | self.i.valid), has_spare.eq(0)]
            with m.If(has_spare):
                m.d.sync += self.o.payload.eq(spare)
            with m.Else():
                m.d.sync += self.o.payload.eq(self.i.payload)
        with m.Elif(~has_spare):
            m.d.sync += [has_spare.eq(self.i.valid), spare.eq(self.i.payload)]
        with m.If(self.clear):
            m.d.sync += [self.o.valid.eq(0), has_spare.eq(0)]
        return m
