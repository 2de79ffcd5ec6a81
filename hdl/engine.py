"""The engine: memories, sequencer, address generator, lanes, post-processing and write-back."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .config import EngineConfig

__all__ = ["READ_LATENCY", "Engine", "Space"]

# Cycles from ``read_en`` to ``read_data``.
READ_LATENCY = 4


class Space:
    """Memories that the host writes; the numbers are those of the link's LOAD frame."""

    ACT = 0
    WGHT = 1
    PARM = 2
    TABL = 3
    ADDT = 4
    INST = 5


class Engine(wiring.Component):
    """Runs a program of layers out of its own memories.

    A stall-free pipeline of fixed latency: see ``hdl/isa.py`` for what an instruction does and for
    the closed form of the cycles it takes. The host writes memories a byte a cycle and reads
    activation words; both only while :attr:`busy` is low (they are not arbitrated).

    Parameters
    ----------
    config : EngineConfig
        What is generated.

    Members
    -------
    write_en, write_space, write_addr, write_byte, write_data : In
        One byte into byte ``write_byte`` (little-endian) of word ``write_addr`` of a :class:`Space`.
        Words: ACT ``word_bytes``, WGHT ``lanes * simd``, PARM ``requantisers * 8``, TABL 1,
        ADDT 8 (int32 Ta, int32 Tb), INST 64 bytes. Back to back every cycle is fine.
    read_en, read_addr : In
        Read word ``read_addr`` of the activation memory.
    read_data : Out(word_bytes * 8)
        That word, :data:`READ_LATENCY` cycles later; one read a cycle.
    start, first, count : In
        Pulse ``start`` to run ``count`` instructions from ``first`` (0: up to END). Ignored while busy.
    busy, done : Out
        ``busy`` from the cycle after ``start``; ``done`` pulses in the cycle after the last byte is
        in memory (or an error was found), with ``busy`` low.
    cycles : Out(32)
        Cycles from the start pulse to the last byte written; keeps its value until the next start.
    error : Out(1)
        Valid with ``done`` and until the next ``start`` or ``clear``: an invalid instruction, a run
        past the instruction memory, or a layer that did not finish in its bound.
    layer : Out(16)
        Index of the instruction being run; that of the culprit when ``error`` is set.
    counter_addr : In(8)
        Instruction whose counters ``counter_data`` shows one cycle later.
    counter_data : Out(96)
        ``Cat(cycles32, busy32, stalls32)`` of that instruction's last run, 0 if it has not run
        since ``clear``: cycles of the layer, slices issued, idle issue cycles.
    clear : In(1)
        Stops whatever runs, zeroes counters and ``error``; memories keep their contents.
    """

    def __init__(self, config: EngineConfig):
        self.config = config
        super().__init__({
            "write_en": In(1),
            "write_space": In(3),
            "write_addr": In(16),
            "write_byte": In(8),
            "write_data": In(8),
            "read_en": In(1),
            "read_addr": In(16),
            "read_data": Out(config.word_bytes * 8),
            "start": In(1),
            "first": In(16),
            "count": In(16),
            "busy": Out(1),
            "done": Out(1),
            "cycles": Out(32),
            "error": Out(1),
            "layer": Out(16),
            "counter_addr": In(8),
            "counter_data": Out(96),
            "clear": In(1),
        })

    def elaborate(self, platform):
        raise NotImplementedError("the engine's inside is not written yet")
