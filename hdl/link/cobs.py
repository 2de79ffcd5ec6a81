"""Consistent overhead byte stuffing (Cheshire and Baker, 1997): blocks that end with 0x00."""

from amaranth import *
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["CobsDecoder", "CobsEncoder", "Last", "Symbol"]

# What a decoder tells: a byte of a block, or (``end``) that the block is over; ``error`` goes with
# ``end`` and means that the block ended in the middle of a group of bytes.
Symbol = data.StructLayout({"data": 8, "end": 1, "error": 1})

# A byte of a block to be sent; ``last`` marks the block's last one.
Last = data.StructLayout({"data": 8, "last": 1})

GROUP = 254  # bytes other than zero that one code byte can announce


class CobsDecoder(wiring.Component):
    """Decodes blocks, one byte a cycle.

    Empty blocks (repeated 0x00) are skipped. Whatever came before, the byte after a 0x00 starts
    a new block.

    Members
    -------
    i : :py:`In(stream.Signature(8))`
        Bytes from the link.
    o : :py:`Out(stream.Signature(Symbol))`
        The block's bytes, then one symbol with ``end``.
    """

    i: In(stream.Signature(8))
    o: Out(stream.Signature(Symbol))

    def elaborate(self, platform):
        m = Module()

        left = Signal(8)  # literal bytes left in this group
        zero = Signal()  # a zero stands between this group and the next
        started = Signal()  # a code byte of this block has been seen

        m.d.comb += self.i.ready.eq(~self.o.valid | self.o.ready)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                self.o.payload.data.eq(Mux(left == 0, 0, self.i.payload)),
                self.o.payload.end.eq(self.i.payload == 0),
                self.o.payload.error.eq(left != 0),
            ]
            with m.If(self.i.payload == 0):
                m.d.sync += [
                    self.o.valid.eq(started),
                    left.eq(0),
                    zero.eq(0),
                    started.eq(0),
                ]
            with m.Elif(left == 0):
                m.d.sync += [
                    self.o.valid.eq(zero),
                    left.eq(self.i.payload - 1),
                    zero.eq(self.i.payload != GROUP + 1),
                    started.eq(1),
                ]
            with m.Else():
                m.d.sync += [
                    self.o.valid.eq(1),
                    left.eq(left - 1),
                ]

        return m


class CobsEncoder(wiring.Component):
    """Encodes blocks and ends each with 0x00.

    A group is gathered before its code byte can be sent, so a block of n bytes takes about 2n
    cycles. Blocks have at least one byte.

    Members
    -------
    i : :py:`In(stream.Signature(Last))`
        Bytes of a block.
    o : :py:`Out(stream.Signature(8))`
        Bytes for the link.
    idle : :py:`Out(1)`
        No byte waits here.
    """

    i: In(stream.Signature(Last))
    o: Out(stream.Signature(8))
    idle: Out(1)

    def elaborate(self, platform):
        m = Module()

        m.submodules.group = group = memory.Memory(shape=8, depth=256, init=[])
        write = group.write_port()
        read = group.read_port(transparent_for=())

        count = Signal(8)  # bytes gathered
        pointer = Signal(8)  # the next byte to read
        is_zero = Signal()  # the group was ended by a zero
        is_last = Signal()  # the group is the block's last

        m.d.comb += [
            write.addr.eq(count),
            write.data.eq(self.i.payload.data),
            read.addr.eq(pointer),
            read.en.eq(0),
        ]

        with m.FSM():
            with m.State("GATHER"):
                m.d.comb += [
                    self.i.ready.eq(1),
                    self.idle.eq((count == 0) & ~self.i.valid),
                ]
                m.d.sync += pointer.eq(0)
                with m.If(self.i.valid):
                    m.d.sync += [
                        is_zero.eq(self.i.payload.data == 0),
                        is_last.eq(self.i.payload.last),
                    ]
                    with m.If(self.i.payload.data != 0):
                        m.d.comb += write.en.eq(1)
                        m.d.sync += count.eq(count + 1)
                    with m.If(
                        (self.i.payload.data == 0) | self.i.payload.last | (count == GROUP - 1)
                    ):
                        m.next = "CODE"
            with m.State("CODE"):
                m.d.comb += [
                    self.o.payload.eq(count + 1),
                    self.o.valid.eq(1),
                    read.en.eq(self.o.ready),
                ]
                with m.If(self.o.ready):
                    m.d.sync += pointer.eq(1)
                    with m.If(count != 0):
                        m.next = "BYTES"
                    with m.Else():
                        m.next = "CLOSE"
            with m.State("BYTES"):
                m.d.comb += [
                    self.o.payload.eq(read.data),
                    self.o.valid.eq(1),
                    read.en.eq(self.o.ready),
                ]
                with m.If(self.o.ready):
                    m.d.sync += pointer.eq(pointer + 1)
                    with m.If(pointer == count):
                        m.next = "CLOSE"
            with m.State("CLOSE"):
                # A block that ends with a zero needs one more, empty group after it.
                m.d.comb += [
                    self.o.payload.eq(is_zero),
                    self.o.valid.eq(is_last),
                ]
                m.d.sync += count.eq(0)
                with m.If(~is_last):
                    m.next = "GATHER"
                with m.Elif(self.o.ready):
                    m.d.sync += is_zero.eq(0)
                    with m.If(~is_zero):
                        m.next = "GATHER"

        return m
