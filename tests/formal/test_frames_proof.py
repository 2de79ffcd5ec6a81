"""Frames go through their buffers whole and in order, whatever the stalls (bounded).

The CRC is abstract: it answers anything. Proved is which bytes it is given and what is done with
its answer; that it is zlib's CRC-32 is tested in tests/hdl/test_crc.py.
"""

import pytest
from amaranth import *
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from formal.proof import chosen, constants, copy_of, free, holds, refuted

pytestmark = pytest.mark.synth

FRAMES = "trivet.hdl.link.frames"
PAYLOAD = 2  # bytes of the longest payload tried
HEADER, CRC = 8, 4
LONGEST = HEADER + PAYLOAD + CRC
# A buffer of two bytes, so that a block may be longer than the longest frame within the bound.
SMALL = ("PAYLOAD_BYTES = 1024", f"PAYLOAD_BYTES = {PAYLOAD}")


class AbstractCrc(wiring.Component):
    """Any checksum, any verdict."""

    valid: In(1)
    data: In(8)
    crc: Out(32)
    match_detected: Out(1)
    count: Out(5)  # bytes that it covers

    def elaborate(self, platform):
        m = Module()
        with m.If(self.valid):
            m.d.sync += self.count.eq(self.count + 1)
        m.d.comb += self.crc.eq(free(m, 32, "any_crc"))
        m.d.comb += self.match_detected.eq(free(m, 1, "any_match"))
        return m


def byte_counter(m, enable, clear, name):
    count = Signal(5, name=name)
    with m.If(clear):
        m.d.sync += count.eq(0)
    with m.Elif(enable):
        m.d.sync += count.eq(count + 1)
    return count


class Receives(Elaboratable):
    """One block of any bytes, whole or not, then one of the next block's."""

    def __init__(self, module):
        self.module = module

    def elaborate(self, platform):
        m = Module()
        crc = AbstractCrc()
        self.module.crc32 = lambda: crc
        m.submodules.dut = dut = self.module.FrameReceiver()
        b = constants(m, LONGEST + 1, "byte")
        (size,) = constants(m, 1, "size", range(LONGEST + 2))
        (error,) = constants(m, 1, "error", 1)
        m.d.comb += Assume(size <= LONGEST + 1)

        taken = Signal(range(LONGEST + 3))  # symbols, the end too
        whole = Signal()  # the CRC's verdict when the block ended
        m.d.comb += [
            dut.i.valid.eq(free(m, 1, "i_valid")),
            dut.i.payload.data.eq(chosen(b, taken)),
            dut.i.payload.end.eq(taken == size),
            dut.i.payload.error.eq(error),
            dut.payload.ready.eq(free(m, 1, "ready")),
        ]
        takes = dut.i.valid & dut.i.ready
        m.d.comb += Assert(~takes | (taken <= size))  # nothing of the next block meanwhile
        m.d.comb += Assert(crc.valid == (takes & (taken < size)))
        m.d.comb += Assert(~crc.valid | (crc.data == chosen(b, taken)))
        with m.If(takes):
            m.d.sync += taken.eq(taken + 1)
            m.d.sync += whole.eq(crc.match_detected & (crc.count == taken))
        judges = Signal()  # in the cycle after the end
        m.d.sync += judges.eq(takes & (taken == size))

        length = Cat(b[6], b[7])
        nak = Mux(
            ~whole | error | (size < HEADER + CRC),
            1,
            Mux(b[0] != 1, 2, Mux((size > LONGEST) | (size != length + HEADER + CRC), 3, 0)),
        )
        m.d.comb += Assert(dut.valid == ((taken == size + 1) & ~judges))
        with m.If(dut.valid):
            frame = dut.frame
            m.d.comb += Assert(frame.nak == nak)
            with m.If(frame.nak == 0):
                m.d.comb += Assert(
                    (frame.type == b[1])
                    & (frame.stream == b[2])
                    & (frame.seq == Cat(b[4], b[5]))
                    & (frame.length == length)
                )
        passes = dut.payload.valid & dut.payload.ready
        given = byte_counter(m, passes, C(0), "given")
        m.d.comb += Assert(~dut.payload.valid | dut.valid)
        with m.If(dut.payload.valid & (given < length) & (nak == 0)):
            m.d.comb += Assert(dut.payload.payload == chosen(b[HEADER:], given))
        return m


class Sends(Elaboratable):
    """One reply of any header; its payload and everything else may stall."""

    def __init__(self, module):
        self.module = module

    def elaborate(self, platform):
        m = Module()
        crc = AbstractCrc()
        self.module.crc32 = lambda: crc
        m.submodules.dut = dut = self.module.FrameTransmitter()
        (header,) = constants(m, 1, "header", 43)
        b = constants(m, PAYLOAD, "byte")
        m.d.comb += Value.cast(dut.header.payload).eq(header)
        reply = dut.header.payload
        m.d.comb += Assume(reply.length <= PAYLOAD)

        started = Signal()
        is_complete = Signal()  # all bytes had gone into the checksum when it was looked at
        m.d.comb += dut.header.valid.eq(free(m, 1, "start") & ~started)
        with m.If(dut.header.valid & dut.header.ready):
            m.d.sync += started.eq(1)
        given = byte_counter(m, dut.i.valid & dut.i.ready, C(0), "given")
        m.d.comb += [
            dut.i.valid.eq(free(m, 1, "i_valid")),
            dut.i.payload.eq(chosen(b, given)),
            dut.o.ready.eq(free(m, 1, "o_ready")),
        ]
        passes = dut.o.valid & dut.o.ready
        sent = byte_counter(m, passes, C(0), "sent")
        body = HEADER + reply.length
        m.d.comb += Assert((given <= reply.length) & (sent <= body + CRC))
        m.d.comb += Assert(~dut.o.valid | (started & (sent < body + CRC)))
        m.d.comb += Assert(dut.idle == (~started | (sent == body + CRC)))
        # The CRC is given each byte it covers a cycle after that was sent.
        passed = Signal()
        passed_byte = Signal(8)
        m.d.sync += [passed.eq(passes & (sent < body)), passed_byte.eq(dut.o.payload.data)]
        m.d.comb += Assert(crc.valid == passed)
        m.d.comb += Assert(~crc.valid | (crc.data == passed_byte))
        # The checksum is that of the cycle after the last byte it covers, at the earliest.
        checksum = Signal(32)
        with m.If(started & (sent == body) & ~dut.o.valid):
            m.d.sync += [checksum.eq(crc.crc), is_complete.eq(crc.count == body)]
        with m.If(dut.o.valid & (sent == body)):
            m.d.comb += Assert(is_complete)
        head = Cat(
            C(1, 8), reply.type, reply.stream, C(0, 8), reply.seq, reply.length, C(0, 5)
        )  # fmt: skip
        head_bytes = [head[8 * k : 8 * k + 8] for k in range(HEADER)]
        seal = [checksum[8 * k : 8 * k + 8] for k in range(CRC)]
        with m.If(dut.o.valid):
            want = Mux(
                sent < HEADER,
                chosen(head_bytes, sent),
                Mux(sent < body, chosen(b, sent - HEADER), chosen(seal, sent - body)),
            )
            m.d.comb += Assert(dut.o.payload.data == want)
            m.d.comb += Assert(dut.o.payload.last == (sent == body + CRC - 1))
        return m


# A block too long, its end, a cycle to judge it, and four for payload or stalls.
RECEIVE = LONGEST + 1 + 6
SEND = LONGEST + 6


def test_receiver_keeps_every_byte_and_judges_by_the_definition():
    assert holds(Receives(copy_of(FRAMES, SMALL)), steps=RECEIVE)


def test_transmitter_sends_header_payload_checksum():
    assert holds(Sends(copy_of(FRAMES, SMALL)), steps=SEND)


@pytest.mark.parametrize(
    ("claim", "steps", "fault"),
    [
        (Receives, RECEIVE, ("read.en.eq(~is_primed | self.payload.ready)", "read.en.eq(1)")),
        (Receives, RECEIVE, ("& ~self.i.payload.error\n", "\n")),
        (Receives, RECEIVE, ("crc.valid.eq(takes)", "crc.valid.eq(self.i.valid & self.i.ready)")),
        (Receives, RECEIVE, ("(count == too_many)", "0")),
        (Receives, RECEIVE, ("version != VERSION", "version == 0")),
        (Sends, SEND, ("has_byte.eq(self.i.valid & self.o.ready)", "has_byte.eq(self.o.ready)")),
        (Sends, SEND, ("self.i.ready.eq(self.o.ready)", "self.i.ready.eq(1)")),
        (Sends, SEND, ("self.o.payload.last.eq(left == 1)", "self.o.payload.last.eq(left == 2)")),
    ],
)
def test_faults_are_found(claim, steps, fault):
    assert refuted(claim(copy_of(FRAMES, SMALL, fault)), steps=steps)
