"""Moves bytes between the host link and the engine's memories."""

from typing import NamedTuple

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .config import EngineConfig
from .isa import INSTRUCTION_BYTES

__all__ = [
    "COUNT_BITS", "EXTENT", "LOADER", "Area", "Extent", "Loader", "Memory", "Peeker", "memories",
    "peeker_members", "run_end",
]

COUNT_BITS = 11  # bytes of a frame's payload


class Memory(NamedTuple):
    """A memory as the host sees it: ``words`` words of ``word_bytes`` bytes, a power of two."""

    name: str
    word_bytes: int
    words: int


def memories(config: EngineConfig) -> tuple[Memory, ...]:
    """The memories of an engine in the order of their numbers on the link."""
    found = (
        Memory("ACT", config.word_bytes, config.act_words),
        Memory("WGHT", config.weight_word_bytes, config.weight_words),
        Memory("PARM", config.requantisers * 8, config.param_words),
        Memory("TABL", 1, config.tables * 256),
        Memory("ADDT", 8, config.addends * 256),
        Memory("INST", INSTRUCTION_BYTES, config.instructions),
    )
    for memory in found:
        if memory.word_bytes > 256:
            raise ValueError(
                f"engine: a word of {memory.name} has {memory.word_bytes} bytes, the host link "
                f"addresses at most 256; use fewer lanes or a smaller simd"
            )
    return found


# Bytes of a memory: ``count`` bytes from the start of word ``address`` of memory ``space``. After
# each ``run`` bytes they go on in the next word; 0 means that words are filled one after another.
Area = data.StructLayout({"space": 8, "run": 16, "address": 32, "count": COUNT_BITS})

# Members of the extent and the loader.
EXTENT = wiring.Signature({"start": In(1), "area": In(Area), "done": Out(1), "inside": Out(1)})
LOADER = wiring.Signature(
    {
        "start": In(1),
        "area": In(Area),
        "i": In(stream.Signature(8)),
        "write_en": Out(1),
        "write_space": Out(3),
        "write_addr": Out(16),
        "write_byte": Out(8),
        "write_data": Out(8),
        "write_ready": In(1),
        "write_idle": In(1),
        "done": Out(1),
    }
)


def peeker_members(config):
    """Members of the peeker."""
    return wiring.Signature(
        {
            "start": In(1),
            "area": In(Area),
            "read_en": Out(1),
            "read_addr": Out(16),
            "read_ready": In(1),
            "read_data": In(8 * config.word_bytes),
            "o": Out(stream.Signature(8)),
        }
    )


def run_end(run):
    """The run to count down from: a run of 0, or beyond a frame, never ends inside one."""
    endless = (1 << COUNT_BITS) - 1
    return Mux((run == 0) | (run > endless), endless, run)


class Extent(wiring.Component):
    """Tells whether an area lies inside its memory, before anything of it is touched.

    Parameters
    ----------
    config : EngineConfig
        Gives the memories' sizes.

    Members
    -------
    start : :py:`In(1)`, area : :py:`In(Area)`
        Pulse; ``area`` stays until ``done``.
    done : :py:`Out(1)`, inside : :py:`Out(1)`
        ``inside`` is valid with ``done``, two cycles a word and four after ``start``.
    """

    def __init__(self, config):
        self.memories = memories(config)
        super().__init__(EXTENT)

    def elaborate(self, platform):
        m = Module()

        word_bytes = Signal(range(257), reset_less=True)
        words = Signal(17, reset_less=True)
        run = Signal(COUNT_BITS, reset_less=True)
        m.d.sync += [word_bytes.eq(0), run.eq(run_end(self.area.run))]
        with m.Switch(self.area.space):
            for space, memory in enumerate(self.memories):
                with m.Case(space):
                    m.d.sync += [
                        word_bytes.eq(memory.word_bytes),
                        words.eq(memory.words),
                    ]

        left = Signal(COUNT_BITS, reset_less=True)
        run_left = Signal(COUNT_BITS, reset_less=True)
        end = Signal(18, reset_less=True)
        # A word takes what is left of it, of its run, or of the area, whichever ends first. What is
        # told of it is in registers: it is looked at in one cycle and taken in the next.
        is_last = Signal(reset_less=True)
        is_run_end = Signal(reset_less=True)
        is_over = Signal(reset_less=True)
        m.d.sync += [
            is_last.eq((left <= run_left) & (left <= word_bytes)),
            is_run_end.eq(run_left <= word_bytes),
            is_over.eq((left == 0) | (word_bytes == 0) | end[17]),
            self.inside.eq((end <= words) & (word_bytes != 0)),
        ]

        with m.FSM():
            with m.State("IDLE"), m.If(self.start):
                m.next = "SET"
            with m.State("SET"):
                m.d.sync += [
                    left.eq(self.area.count),
                    run_left.eq(run),
                    # An address that has no place in 17 bits is beyond every memory.
                    end.eq(Mux(self.area.address[16:].any(), 1 << 17, self.area.address[:16])),
                ]
                m.next = "LOOK"
            with m.State("LOOK"):
                m.next = "TAKE"
            with m.State("TAKE"):
                m.d.sync += [
                    left.eq(Mux(is_run_end, left - run_left, left - word_bytes)),
                    run_left.eq(Mux(is_run_end, run, run_left - word_bytes)),
                    end.eq(end + 1),
                ]
                with m.If(is_last):
                    m.d.sync += left.eq(0)
                m.next = "LOOK"
                with m.If(is_over):
                    m.d.sync += end.eq(end)
                    m.next = "TELL"
            with m.State("TELL"):
                m.d.comb += self.done.eq(1)
                m.next = "IDLE"

        return m


class Loader(wiring.Component):
    """Writes bytes into an area, one a cycle. The area must lie inside its memory.

    Parameters
    ----------
    config : EngineConfig
        Gives the memories' sizes.

    Members
    -------
    start : :py:`In(1)`, area : :py:`In(Area)`
        Pulse; ``area`` stays until ``done``.
    i : :py:`In(stream.Signature(8))`
        ``area.count`` bytes.
    write_en, write_space, write_addr, write_byte, write_data, write_ready, write_idle
        The engine's write port.
    done : :py:`Out(1)`
        The last byte is in its memory.
    """

    def __init__(self, config):
        self.memories = memories(config)
        super().__init__(LOADER)

    def elaborate(self, platform):
        m = Module()

        last_byte = Signal(8)
        with m.Switch(self.area.space):
            for space, memory in enumerate(self.memories):
                with m.Case(space):
                    m.d.comb += last_byte.eq(memory.word_bytes - 1)

        left = Signal(COUNT_BITS)
        run_left = Signal(COUNT_BITS)
        address = Signal(16)
        byte = Signal(8)
        # Of the byte to come; registers.
        is_last = Signal(reset_less=True)
        is_run_end = Signal(reset_less=True)
        is_word_end = Signal(reset_less=True)
        run = Signal(COUNT_BITS)
        m.d.comb += run.eq(run_end(self.area.run))

        wants = Signal()  # bytes
        takes = Signal()
        m.d.comb += [
            self.i.ready.eq(wants & (~self.write_en | self.write_ready)),
            takes.eq(self.i.valid & self.i.ready),
        ]
        with m.If(self.write_ready):
            m.d.sync += self.write_en.eq(0)
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [
                    left.eq(self.area.count),
                    run_left.eq(run),
                    address.eq(self.area.address),
                    byte.eq(0),
                ]
                m.d.sync += [
                    is_last.eq(self.area.count == 1),
                    is_run_end.eq(run == 1),
                    is_word_end.eq((run == 1) | (last_byte == 0)),
                ]
                with m.If(self.start):
                    # The last write is registered here, and then in the engine.
                    m.next = "SETTLE"
                    with m.If(self.area.count != 0):
                        m.d.sync += wants.eq(1)
                        m.next = "WRITE"
            with m.State("WRITE"), m.If(takes & is_last):
                m.d.sync += wants.eq(0)
                m.next = "SETTLE"
            with m.State("SETTLE"), m.If(~self.write_en & self.write_idle):
                m.d.comb += self.done.eq(1)
                m.next = "IDLE"

        with m.If(takes):
            m.d.sync += [
                self.write_en.eq(1),
                self.write_space.eq(self.area.space),
                self.write_addr.eq(address),
                self.write_byte.eq(byte),
                self.write_data.eq(self.i.payload),
                left.eq(left - 1),
                run_left.eq(run_left - 1),
                byte.eq(byte + 1),
            ]
            with m.If(is_run_end):
                m.d.sync += run_left.eq(run)
            with m.If(is_word_end):
                m.d.sync += [
                    address.eq(address + 1),
                    byte.eq(0),
                ]
            # What the next byte will be, from where that is.
            ends_run = Mux(is_run_end, run == 1, run_left == 2)
            m.d.sync += [
                is_last.eq(left == 2),
                is_run_end.eq(ends_run),
                is_word_end.eq(
                    ends_run
                    | Mux(is_word_end, last_byte == 0, byte + 1 == last_byte)),
            ]

        return m


class Peeker(wiring.Component):
    """Reads bytes of an area of the activation memory. The area must lie inside it.

    Parameters
    ----------
    config : EngineConfig
        Gives the word's width.
    latency : :class:`int`
        Cycles from ``read_ready`` to ``read_data``. ``read_ready`` tells that a read that was asked
        for before, at most so many cycles, was done.

    Members
    -------
    start : :py:`In(1)`, area : :py:`In(Area)`
        Pulse; ``area`` stays until the last byte was taken.
    read_en, read_addr, read_ready, read_data
        The engine's read port.
    o : :py:`Out(stream.Signature(8))`
        ``area.count`` bytes.
    """

    def __init__(self, config, latency):
        self.word_bytes = config.word_bytes
        self.latency = latency
        super().__init__(peeker_members(config))

    def elaborate(self, platform):
        m = Module()

        left = Signal(COUNT_BITS)
        run_left = Signal(COUNT_BITS)
        word = Signal(8 * self.word_bytes)
        byte = Signal(range(self.word_bytes))
        wait = Signal(range(self.latency + 1))
        run = Signal(COUNT_BITS, reset_less=True)
        m.d.sync += run.eq(run_end(self.area.run))

        arrives = Signal()  # the word is at the read port

        m.d.comb += self.o.payload.eq(word[:8])
        with m.If(arrives):
            m.d.sync += word.eq(self.read_data)
        with m.Elif(self.o.valid & self.o.ready):
            m.d.sync += word.eq(word >> 8)

        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [
                    left.eq(self.area.count),
                    run_left.eq(run_end(self.area.run)),
                    self.read_addr.eq(self.area.address),
                ]
                with m.If(self.start & (self.area.count != 0)):
                    m.next = "READ"
            with m.State("READ"):
                m.d.comb += self.read_en.eq(1)
                m.d.sync += wait.eq(1)
                with m.If(self.read_ready):
                    m.d.sync += arrives.eq(self.latency == 1)
                    m.next = "WAIT"
            with m.State("WAIT"):
                m.d.sync += [wait.eq(wait + 1), arrives.eq(wait == self.latency - 1)]
                with m.If(arrives):
                    m.d.sync += [
                        byte.eq(0),
                        self.read_addr.eq(self.read_addr + 1),
                        self.o.valid.eq(1),
                    ]
                    m.next = "SEND"
            with m.State("SEND"), m.If(self.o.ready):
                m.d.sync += [
                    byte.eq(byte + 1),
                    left.eq(left - 1),
                    run_left.eq(run_left - 1),
                ]
                with m.If(run_left == 1):
                    m.d.sync += run_left.eq(run)
                with m.If(left == 1):
                    m.d.sync += self.o.valid.eq(0)
                    m.next = "IDLE"
                with m.Elif((run_left == 1) | (byte == self.word_bytes - 1)):
                    m.d.sync += self.o.valid.eq(0)
                    m.next = "READ"

        return m
