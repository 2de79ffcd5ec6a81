"""Judges, writes and reads areas by one walk: for compact engines."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from .loader import COUNT_BITS, EXTENT, LOADER, memories, peeker_members, run_end

__all__ = ["Mover"]


class Mover(wiring.Component):
    """:class:`~.loader.Extent`, :class:`~.loader.Loader` and :class:`~.loader.Peeker` in one.

    One of them works at a time. All three walk an area byte by byte with the same counters, so an
    area is judged in a cycle a byte, and a byte that is read costs a read of its word: slower than
    the three by cycles that no UART notices, in fewer cells.

    Parameters
    ----------
    config : EngineConfig
        Gives the memories' sizes.
    latency : :class:`int`
        As of the peeker.

    Members
    -------
    extent, loader, peeker
        The members of the three. They see the same area: that of ``extent`` is used.
    """

    def __init__(self, config, latency):
        self.memories = memories(config)
        self.word_bytes = config.word_bytes
        self.latency = latency
        super().__init__({
            "extent": Out(EXTENT),
            "loader": Out(LOADER),
            "peeker": Out(peeker_members(config)),
        })

    def elaborate(self, platform):
        m = Module()
        extent, loader, peeker = self.extent, self.loader, self.peeker
        area = extent.area

        # An address with bits above these is beyond every memory, and no walk comes round to 0.
        place_bits = max(COUNT_BITS, *(memory.words.bit_length() for memory in self.memories))
        last_byte = Signal(range(max(memory.word_bytes for memory in self.memories)))
        is_known = Signal()
        fits = Signal()
        address = Signal(place_bits + 1, reset_less=True)
        with m.Switch(area.space):
            for space, memory in enumerate(self.memories):
                with m.Case(space):
                    m.d.comb += [
                        last_byte.eq(memory.word_bytes - 1),
                        is_known.eq(1),
                        fits.eq(address <= memory.words),
                    ]

        left = Signal(COUNT_BITS, reset_less=True)
        run_left = Signal(COUNT_BITS, reset_less=True)
        byte = Signal.like(last_byte, reset_less=True)
        run = Signal(COUNT_BITS)
        is_last = left == 1
        is_run_end = run_left == 1
        is_word_end = is_run_end | (byte == last_byte)
        starts_anew = Signal()
        steps = Signal()  # to the next byte
        closes = Signal()  # the word that the walk ended in
        m.d.comb += run.eq(run_end(area.run))
        with m.If(starts_anew):
            m.d.sync += [
                left.eq(area.count), run_left.eq(run), address.eq(area.address[:place_bits]),
                byte.eq(0),
            ]
        with m.Elif(steps):
            m.d.sync += [
                left.eq(left - 1),
                run_left.eq(Mux(is_run_end, run, run_left - 1)),
                byte.eq(Mux(is_word_end, 0, byte + 1)),
            ]
        with m.If((steps & is_word_end) | (closes & (byte != 0))):
            m.d.sync += address.eq(address + 1)

        wait = Signal(range(self.latency + 1))
        m.d.comb += [
            extent.inside.eq(is_known & fits & ~area.address[place_bits:].any()),
            loader.write_space.eq(area.space),
            loader.write_addr.eq(address),
            loader.write_byte.eq(byte),
            loader.write_data.eq(loader.i.payload),
            peeker.read_addr.eq(address),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += starts_anew.eq(1)
                with m.If(extent.start):
                    m.next = "WALK"
                with m.Elif(loader.start):
                    m.next = "WRITE"
                    with m.If(area.count == 0):
                        m.next = "SETTLE"
                with m.Elif(peeker.start & (area.count != 0)):
                    m.next = "READ"
            with m.State("WALK"):
                with m.If(left == 0):
                    m.d.comb += closes.eq(1)
                    m.next = "TELL"
                with m.Else():
                    m.d.comb += steps.eq(1)
            with m.State("TELL"):
                m.d.comb += extent.done.eq(1)
                m.next = "IDLE"
            with m.State("WRITE"):
                m.d.comb += [
                    loader.write_en.eq(loader.i.valid),
                    loader.i.ready.eq(loader.write_ready),
                    steps.eq(loader.i.valid & loader.write_ready),
                ]
                with m.If(steps & is_last):
                    m.next = "SETTLE"
            with m.State("SETTLE"), m.If(loader.write_idle):
                m.d.comb += loader.done.eq(1)
                m.next = "IDLE"
            with m.State("READ"):
                m.d.comb += peeker.read_en.eq(1)
                m.d.sync += wait.eq(1)
                with m.If(peeker.read_ready):
                    m.next = "WAIT"
            with m.State("WAIT"):
                m.d.sync += wait.eq(wait + 1)
                with m.If(wait == self.latency):
                    m.d.sync += peeker.o.payload.eq(
                        peeker.read_data.word_select(byte[:(self.word_bytes - 1).bit_length()], 8))
                    m.next = "SEND"
            with m.State("SEND"):
                m.d.comb += [peeker.o.valid.eq(1), steps.eq(peeker.o.ready)]
                with m.If(peeker.o.ready):
                    m.next = "READ"
                    with m.If(is_last):
                        m.next = "IDLE"
        return m
