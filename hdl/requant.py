"""Exact float32 requantiser as an integer pipeline."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .latency import REQUANTISER
from .multiplier import Multiplier

__all__ = ["Requantiser"]


class Requantiser(wiring.Component):
    """``y = clamp(rint(f32(f32(sum) * m)) + zp, lo, hi)``, bit for bit as float32 hardware does it.

    All three roundings (sum to float32, product to float32, product to integer) are half to even.
    Takes one sum a cycle, never stalls; ``zp``, ``lo``, ``hi`` belong to the layer and must not
    change while a sum is inside. Right for every ``m`` that is positive and finite: exponents
    beyond the useful range saturate or give 0 by themselves, subnormals too.

    Uses three DSP multipliers and a 7 x 7 product that would fit LUTs; yosys gives it a fourth
    (ECP5: 4 MULT18X18D, 357 LUT4, 125 CCU2C, 618 flip-flops, before placing).

    Members
    -------
    sum : :py:`In(signed(32))`
        Accumulated sum, bias included.
    m : :py:`In(32)`
        Bits of the float32 multiplier of this sum's channel.
    zp : :py:`In(signed(9))`
        Zero point of the result, -128..255.
    lo, hi : :py:`In(signed(9))`
        Bounds of the result, lo <= hi, within -128..127 or 0..255: the type's, or a fused Relu's.
    y : :py:`Out(signed(9))`
        Result, ``LATENCY`` = 13 cycles later; its low 8 bits are the byte.
    """

    LATENCY = REQUANTISER

    def __init__(self):
        number = In(signed(9))
        super().__init__({
            "sum": In(signed(32)), "m": In(32),
            "zp": number, "lo": number, "hi": number,
            "y": Out(signed(9)),
        })

    def elaborate(self, platform):
        m = Module()

        def register(value, name):
            stage = Signal.like(Value.cast(value), name=name, reset_less=True)
            m.d.sync += stage.eq(value)
            return stage

        # 1  sign and magnitude; -2^31 has magnitude 2^31, hence 32 bits unsigned
        sign = self.sum[31]
        magnitude = register(((self.sum ^ sign.replicate(32)) + sign)[:32], "magnitude")
        neg = register(sign, "neg1")
        bits = register(self.m, "bits1")

        # 2-3  normalise: shift left until bit 31 is set, counting the zeros
        def normalise(value, step):
            empty = ~value[32 - step:].any()
            return Mux(empty, Cat(C(0, step), value[:32 - step]), value), empty

        value, zeros16 = normalise(magnitude, 16)
        value, zeros8 = normalise(value, 8)
        value = register(value, "shifted2")
        zeros = register(Cat(zeros8, zeros16), "zeros2")
        neg, bits = register(neg, "neg2"), register(bits, "bits2")

        value, zeros4 = normalise(value, 4)
        value, zeros2 = normalise(value, 2)
        value, zeros1 = normalise(value, 1)
        value = register(value, "shifted3")
        zeros = register(Cat(zeros1, zeros2, zeros4, zeros), "zeros3")
        neg, bits = register(neg, "neg3"), register(bits, "bits3")

        # 4  int32 -> float32: round half even to 24 bits. Bit 23 of the result is 1 in any case (a
        #    carry leaves 2^24, which renormalises to 2^23), so only 23 bits and the carry matter.
        #    A sum of 0 passes as garbage under the flag `zero`.
        up = value[7] & (value[:7].any() | value[8])
        rounded = register(value[8:31] + up, "rounded4")
        zero = register(~value[31], "zero4")
        # Fraction bits of the 48-bit product: (174 - exponent) - bit length of the magnitude.
        fraction = register(142 - bits[23:31] + zeros, "fraction4")
        neg, bits = register(neg, "neg4"), register(bits[:23], "bits4")

        # 5  into the multipliers
        q = Cat(rounded[:23], C(1, 1))
        mantissa = Cat(bits, C(1, 1))
        fraction = register((fraction - rounded[23])[:len(fraction)].as_signed(), "fraction5")
        zero, neg = register(zero, "zero5"), register(neg, "neg5")

        # 6  24 x 24 = (17 + 7) x (17 + 7) bits in four pieces
        products = {}
        for a, piece_a in (("l", q[:17]), ("h", q[17:])):
            for b, piece_b in (("l", mantissa[:17]), ("h", mantissa[17:])):
                part = Multiplier(len(piece_a) + 1, len(piece_b) + 1)
                m.submodules[f"multiply_{a}{b}"] = part
                m.d.comb += [part.a.eq(piece_a), part.b.eq(piece_b)]
                products[a + b] = part.o[:len(piece_a) + len(piece_b)]
        fraction = register(fraction, "fraction6")
        zero, neg = register(zero, "zero6"), register(neg, "neg6")

        # 7  inner pieces summed; the outer ones lie side by side (34 + 14 bits)
        inner = register(products["lh"] + products["hl"], "inner7")
        outer = register(Cat(products["ll"], products["hh"]), "outer7")
        saturates = register(fraction <= 38, "saturates7")  # product >= 2^8, whatever zp is
        vanishes = register(zero | (fraction >= 49), "vanishes7")  # product <= 1/2, tie included
        # Distance of the integer point, 1..10 where neither flag is set: 4 bits are enough.
        distance = register((fraction - 38)[:4], "distance7")
        neg = register(neg, "neg7")

        # 8  the product, 2^46 <= p < 2^48
        product = register(Cat(outer[:17], (outer[17:] + inner)[:31]), "product8")
        saturates, vanishes = register(saturates, "saturates8"), register(vanishes, "vanishes8")
        distance, neg = register(distance, "distance8"), register(neg, "neg8")

        # 9  float32 product: 24 bits below the leading one, and whether to round up
        top = product[47]
        kept = Mux(top, product[24:], product[23:47])
        guard = Mux(top, product[23], product[22])
        sticky = product[:22].any() | (top & product[22])
        up = register(guard & (sticky | kept[0]), "up9")
        kept = register(kept, "kept9")
        distance = register((distance - top)[:4], "distance9")  # right shift by 15 + distance
        saturates, vanishes = register(saturates, "saturates9"), register(vanishes, "vanishes9")
        neg = register(neg, "neg9")

        # 10  round; 2^24 is a legal result, not renormalised since it is only shifted from here
        kept = register(kept + up, "kept10")
        saturates, vanishes = register(saturates, "saturates10"), register(vanishes, "vanishes10")
        distance, neg = register(distance, "distance10"), register(neg, "neg10")

        # 11  shift to the integer point; bit 0 is the guard, what falls off is sticky
        whole = kept[14:]
        sticky = kept[:14].any()
        for k in reversed(range(4)):
            step = 1 << k
            sticky = sticky | (distance[k] & whole[:step].any())
            whole = Mux(distance[k], whole[step:], whole)
        up = whole[0] & (sticky | whole[1])
        forced = saturates | vanishes
        whole = register(Mux(forced, Cat(C(0, 8), saturates & ~vanishes), whole[1:]), "whole11")
        up = register(up & ~forced, "up11")
        neg = register(neg, "neg11")

        # 12  round and sign in one addition: -(v + up) = ~v + !up
        signed_whole = (Cat(whole, C(0, 1)) ^ neg.replicate(len(whole) + 1)) + (up ^ neg)
        result = register(signed_whole[:len(whole) + 1].as_signed(), "result12")

        # 13  zero point and clamp side by side: bounds relative to zp are constants of the layer
        low = register(self.lo - self.zp, "low")
        high = register(self.hi - self.zp, "high")
        out = Signal(signed(9), reset_less=True)
        m.d.sync += out.eq(
            Mux(result < low, self.lo, Mux(result > high, self.hi, result + self.zp)))
        m.d.comb += self.y.eq(out)
        return m
