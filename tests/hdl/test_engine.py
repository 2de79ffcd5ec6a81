"""The engine runs programs: every byte of activation memory and every counted cycle."""

from dataclasses import replace

import numpy as np
import pytest
from amaranth.sim import Simulator
from engine_model import Memories, execute

from trivet.hdl.config import DEFAULT, SMALL, EngineConfig
from trivet.hdl.engine import READ_LATENCY, Engine, Space
from trivet.hdl.isa import (
    START_CYCLES,
    Instruction,
    Op,
    predicted_cycles,
    predicted_stalls,
    predicted_total,
)

TINY = EngineConfig(
    lanes=4, simd=4, requantisers=2, act_banks=3, act_bank_words=32, weight_words=48,
    param_words=16, tables=2, addends=2, instructions=8,
)
END = Instruction(op=Op.END)


def shape(lanes, simd, requantisers):
    return replace(TINY, lanes=lanes, simd=simd, requantisers=requantisers)


SHAPES = [shape(1, 1, 1), shape(2, 2, 2), shape(4, 4, 1), shape(4, 4, 2), shape(4, 4, 4),
          shape(8, 4, 2), shape(4, 8, 2), shape(2, 8, 1)]


class Bench:
    """An engine in the simulator with memories that the model knows, too."""

    def __init__(self, config, seed=0, **options):
        self.config = config
        self.memories = Memories.random(config, np.random.default_rng(seed))
        self.engine = Engine(config, **options)
        self.ctx = None

    def run(self, testbench):
        async def process(ctx):
            self.ctx = ctx
            await testbench(self)

        simulator = Simulator(self.engine)
        simulator.add_clock(1e-6)
        simulator.add_testbench(process)
        simulator.run()

    async def write(self, space, addr, data):
        e = self.engine
        self.ctx.set(e.write_en, 1)
        self.ctx.set(e.write_space, space)
        self.ctx.set(e.write_addr, addr)
        for k, byte in enumerate(data):
            self.ctx.set(e.write_byte, k)
            self.ctx.set(e.write_data, byte)
            await self.ctx.tick()
        self.ctx.set(e.write_en, 0)

    async def load(self, instructions, *, weights=None, params=None):
        """Everything into the engine, through its write port."""
        mem = self.memories
        weights = mem.weights.shape[0] if weights is None else weights
        params = self.config.param_words if params is None else params
        for addr, word in enumerate(mem.act):
            await self.write(Space.ACT, addr, word.tolist())
        for addr, word in enumerate(mem.weights[:weights]):
            await self.write(Space.WGHT, addr, word.tobytes())
        for addr in range(params):
            data = b"".join(
                mem.bias[k].tobytes() + mem.m[k].tobytes()
                for k in range(addr * self.config.requantisers, (addr + 1) * self.config.requantisers))
            await self.write(Space.PARM, addr, data)
        for k, byte in enumerate(mem.tables.reshape(-1).tolist() if self.uses(instructions, "has_table") else ()):
            await self.write(Space.TABL, k, [byte])
        pairs = mem.addends.reshape(-1, 2) if self.uses(instructions, "has_add") else ()
        for k, pair in enumerate(pairs):
            await self.write(Space.ADDT, k, pair.tobytes())
        await self.load_code(instructions)

    @staticmethod
    def uses(instructions, flag):
        return any(getattr(i, flag) for i in instructions)

    async def load_code(self, instructions):
        for addr, instruction in enumerate(instructions):
            await self.write(Space.INST, addr, instruction.encode())

    async def start(self, first=0, count=0):
        e = self.engine
        self.ctx.set(e.start, 1)
        self.ctx.set(e.first, first)
        self.ctx.set(e.count, count)
        await self.ctx.tick()
        self.ctx.set(e.start, 0)
        self.ctx.set(e.first, 0x5A5A)
        self.ctx.set(e.count, 0x5A5A)

    async def wait(self, limit=20000):
        """Up to `done`; returns (cycles, error)."""
        for _ in range(limit):
            if self.ctx.get(self.engine.done):
                assert not self.ctx.get(self.engine.busy)
                return self.ctx.get(self.engine.cycles), self.ctx.get(self.engine.error)
            assert self.ctx.get(self.engine.busy)
            await self.ctx.tick()
        raise AssertionError(f"engine still busy after {limit} cycles")

    async def read(self):
        """All of activation memory, a word a cycle."""
        e, words = self.engine, self.config.act_words
        out = []
        for k in range(words + READ_LATENCY):
            if k >= READ_LATENCY:
                out.append(self.ctx.get(e.read_data).to_bytes(self.config.word_bytes, "little"))
            self.ctx.set(e.read_en, k < words)
            self.ctx.set(e.read_addr, k % words)
            await self.ctx.tick()
        return np.frombuffer(b"".join(out), np.uint8).reshape(words, -1)

    async def counters(self, index):
        self.ctx.set(self.engine.counter_addr, index)
        await self.ctx.tick()
        value = self.ctx.get(self.engine.counter_data)
        return tuple(value >> shift & 0xFFFFFFFF for shift in (0, 32, 64))

    async def check(self, instructions, first=0, count=0):
        """Run, then compare memory with the model's and counters with the closed form."""
        part = instructions[first : first + count if count else None]
        part = part[: next((k for k, i in enumerate(part) if i.op == Op.END), len(part))]
        await self.start(first, count)
        cycles, error = await self.wait()
        assert not error
        for instruction in part:
            execute(self.memories, instruction)
        found = await self.read()
        wrong = np.argwhere(found != self.memories.act)
        assert not len(wrong), f"{len(wrong)} bytes differ, first {wrong[:4].tolist()}"
        assert cycles == predicted_total(self.config, part)
        for k, instruction in enumerate(part, first):
            assert await self.counters(k) == (
                predicted_cycles(self.config, instruction),
                instruction.blocks * instruction.pixels * instruction.slices,
                predicted_stalls(self.config, instruction),
            ), k


def run_program(config, instructions, seed=0):
    async def testbench(bench):
        await bench.load(instructions)
        await bench.check(instructions)

    Bench(config, seed).run(testbench)


def with_idle(config, **fields):
    """An instruction whose pixels leave the requantisers the time they need."""
    i = Instruction(**fields)
    return replace(i, idle=max(0, config.beats - i.slices))


def conv(config, channels=None, **fields):
    """A 3 x 3 convolution with uneven everything: from bank 0 to bank 1, two blocks."""
    channels = 5 if channels is None else channels
    words = -(-channels // config.word_bytes)
    out_words = -(-2 * config.lanes // config.word_bytes)
    values = dict(
        op=Op.DOT, src=2, dst=config.act_bank_words + 1, weights=1, params=1, blocks=2,
        in_h=3, in_w=4, out_h=2, out_w=2, kernel_h=3, kernel_w=2, stride_h=2, stride_w=2,
        dilation_h=1, dilation_w=2, pad_top=1, pad_left=1, pixel_words=words,
        out_pixel_words=out_words, c_slices=-(-channels // config.simd), zp_x=-7, zp_y=3,
        lo=-100, hi=90,
    )
    return with_idle(config, **{**values, **fields})


@pytest.mark.parametrize("config", SHAPES, ids=lambda c: f"{c.lanes}x{c.simd}r{c.requantisers}")
def test_convolution_of_every_engine_shape(config):
    channels = min(5, config.simd * 2)
    run_program(config, [conv(config, channels), END])
