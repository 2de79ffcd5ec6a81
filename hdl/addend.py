"""Residual add of two quantised bytes by a pair of tables: no multiplier, no rounding left."""

from amaranth import *
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from .latency import ADDEND

__all__ = ["Addend"]


class Addend(wiring.Component):
    """``o = clamp(((Ta[a] + Tb[b]) >> 16) + zp, lo, hi)``, one a cycle.

    The compiler solves the tables so that every pair (a, b) equals float32 dequantise - add -
    quantise. ``zp``, ``lo``, ``hi`` and ``index`` must not change while a beat is inside.

    Parameters
    ----------
    addends : :class:`int`
        Pairs of tables, a power of two.
    compact : bool
        Register the bytes in front of the tables, not what these hold: fewer flip-flops.

    Members
    -------
    index : :py:`In(8)`
        Pair of tables to read.
    a, b : :py:`In(8)`
        Bytes (bit patterns) that index Ta and Tb.
    zp, lo, hi : :py:`In(signed(9))`
        Zero point and bounds of the result; lo <= hi.
    o : :py:`Out(signed(9))`
        Result, ``LATENCY`` = 5 cycles later.
    write_en : :py:`In(1)`
        Write a byte (in the cycle after); the tables must not be in use.
    write_addr : :py:`In(16)`
        Entry: pair * 256 + byte value.
    write_byte : :py:`In(3)`
        0..3 bytes of Ta, 4..7 bytes of Tb, both little-endian int32.
    write_data : :py:`In(8)`
        Byte to write.
    """

    LATENCY = ADDEND

    def __init__(self, addends, compact=False):
        self.addends = addends
        self.compact = compact
        super().__init__({
            "index": In(8), "a": In(8), "b": In(8),
            "zp": In(signed(9)), "lo": In(signed(9)), "hi": In(signed(9)),
            "o": Out(signed(9)),
            "write_en": In(1), "write_addr": In(16), "write_byte": In(3), "write_data": In(8),
        })

    def elaborate(self, platform):
        m = Module()

        # The write port from registers: its enables lie among the block RAM's address bits.
        enables = Mux(self.write_en, C(1, 8) << self.write_byte, 0)[:8]
        coming = Cat(enables, self.write_data, self.write_addr)
        if not self.compact:
            held = Signal.like(coming, name="write_port", reset_less=True)
            m.d.sync += held.eq(coming)
            coming = held
        write_en, write_data, write_addr = coming[:8], coming[8:16], coming[16:]

        # 1-2  both tables, and the memories' output registers
        entries = []
        for half, (name, byte) in enumerate((("a", self.a), ("b", self.b))):
            m.submodules[f"table_{name}"] = table = memory.Memory(
                shape=32, depth=256 * self.addends, init=[])
            read = table.read_port()
            write = table.write_port(granularity=8)
            entry = Signal(signed(32), name=f"entry_{name}", reset_less=True)
            if self.compact:
                held = Signal(8, name=f"held_{name}", reset_less=True)
                m.d.sync += held.eq(byte)
                byte = held
                m.d.comb += entry.eq(read.data)
            else:
                m.d.sync += entry.eq(read.data)
            m.d.comb += [
                read.addr.eq(Cat(byte, self.index)),
                write.addr.eq(write_addr),
                write.data.eq(write_data.replicate(4)),
                write.en.eq(write_en.word_select(half, 4)),
            ]
            entries.append(entry)

        # 3  sum; the shift by 16 is wiring
        total = Signal(signed(17), reset_less=True)
        m.d.sync += total.eq((entries[0] + entries[1]) >> 16)

        # 4  zero point and bounds side by side: those relative to zp are constants of the layer
        low = Signal(signed(10), reset_less=True)
        high = Signal(signed(10), reset_less=True)
        is_low = Signal(reset_less=True)
        is_high = Signal(reset_less=True)
        shifted = Signal(signed(9), reset_less=True)
        m.d.sync += [
            low.eq(self.lo - self.zp),
            high.eq(self.hi - self.zp),
            is_low.eq(total < low),
            is_high.eq(total > high),
            shifted.eq(total + self.zp),
        ]

        # 5  clamp
        out = Signal(signed(9), reset_less=True)
        m.d.sync += out.eq(Mux(is_low, self.lo, Mux(is_high, self.hi, shifted)))
        m.d.comb += self.o.eq(out)
        return m
