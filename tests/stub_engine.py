"""An engine with the real one's ports and no arithmetic, for tests of the link in pysim."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import memory, wiring

from trivet.hdl.config import EngineConfig
from trivet.hdl.engine import READ_DECISION, READ_LATENCY, Engine
from trivet.hdl.loader import memories

__all__ = ["StubEngine"]


class StubEngine(wiring.Component):
    """Memories that keep what is written; a run takes ``first + 7`` cycles, ``first`` 9 fails.

    ``first`` 9 and 31 take 20 times as long. One run waits behind another, unless that fails.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        real = Engine(config)
        real._MustUse__silence = True  # only its ports are used
        super().__init__(dict(real.signature.members))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self.memories = []
        for space, geometry in enumerate(memories(self.config)):
            store = memory.Memory(shape=8 * geometry.word_bytes, depth=geometry.words, init=[])
            m.submodules[geometry.name] = store
            port = store.write_port(granularity=8)
            self.memories.append(store)
            m.d.comb += [
                port.addr.eq(self.write_addr),
                port.data.eq(self.write_data.replicate(geometry.word_bytes)),
                port.en.eq((self.write_en & (self.write_space == space)) << self.write_byte),
            ]
        read = self.memories[0].read_port(transparent_for=())
        m.d.comb += [read.addr.eq(self.read_addr), read.en.eq(self.read_en)]
        stages = [read.data]
        for k in range(READ_LATENCY - 1):
            stage = Signal(8 * self.config.word_bytes, name=f"stage_{k}")
            m.d.sync += stage.eq(stages[-1])
            stages.append(stage)
        m.d.comb += [
            self.read_data.eq(stages[-1]),
            self.write_ready.eq(1),
            self.write_idle.eq(1),
        ]
        asked = Signal(READ_DECISION)
        m.d.sync += asked.eq(Cat(self.read_en, asked[:-1]))
        m.d.comb += self.read_ready.eq(asked[-1])

        left = Signal(16)
        elapsed = Signal(32)
        waits = Signal()
        waiting = Signal(16)
        first = Signal(16)
        m.d.comb += first.eq(Mux(waits, waiting, self.first))
        m.d.sync += [
            self.done.eq(0),
            self.counter_data.eq(
                self.counter_addr
                + (self.counter_addr << 32)
                + (self.counter_addr << 64)
                + 0x100
                + (0x200 << 32)
                + (0x300 << 64)
            ),
        ]
        with m.If(self.clear):
            m.d.sync += [self.busy.eq(0), self.error.eq(0), waits.eq(0)]
        with m.Elif((self.start | waits) & ~self.busy):
            m.d.sync += [
                self.busy.eq(1),
                elapsed.eq(0),
                left.eq(Mux((first == 9) | (first == 31), 7 + 20 * first, 7 + first)),
                self.layer.eq(first),
                self.error.eq(0),
                waits.eq(0),
            ]
        with m.Elif(self.busy):
            m.d.sync += [elapsed.eq(elapsed + 1), left.eq(left - 1)]
            with m.If(self.start):
                m.d.sync += [waits.eq(1), waiting.eq(self.first)]
            with m.If(left == 1):
                m.d.sync += [self.busy.eq(0), self.done.eq(1), self.error.eq(self.layer == 9)]
                m.d.sync += self.cycles.eq(elapsed + 1)
                with m.If(self.layer == 9):
                    m.d.sync += waits.eq(0)
        return m
