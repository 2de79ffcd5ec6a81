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


# Header of a received frame; ``nak`` is the reason to refuse it, or 0.
Frame = data.StructLayout({"type": 8, "stream": 8, "seq": 16, "length": 16, "nak": 3})

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

        m.submodules.crc = crc = crc32()
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
        is_whole = Signal()
        nak = Signal(3)

        m.d.comb += [
            self.frame.type.eq(header[8:16]),
            self.frame.stream.eq(header[16:24]),
            self.frame.seq.eq(header[32:48]),
            self.frame.length.eq(header[48:64]),
            self.frame.nak.eq(nak),
            write.addr.eq(count - HEADER_BYTES),
            write.data.eq(self.i.payload.data),
            crc.data.eq(self.i.payload.data),
            read.addr.eq(position),
            self.payload.payload.eq(read.data),
            is_whole.eq(
                crc.match_detected & (count >= HEADER_BYTES + CRC_BYTES) & ~self.i.payload.error
            ),
        ]

        with m.FSM():
            with m.State("RECEIVE"):
                m.d.comb += [
                    self.i.ready.eq(1),
                    self.idle.eq((count == 0) & ~self.i.valid),
                ]
                m.d.sync += [
                    position.eq(0),
                    is_primed.eq(0),
                ]
                with m.If(self.i.valid & ~self.i.payload.end):
                    m.d.comb += [
                        crc.valid.eq(1),
                        write.en.eq(
                            (count >= HEADER_BYTES) & (count < HEADER_BYTES + PAYLOAD_BYTES)
                        ),
                    ]
                    with m.If(count != too_many):
                        m.d.sync += count.eq(count + 1)
                    with m.Switch(count):
                        for index in range(HEADER_BYTES):
                            with m.Case(index):
                                m.d.sync += header[8 * index : 8 * index + 8].eq(
                                    self.i.payload.data
                                )
                with m.If(self.i.valid & self.i.payload.end):
                    m.next = "HOLD"
                    with m.If(~is_whole):
                        m.d.sync += nak.eq(Nak.CRC)
                    with m.Elif(version != VERSION):
                        m.d.sync += nak.eq(Nak.TYPE)
                    with m.Elif(
                        (count == too_many)
                        | (count != self.frame.length + (HEADER_BYTES + CRC_BYTES))
                    ):
                        m.d.sync += nak.eq(Nak.LENGTH)
                    with m.Else():
                        m.d.sync += nak.eq(0)
            with m.State("HOLD"):
                m.d.comb += [
                    self.valid.eq(1),
                    self.payload.valid.eq(is_primed),
                    read.en.eq(~is_primed | self.payload.ready),
                ]
                m.d.sync += is_primed.eq(1)
                with m.If(read.en):
                    m.d.sync += position.eq(position + 1)
                with m.If(self.release):
                    m.d.comb += crc.start.eq(1)
                    m.d.sync += [
                        count.eq(0),
                        header.eq(0),
                    ]
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

        m.submodules.crc = crc = crc32()

        head = Signal(HEADER_BYTES * 8)
        left = Signal(11)  # bytes left of the part being sent
        length = Signal(11)

        m.d.comb += crc.data.eq(self.o.payload.data)

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [
                    self.idle.eq(1),
                    self.header.ready.eq(1),
                    crc.start.eq(1),
                ]
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
                    m.next = "HEADER"
            with m.State("HEADER"):
                m.d.comb += [
                    self.o.payload.data.eq(head[:8]),
                    self.o.valid.eq(1),
                    crc.valid.eq(self.o.ready),
                ]
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
                            m.next = "SEAL"
            with m.State("PAYLOAD"):
                m.d.comb += [
                    self.o.payload.data.eq(self.i.payload),
                    self.o.valid.eq(self.i.valid),
                    self.i.ready.eq(self.o.ready),
                    crc.valid.eq(self.i.valid & self.o.ready),
                ]
                with m.If(self.i.valid & self.o.ready):
                    m.d.sync += left.eq(left - 1)
                    with m.If(left == 1):
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
                        m.next = "IDLE"

        return m
