"""Frames of the host link: receive into a buffer that is judged before it is used, and send.

u8 version | u8 type | u8 stream | u8 flags | u16 seq | u16 length | payload | u32 CRC-32 of all
before; little-endian. One frame is one COBS block.
"""

import enum

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .cobs import Last, Symbol
from .crc import crc32

__all__ = [
    "HEADER_BYTES",
    "PAYLOAD_BYTES",
    "VERSION",
    "Frame",
    "FrameReceiver",
    "FrameTransmitter",
    "Nak",
    "Reply",
    "Type",
]

VERSION = 1
HEADER_BYTES = 8
CRC_BYTES = 4
PAYLOAD_BYTES = 1024


class Type(enum.IntEnum):
    HELLO = 1
    ACK = 2
    NAK = 3
    CREDIT = 4
    LOAD = 5
    RUN = 6
    DATA = 7
    DONE = 8
    COUNTERS = 9
    PEEK = 10
    RESET = 11
    ERROR = 12


class Nak(enum.IntEnum):
    """Why a request was not done. 0 is no reason."""

    CRC = 1
    TYPE = 2
    LENGTH = 3
    BUSY = 4
    RANGE = 5
    OWNER = 6  # of another epoch than the board's; RESET: another's lease lasts
    OLD = 7  # of a number that was passed


# Header of a received frame; ``nak`` is the reason to refuse it, or 0.
Frame = data.StructLayout({
    "type": 8, "stream": 8, "flags": 8, "seq": 16, "length": 16, "nak": 3,
})

# Header of a frame to send; its payload bytes follow on their own stream.
Reply = data.StructLayout({"type": 8, "stream": 8, "seq": 16, "length": 11})


class FrameReceiver(wiring.Component):
    """Holds one frame at a time; takes the next one only after :attr:`release`.

    A block that is no whole frame is offered too, with the reason in ``frame.nak``, so that every
    block is answered: CRC for damaged ones (``seq`` and ``stream`` as far as they arrived), then
    TYPE for another version, LENGTH when the length field and the bytes disagree.

    Members
    -------
    i : :py:`In(stream.Signature(Symbol))`
        Decoded bytes.
    frame : :py:`Out(Frame)`, valid : :py:`Out(1)`
        The frame held.
    payload : :py:`Out(stream.Signature(8))`
        Its payload from the start; the user counts ``frame.length`` bytes.
    release : :py:`In(1)`
        Pulse: forget the frame.
    idle : :py:`Out(1)`
        No byte of a frame has arrived.
    """

    i: In(stream.Signature(Symbol))
    frame: Out(Frame)
    valid: Out(1)
    payload: Out(stream.Signature(8))
    release: In(1)
    idle: Out(1)

    def elaborate(self, platform):
        m = Module()

        crc = crc32()
        starts_anew = Signal()
        # Reset, not `start`, which would lengthen the way of every bit.
        m.submodules.crc = ResetInserter(starts_anew)(crc)
        m.submodules.buffer = buffer = memory.Memory(shape=8, depth=PAYLOAD_BYTES, init=[])
        write = buffer.write_port()
        read = buffer.read_port(transparent_for=())

        # One more than the longest frame has, where the count stays.
        too_many = HEADER_BYTES + PAYLOAD_BYTES + CRC_BYTES + 1
        count = Signal(range(too_many + 1))
        header = Signal(HEADER_BYTES * 8)
        version = header[0:8]
        position = Signal(range(PAYLOAD_BYTES))
        is_primed = Signal()  # the read port shows a payload byte
        receives = Signal(init=1)
        takes = Signal()  # a byte
        is_whole = Signal(reset_less=True)
        is_misfit = Signal(reset_less=True)  # not as long as it says
        nak = Signal(3)

        m.d.comb += [
            self.frame.type.eq(header[8:16]),
            self.frame.stream.eq(header[16:24]),
            self.frame.flags.eq(header[24:32]),
            self.frame.seq.eq(header[32:48]),
            self.frame.length.eq(header[48:64]),
            self.frame.nak.eq(nak),
            write.addr.eq(count - HEADER_BYTES),
            write.data.eq(self.i.payload.data),
            write.en.eq(
                takes & (count >= HEADER_BYTES) & (count < HEADER_BYTES + PAYLOAD_BYTES)
            ),
            self.i.ready.eq(receives),
            takes.eq(self.i.valid & receives & ~self.i.payload.end),
            crc.data.eq(self.i.payload.data),
            crc.valid.eq(takes),
            read.addr.eq(position),
            self.payload.payload.eq(read.data),
        ]
        m.d.sync += [
            starts_anew.eq(0),
            # Looked at when the block's end comes, told in the cycle after.
            is_whole.eq(
                crc.match_detected & (count >= HEADER_BYTES + CRC_BYTES) & ~self.i.payload.error
            ),
            is_misfit.eq(
                (count == too_many) | (count != self.frame.length + (HEADER_BYTES + CRC_BYTES))
            ),
        ]
        with m.If(starts_anew):
            m.d.sync += [count.eq(0), header.eq(0), receives.eq(1)]
        with m.Elif(takes):
            with m.If(count != too_many):
                m.d.sync += count.eq(count + 1)
            with m.Switch(count):
                for index in range(HEADER_BYTES):
                    with m.Case(index):
                        m.d.sync += header[8 * index : 8 * index + 8].eq(
                            self.i.payload.data
                        )

        with m.FSM():
            with m.State("RECEIVE"):
                m.d.comb += self.idle.eq(((count == 0) | starts_anew) & ~self.i.valid)
                m.d.sync += [
                    position.eq(0),
                    is_primed.eq(0),
                ]
                with m.If(self.i.valid & receives & self.i.payload.end):
                    m.d.sync += receives.eq(0)
                    m.next = "JUDGE"
            with m.State("JUDGE"):
                with m.If(~is_whole):
                    m.d.sync += nak.eq(Nak.CRC)
                with m.Elif(version != VERSION):
                    m.d.sync += nak.eq(Nak.TYPE)
                with m.Elif(is_misfit):
                    m.d.sync += nak.eq(Nak.LENGTH)
                with m.Else():
                    m.d.sync += nak.eq(0)
                m.d.sync += self.valid.eq(1)
                m.next = "HOLD"
            with m.State("HOLD"):
                m.d.comb += [
                    self.payload.valid.eq(is_primed),
                    read.en.eq(~is_primed | self.payload.ready),
                ]
                m.d.sync += is_primed.eq(1)
                with m.If(read.en):
                    m.d.sync += position.eq(position + 1)
                with m.If(self.release):
                    m.d.sync += [self.valid.eq(0), starts_anew.eq(1)]
                    m.next = "RECEIVE"

        return m


class FrameTransmitter(wiring.Component):
    """Sends a frame: header, payload, checksum.

    Members
    -------
    header : :py:`In(stream.Signature(Reply))`
        Taken when the frame starts.
    i : :py:`In(stream.Signature(8))`
        ``header.length`` payload bytes.
    o : :py:`Out(stream.Signature(Last))`
        Bytes of one block.
    idle : :py:`Out(1)`
        Between frames.
    """

    header: In(stream.Signature(Reply))
    i: In(stream.Signature(8))
    o: Out(stream.Signature(Last))
    idle: Out(1)

    def elaborate(self, platform):
        m = Module()

        crc = crc32()
        is_idle = Signal(init=1)
        m.submodules.crc = ResetInserter(is_idle)(crc)

        head = Signal(HEADER_BYTES * 8)
        left = Signal(11)  # bytes left of the part being sent
        length = Signal(11)

        # The byte given in the cycle before, as far as the checksum is about it.
        byte = Signal(8, reset_less=True)
        has_byte = Signal()
        m.d.comb += [
            crc.data.eq(byte),
            crc.valid.eq(has_byte),
            self.idle.eq(is_idle),
            self.header.ready.eq(is_idle),
        ]
        m.d.sync += [byte.eq(self.o.payload.data), has_byte.eq(0)]

        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [
                    head.eq(
                        Cat(
                            C(VERSION, 8),
                            self.header.payload.type,
                            self.header.payload.stream,
                            C(0, 8),
                            self.header.payload.seq,
                            self.header.payload.length,
                            C(0, 5),
                        )
                    ),
                    length.eq(self.header.payload.length),
                    left.eq(HEADER_BYTES),
                ]
                with m.If(self.header.valid):
                    m.d.sync += is_idle.eq(0)
                    m.next = "HEADER"
            with m.State("HEADER"):
                m.d.comb += [
                    self.o.payload.data.eq(head[:8]),
                    self.o.valid.eq(1),
                ]
                m.d.sync += has_byte.eq(self.o.ready)
                with m.If(self.o.ready):
                    m.d.sync += [
                        head.eq(head >> 8),
                        left.eq(left - 1),
                    ]
                    with m.If(left == 1):
                        m.d.sync += left.eq(length)
                        with m.If(length != 0):
                            m.next = "PAYLOAD"
                        with m.Else():
                            m.next = "DIGEST"
            with m.State("PAYLOAD"):
                m.d.comb += [
                    self.o.payload.data.eq(self.i.payload),
                    self.o.valid.eq(self.i.valid),
                    self.i.ready.eq(self.o.ready),
                ]
                m.d.sync += has_byte.eq(self.i.valid & self.o.ready)
                with m.If(self.i.valid & self.o.ready):
                    m.d.sync += left.eq(left - 1)
                    with m.If(left == 1):
                        m.next = "DIGEST"
            with m.State("DIGEST"):
                m.next = "SEAL"
            with m.State("SEAL"):
                m.d.sync += [
                    head.eq(crc.crc),
                    left.eq(CRC_BYTES),
                ]
                m.next = "CHECKSUM"
            with m.State("CHECKSUM"):
                m.d.comb += [
                    self.o.payload.data.eq(head[:8]),
                    self.o.payload.last.eq(left == 1),
                    self.o.valid.eq(1),
                ]
                with m.If(self.o.ready):
                    m.d.sync += [
                        head.eq(head >> 8),
                        left.eq(left - 1),
                    ]
                    with m.If(left == 1):
                        m.d.sync += is_idle.eq(1)
                        m.next = "IDLE"

        return m
