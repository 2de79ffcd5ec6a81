"""Signed multiplier with registers where a DSP block has them."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Multiplier"]


class Multiplier(wiring.Component):
    """Product of two signed numbers, one a cycle, never stalling.

    Inputs and output are registered, as a DSP block does at no cost; the registers have no reset.
    Unsigned pieces of up to 17 bits go in with a zero in front.

    Parameters
    ----------
    width_a, width_b : :class:`int`
        Bits of the factors, signed, 1 to 18: one DSP block of any supported family.
    pipelined : :class:`bool`
        A further register inside the multiplication, for clocks above about 200 MHz.

    Attributes
    ----------
    latency : :class:`int`
        Cycles from factors to product: 2, or 3 when pipelined.

    Members
    -------
    a : :py:`In(signed(width_a))`
        First factor.
    b : :py:`In(signed(width_b))`
        Second factor.
    o : :py:`Out(signed(width_a + width_b))`
        Product, :attr:`latency` cycles later.
    """

    def __init__(self, width_a, width_b, *, pipelined=False):
        for name, width in (("width_a", width_a), ("width_b", width_b)):
            if not 1 <= width <= 18:
                raise ValueError(f"multiplier: {name} is {width}, must be 1..18; "
                                 f"split wider factors into pieces")
        self.width_a = width_a
        self.width_b = width_b
        self.latency = 3 if pipelined else 2
        super().__init__({
            "a": In(signed(width_a)),
            "b": In(signed(width_b)),
            "o": Out(signed(width_a + width_b)),
        })

    def elaborate(self, platform):
        # A platform's DSP primitive takes the place of this portable form here: same ports, same
        # latency, so that nothing around the multiplier knows which one it got.
        return self._portable()

    def _portable(self):
        m = Module()
        a = Signal.like(self.a, name="a_reg", reset_less=True)
        b = Signal.like(self.b, name="b_reg", reset_less=True)
        m.d.sync += [a.eq(self.a), b.eq(self.b)]
        product = a * b
        # All registers but the first follow the product: synthesis moves them into the block.
        for stage in range(self.latency - 1):
            register = Signal.like(self.o, name=f"product{stage}", reset_less=True)
            m.d.sync += register.eq(product)
            product = register
        m.d.comb += self.o.eq(product)
        return m
