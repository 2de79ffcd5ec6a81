"""COBS streams lose, repeat and invent nothing, whatever the stalls (bounded)."""

import pytest
from amaranth import *
from amaranth.hdl import Assert, Assume
from formal.proof import chosen, constants, copy_of, free, holds, refuted

pytestmark = pytest.mark.synth


class Decodes(Elaboratable):
    """The decoder's symbols are those that the code's definition gives for its bytes.

    Definition, by positions: byte n is a code byte if it starts a block or follows the code byte c
    of its block at a distance of its value; a group that is not full stands for a zero after it
    unless the block ends there.
    """

    def __init__(self, module, count):
        self.module, self.count = module, count

    def elaborate(self, platform):
        m = Module()
        m.submodules.dut = dut = self.module.CobsDecoder()
        b = constants(m, self.count, "byte")
        full = self.module.GROUP + 1

        is_code, symbols = [], []  # symbols: (exists, data, end, error) of each byte
        for n in range(self.count):
            starts = C(1) if n == 0 else b[n - 1] == 0
            reached, after_short = C(0), C(0)
            for c in range(n):
                whole = Cat(b[k] != 0 for k in range(c, n)).all()
                hit = is_code[c] & whole & (b[c] == n - c)
                reached |= hit
                after_short |= hit & (b[c] != full)
            code = Signal(name=f"is_code{n}")
            m.d.comb += code.eq(starts | reached)
            is_code.append(code)
            end = b[n] == 0
            exists = Mux(end, ~starts, Mux(code, after_short, 1))
            symbols.append((exists, Mux(code, 0, b[n]), end, end & ~code))

        taken = Signal(range(self.count + 1))
        given = Signal(range(self.count + 1))
        m.d.comb += [
            dut.i.valid.eq(free(m, 1, "i_valid") & (taken != self.count)),
            dut.i.payload.eq(chosen(b, taken)),
            dut.o.ready.eq(free(m, 1, "o_ready")),
        ]
        # Blocks of a decoder know no longer groups than the code has.
        for byte in b:
            m.d.comb += Assume(byte <= full)
        with m.If(dut.i.valid & dut.i.ready):
            m.d.sync += taken.eq(taken + 1)
        with m.If(dut.o.valid & dut.o.ready):
            m.d.sync += given.eq(given + 1)

        before = C(0, range(self.count + 1))  # symbols of the bytes up to n
        for n, (exists, data, end, error) in enumerate(symbols):
            mine = exists & dut.o.valid & (given == before)
            m.d.comb += Assert(~mine | (dut.o.payload.end == end))
            m.d.comb += Assert(
                ~mine | Mux(end, dut.o.payload.error == error, dut.o.payload.data == data)
            )
            # Not before its byte was taken.
            m.d.comb += Assert(~mine | (taken > n))
            count = Signal(range(self.count + 2), name=f"symbols{n}")
            m.d.comb += count.eq(before + exists)
            m.d.comb += Assert(~(taken == n + 1) | (given + dut.o.valid == count))
            before = count
        m.d.comb += Assert(given + dut.o.valid <= before)
        return m


class RoundTrip(Elaboratable):
    """What goes into an encoder comes out of a decoder behind it, block by block."""

    def __init__(self, module, count):
        self.module, self.count = module, count

    def elaborate(self, platform):
        m = Module()
        m.submodules.encoder = encoder = self.module.CobsEncoder()
        m.submodules.decoder = decoder = self.module.CobsDecoder()
        b = constants(m, self.count, "byte", 9)  # data and last
        taken = Signal(range(self.count + 1))
        given = Signal(range(self.count + 1))
        ended = Signal()  # the end of the block of the byte before has been told
        link = free(m, 1, "link_open")
        now = chosen(b, taken)
        m.d.comb += [
            encoder.i.valid.eq(free(m, 1, "i_valid") & (taken != self.count)),
            encoder.i.payload.data.eq(now[:8]),
            encoder.i.payload.last.eq(now[8]),
            decoder.i.valid.eq(encoder.o.valid & link),
            decoder.i.payload.eq(encoder.o.payload),
            encoder.o.ready.eq(decoder.i.ready & link),
            decoder.o.ready.eq(free(m, 1, "o_ready")),
        ]
        with m.If(encoder.i.valid & encoder.i.ready):
            m.d.sync += taken.eq(taken + 1)
        symbol = decoder.o.payload
        previous_last = (given != 0) & chosen(b, given - 1)[8]
        must_end = previous_last & ~ended
        with m.If(decoder.o.valid):
            m.d.comb += Assert(symbol.end == must_end)
            with m.If(symbol.end):
                m.d.comb += Assert(~symbol.error)
            with m.Else():
                m.d.comb += Assert((symbol.data == chosen(b, given)[:8]) & (given < taken))
        with m.If(decoder.o.valid & decoder.o.ready):
            m.d.sync += ended.eq(symbol.end)
            with m.If(~symbol.end):
                m.d.sync += given.eq(given + 1)
        # Nothing lost: an encoder that is idle with an empty line has given all whole blocks.
        line_empty = encoder.idle & ~decoder.o.valid & (taken != 0) & chosen(b, taken - 1)[8]
        m.d.comb += Assert(~line_empty | ((given == taken) & ended))
        return m


class Held(Elaboratable):
    """A symbol or byte on offer stays as it is until it is taken; by induction, for all time."""

    def __init__(self, module, name):
        self.module, self.name = module, name

    def elaborate(self, platform):
        m = Module()
        m.submodules.dut = dut = getattr(self.module, self.name)()
        m.d.comb += [
            dut.i.valid.eq(free(m, 1, "i_valid")),
            Value.cast(dut.i.payload).eq(free(m, len(Value.cast(dut.i.payload)), "i_payload")),
            dut.o.ready.eq(free(m, 1, "o_ready")),
        ]
        waiting = Signal()
        payload = Signal.like(Value.cast(dut.o.payload))
        m.d.sync += [waiting.eq(dut.o.valid & ~dut.o.ready), payload.eq(dut.o.payload)]
        m.d.comb += Assert(~waiting | (dut.o.valid & (Value.cast(dut.o.payload) == payload)))
        return m


COBS = "trivet.hdl.link.cobs"
# Groups of at most three bytes, so that full ones come within the bound.
SHORT = (("GROUP = 254", "GROUP = 3"), ("depth=256", "depth=4"))


def module(*faults, short=False):
    return copy_of(COBS, *(SHORT if short else ()), *faults)


@pytest.mark.parametrize("short", [False, True])
def test_decoder_follows_the_definition(short):
    assert holds(Decodes(module(short=short), 6), steps=11)


@pytest.mark.parametrize(("count", "steps"), [(2, 13), pytest.param(4, 20, marks=pytest.mark.slow)])
def test_round_trip_keeps_every_byte(count, steps):
    assert holds(RoundTrip(module(short=True), count), steps=steps)


@pytest.mark.parametrize("name", ["CobsDecoder", "CobsEncoder"])
def test_offers_are_held(name):
    assert holds(Held(module(short=True), name), steps=2, induction=True)


@pytest.mark.parametrize(
    ("claim", "count", "fault"),
    [
        (Decodes, 6, ("self.i.ready.eq(~self.o.valid | self.o.ready)", "self.i.ready.eq(1)")),
        (Decodes, 6, ("self.o.valid.eq(started)", "self.o.valid.eq(1)")),
        (Decodes, 6, ("self.o.payload.error.eq(left != 0)", "self.o.payload.error.eq(0)")),
        (Decodes, 6, ("zero.eq(self.i.payload != GROUP + 1)", "zero.eq(1)")),
        (RoundTrip, 4, ("m.d.sync += count.eq(count + 1)", "m.d.sync += count.eq(count + 2)")),
        (RoundTrip, 4, ("with m.If(pointer == count):", "with m.If(pointer + 1 == count):")),
        (RoundTrip, 4, ("| (count == GROUP - 1)", "| (count == GROUP)")),
        (RoundTrip, 4, ("self.o.payload.eq(is_zero)", "self.o.payload.eq(0)")),
    ],
)
def test_faults_are_found(claim, count, fault):
    assert refuted(claim(module(fault, short=True), count), steps=18)
