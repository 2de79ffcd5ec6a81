"""The requantiser's roundings equal their definition for every sum, multiplier and layer.

The 24 x 24 product is abstract: its four pieces are any numbers that add up to a product of two
24-bit numbers with leading ones. That the pieces' factors are the right ones is proved here, that
pieces add up to the product is the distributive law, and the multiplier has its own tests.
"""

import pytest
from amaranth import *
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from formal.proof import copy_of, free, holds, nearest_even, refuted

from trivet.hdl import requant

pytestmark = pytest.mark.synth

TO_MULTIPLIERS = 4  # cycles from the sum to the multipliers' inputs
FROM_MULTIPLIERS = 6  # to their outputs


class AbstractMultiplier(wiring.Component):
    """Any product in any cycle."""

    def __init__(self, width_a, width_b):
        super().__init__({
            "a": In(signed(width_a)),
            "b": In(signed(width_b)),
            "o": Out(signed(width_a + width_b)),
        })  # fmt: skip

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(free(m, self.o.shape(), "any"))
        return m


class Claim(Elaboratable):
    """One requantiser against the definition, ``LATENCY`` cycles after any inputs."""

    def __init__(self, module, which):
        self.module, self.which = module, which

    def elaborate(self, platform):
        m = Module()
        pieces = [AbstractMultiplier(a, b) for a, b in ((18, 18), (18, 8), (8, 18), (8, 8))]
        ll, lh, hl, hh = pieces
        queue = iter(pieces)

        def next_piece(a, b):
            piece = next(queue)
            assert (len(piece.a), len(piece.b)) == (a, b)
            return piece

        self.module.Multiplier = next_piece
        m.submodules.dut = dut = self.module.Requantiser()

        def past(value, cycles):
            for _ in range(cycles):
                before = Signal.like(value)
                m.d.sync += before.eq(value)
                value = before
            return value

        total, bits = free(m, signed(32), "sum"), free(m, 32, "m")
        m.d.comb += [dut.sum.eq(total), dut.m.eq(bits)]

        # The layer's constants, all of one type.
        zp, lo, hi = (Signal(signed(9), name=n) for n in ("zp", "lo", "hi"))
        for value, port in ((zp, dut.zp), (lo, dut.lo), (hi, dut.hi)):
            m.d.sync += value.eq(value)
            m.d.comb += port.eq(value)
        signed_type = Signal()
        m.d.sync += signed_type.eq(signed_type)
        least, most = Mux(signed_type, -128, 0), Mux(signed_type, 127, 255)
        m.d.comb += Assume((lo <= hi) & (least <= lo) & (hi <= most) & (least <= zp) & (zp <= most))

        # Any product of two 24-bit numbers with leading ones, in pieces of 17 and 7 bits.
        product = Signal(48)
        m.d.comb += product.eq(ll.o + ((lh.o + hl.o) << 17) + (hh.o << 34))
        low, high = (1 << 17) - 1, (1 << 7) - 1
        for piece, bound in (
            (ll, low * low),
            (lh, low * high),
            (hl, low * high),
            (hh, high * high),
        ):
            m.d.comb += Assume((piece.o >= 0) & (piece.o <= bound))
        m.d.comb += Assume((product >= 1 << 46) & (product <= ((1 << 24) - 1) ** 2))
        m.d.comb += Assume(ll.o + ((lh.o + hl.o) << 17) + (hh.o << 34) < 1 << 48)

        def rounded_sum(value):
            """Float32 of an integer: (24-bit mantissa, exponent of its last bit plus 23)."""
            magnitude = Signal(32)
            m.d.comb += magnitude.eq(Mux(value < 0, -value, value))
            exponent = sum(magnitude >= 1 << k for k in range(1, 32))
            aligned = Signal(32)
            m.d.comb += aligned.eq(magnitude << (31 - exponent)[:5])
            mantissa = Signal(25)
            m.d.comb += mantissa.eq(nearest_even(aligned, C(8), 8))
            over = mantissa == 1 << 24
            return Mux(over, 1 << 23, mantissa), exponent + over

        if self.which == "factors":
            value = past(total, TO_MULTIPLIERS)
            q, _ = rounded_sum(value)
            mantissa = (1 << 23) + past(bits, TO_MULTIPLIERS)[:23]
            holds = C(1)
            for piece, (k, n) in zip(pieces, ((0, 0), (0, 1), (1, 0), (1, 1)), strict=True):
                holds &= piece.a == (q >> 17 if k else q & low)
                holds &= piece.b == (mantissa >> 17 if n else mantissa & low)
            m.d.comb += Assert((value == 0) | holds)

        if self.which == "result":
            value = past(total, dut.LATENCY)
            _, exponent = rounded_sum(value)
            p = past(product, dut.LATENCY - FROM_MULTIPLIERS)
            top = p >= 1 << 47
            r = Signal(25)  # the product as float32: 2^23 <= r <= 2^24
            m.d.comb += r.eq(Mux(top, nearest_even(p, C(24), 24), nearest_even(p, C(23), 23)))
            # |sum * m| = r / 2^down
            down = Signal(signed(11))
            m.d.comb += down.eq(150 - top - exponent - past(bits, dut.LATENCY)[23:31])
            whole = Signal(25)
            m.d.comb += whole.eq(nearest_even(r, Mux(down > 26, 26, down)[:5], 26))
            signed_whole = Signal(signed(27))
            m.d.comb += signed_whole.eq(
                Mux(down <= 0, Mux(value < 0, -(1 << 24), 1 << 24), Mux(value < 0, -whole, whole))
            )
            shifted = Mux(value == 0, 0, signed_whole) + zp
            y = Mux(shifted < lo, lo, Mux(shifted > hi, hi, shifted))
            m.d.comb += Assert(dut.y == y)
        return m


# Any contents of all registers, then any inputs: what is true after LATENCY cycles is always true.
FRONT = {"steps": TO_MULTIPLIERS + 1, "skip": TO_MULTIPLIERS, "any_state": True}
WHOLE = {
    "steps": requant.Requantiser.LATENCY + 1,
    "skip": requant.Requantiser.LATENCY,
    "any_state": True,
}  # fmt: skip


def claim(which, *faults):
    return Claim(copy_of("trivet.hdl.requant", *faults), which)


def test_factors_are_the_rounded_sum_and_the_mantissa():
    assert holds(claim("factors"), **FRONT)


@pytest.mark.parametrize(
    "fault",
    [
        ("up = value[7] & (value[:7].any() | value[8])", "up = value[7]"),  # ties upwards
        ("q = Cat(rounded[:23], C(1, 1))", "q = Cat(value[8:31], C(1, 1))"),  # truncates
    ],
)
def test_wrong_factors_are_found(fault):
    assert refuted(claim("factors", fault), **FRONT)


def test_result_is_rounded_twice_and_clamped():
    assert holds(claim("result"), **WHOLE)


@pytest.mark.parametrize(
    "fault",
    [
        ('[:32], "magnitude"', '[:31], "magnitude"'),  # -2^31
        ("sticky = product[:22].any() |", "sticky = product[1:22].any() |"),
        ('register(guard & (sticky | kept[0]), "up9")', 'register(guard, "up9")'),
        ("up = whole[0] & (sticky | whole[1])", "up = whole[0]"),
        ("(fraction - rounded[23])", "fraction"),
        ("fraction <= 38", "fraction <= 37"),
        ("fraction >= 49", "fraction >= 48"),
        ("(up ^ neg)", "up"),
        ("result < low", "result <= high"),
    ],
)
def test_wrong_roundings_are_found(fault):
    assert refuted(claim("result", fault), **WHOLE)
