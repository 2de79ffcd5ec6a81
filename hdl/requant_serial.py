"""Exact float32 requantiser, a bit of the product a cycle: no DSP block, a few hundred LUTs."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .config import SERIAL_INTERVAL
from .latency import SERIAL_REQUANTISER

__all__ = ["SerialRequantiser"]

# Cycles after `start`: the sum is normalised, its bits go to the multiplication, the product is
# aligned, rounded, and handed to the tail while the next sum may arrive.
_NORMALISE = 10
_BITS = 25
_FIRST = _NORMALISE + 2
_ALIGN = _FIRST + _BITS + 1
_HAND_OVER = _ALIGN + 2
_SHIFTS = 10


class SerialRequantiser(wiring.Component):
    """``y = clamp(rint(f32(f32(sum) * m)) + zp, lo, hi)``, the bytes of :class:`.Requantiser`.

    Takes a sum every ``INTERVAL`` cycles or less often. Everything stays in two's complement: to
    round half to even is the same for both signs, and a negative power of two, which is shifted one
    place further than its magnitude would be, is exact.

    Members
    -------
    start : In(1)
        A sum is there. Not within ``INTERVAL`` cycles after the last.
    sum : In(signed(32))
        Accumulated sum, bias included; in the cycle of ``start``.
    m : In(32)
        Bits of the float32 multiplier, positive and finite; constant for ``INTERVAL - 1`` cycles
        from ``start`` on.
    zp, lo, hi : In(signed(9))
        As in :class:`.Requantiser`; constant while a sum is inside.
    y : Out(signed(9))
        Result, ``LATENCY`` cycles after ``start``; stays until the next.
    """

    LATENCY = SERIAL_REQUANTISER
    INTERVAL = SERIAL_INTERVAL

    def __init__(self):
        number = In(signed(9))
        super().__init__({
            "start": In(1), "sum": In(signed(32)), "m": In(32),
            "zp": number, "lo": number, "hi": number,
            "y": Out(signed(9)),
        })

    def elaborate(self, platform):
        m = Module()
        step = Signal(6)  # cycles since `start`; stays behind the last
        with m.If(self.start):
            m.d.sync += step.eq(1)
        with m.Elif(step != _HAND_OVER):
            m.d.sync += step.eq(step + 1)
        is_normalising = Signal()
        is_multiplying = Signal()  # a bit of the sum is chosen
        m.d.comb += [
            is_normalising.eq(step <= _NORMALISE),
            is_multiplying.eq((step >= _FIRST) & (step < _FIRST + _BITS)),
        ]
        ending = Signal()  # `step` arrives at its last value
        m.d.sync += ending.eq(step == _HAND_OVER - 1)

        # The sum, shifted left until bits 31 and 30 differ; then its bits 7 to 31, one by one.
        value = Signal(32, reset_less=True)
        # Bits of the product behind the integer point, less 15; see `_tail`.
        point = Signal(signed(9), reset_less=True)
        by_one = Signal()
        by_eight = Signal()
        m.d.comb += [
            by_one.eq(value[31] == value[30]),
            by_eight.eq((value[22:31] == 0) | value[22:31].all()),
        ]
        with m.If(self.start):
            m.d.sync += [value.eq(self.sum), point.eq(105 - self.m[23:31])]
        with m.Elif(is_normalising & by_one):
            m.d.sync += [
                value.eq(Mux(by_eight & by_one, value << 8, value << 1)),
                point.eq(point + Mux(by_eight & by_one, 8, 1)),
            ]
        with m.Elif(is_multiplying):
            m.d.sync += value.eq(value >> 1)

        # First rounding: the carry joins the bits as they pass. The last is the sign, of weight
        # -2^24; a carry that comes so far weighs +2^24.
        carry = Signal(reset_less=True)
        addend = Signal(24, reset_less=True)
        negate = Signal(reset_less=True)
        is_sign = step == _FIRST + _BITS - 1
        bit = Signal()
        m.d.comb += bit.eq(is_multiplying & (value[7] ^ carry))
        minus = is_sign & value[7]
        mantissa = Cat(self.m[:23], C(1, 1))
        m.d.sync += [
            negate.eq(bit & minus),
            addend.eq(Mux(bit, mantissa ^ minus.replicate(24), 0)),
        ]
        with m.If(step == _FIRST - 1):
            m.d.sync += carry.eq(value[6] & (value[:6].any() | value[7]))
        with m.Elif(is_multiplying):
            m.d.sync += carry.eq(carry & value[7])

        # product / 2^23 with its guard and sticky bits; each cycle it is shifted and added to.
        product = Signal(signed(27), reset_less=True)
        guard = Signal(reset_less=True)
        sticky = Signal(reset_less=True)
        is_wide = Signal()  # 2^47 or more: a bit more to drop
        round_up = Signal()
        is_aligning = step == _ALIGN
        is_rounding = step == _ALIGN + 1
        m.d.comb += [
            is_wide.eq(product[25] ^ product[24]),
            round_up.eq(is_rounding & guard & (sticky | product[0])),
        ]
        high = Cat(addend, negate.replicate(2)).as_signed()  # at bit 1
        shifted = Signal(signed(27))
        carried = Mux(is_rounding, round_up & product[0], negate)
        # Rounding adds at bit 0 after the shift, a negated addend at bit 1.
        low = Mux(is_rounding, 0, C(1, 1))
        m.d.comb += shifted.eq(
            ((product >> 1) + Cat(low & carried, high).as_signed() + carried)[:27].as_signed())
        with m.If(step < _FIRST):
            m.d.sync += [product.eq(0), guard.eq(0), sticky.eq(0)]
        with m.Elif((step < _ALIGN) | (is_aligning & is_wide) | is_rounding):
            m.d.sync += [
                product.eq(shifted),
                guard.eq(product[0] ^ round_up),
                sticky.eq((sticky | guard) & ~is_rounding),
            ]

        distance = point - (is_aligning & is_wide)
        with m.If(is_aligning):
            m.d.sync += point.eq(distance)
        self._tail(m, ending & (step == _HAND_OVER), product, guard, point)
        return m

    def _tail(self, m, take, product, guard, point):
        """``product`` is now the float32 product's 24 bits but for the last, ``guard``."""
        whole = Signal(signed(11), reset_less=True)
        half = Signal(reset_less=True)
        rest = Signal(reset_less=True)
        left = Signal(signed(9), reset_less=True)
        saturates = Signal(reset_less=True)
        is_negative = Signal(reset_less=True)
        turn = Signal(range(_SHIFTS + 3))
        is_shifting = (left > 0) & (turn != 0) & (turn <= _SHIFTS)
        with m.If(take):
            m.d.sync += [
                turn.eq(1),
                whole.eq(product[14:]),
                half.eq(product[13]),
                rest.eq(product[:13].any() | guard),
                left.eq(point),
                # Nothing but zero has equal bits there.
                saturates.eq((point <= 0) & (product[26] | product[22:24].any())),
                is_negative.eq(product[26]),
            ]
        with m.Else():
            with m.If(turn != 0):
                m.d.sync += turn.eq(Mux(turn == _SHIFTS + 2, 0, turn + 1))
            with m.If(is_shifting):
                m.d.sync += [
                    whole.eq(whole >> 1), half.eq(whole[0]), rest.eq(rest | half),
                    left.eq(left - 1),
                ]
        result = Signal(signed(11), reset_less=True)
        y = Signal(signed(9), reset_less=True)
        m.d.sync += result.eq(whole + self.zp + (half & (rest | whole[0])))
        with m.If(turn == _SHIFTS + 2):
            m.d.sync += y.eq(Mux(
                (result < self.lo) & ~saturates | (saturates & is_negative), self.lo,
                Mux((result > self.hi) | saturates, self.hi, result)))
        m.d.comb += self.y.eq(y)
