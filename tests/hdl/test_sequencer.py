"""The sequencer starts layers in order and in time, counts them, and ends every run."""

from dataclasses import replace

import pytest
from amaranth.back import rtlil
from amaranth.sim import Simulator

from trivet.hdl.config import SMALL
from trivet.hdl.isa import START_CYCLES, Instruction, Op, drain_cycles
from trivet.hdl.sequencer import Sequencer, instruction_layout

CONFIG = replace(SMALL, instructions=6)
LAYERS = [Instruction(dst=100 + k, out_w=3 + k, idle=k, zp_x=-k) for k in range(4)]
END = Instruction(op=Op.END)


class Bench:
    """Stands in for address generator and pipeline: `idle` idles, `out_w` slices, the drain."""

    DRAIN = drain_cycles(CONFIG, Instruction())

    def __init__(self, limit=1024):
        self.dut = Sequencer(CONFIG, limit)
        self.log = []  # (cycle of the first slice, dst, index), when the layer is done
        self.flying = []  # layers between their first slice and their last byte: (start, fields)
        self.cycle = 0
        self.hang = False

    def run(self, body):
        async def testbench(ctx):
            self.ctx = ctx
            await body(self)

        simulator = Simulator(self.dut)
        simulator.add_clock(1e-6)
        simulator.add_testbench(testbench)
        simulator.run()

    async def load(self, instructions):
        dut, ctx = self.dut, self.ctx
        ctx.set(dut.write_en, 1)
        for addr, instruction in enumerate(instructions):
            ctx.set(dut.write_addr, addr)
            for k, byte in enumerate(instruction.encode()):
                ctx.set(dut.write_byte, k)
                ctx.set(dut.write_data, byte)
                await ctx.tick()
        ctx.set(dut.write_en, 0)

    async def start(self, first=0, count=0):
        dut, ctx = self.dut, self.ctx
        self.cycle = 0
        self.log.clear()
        self.flying.clear()
        ctx.set(dut.first, first)
        ctx.set(dut.count, count)
        ctx.set(dut.start, 1)
        await self.step()
        ctx.set(dut.start, 0)

    async def step(self):
        """One cycle of the stand-ins."""
        dut, ctx = self.dut, self.ctx
        last = [start + i.idle + i.out_w - 1 for start, i in self.flying]
        newest = self.flying[-1][1] if self.flying else None
        age = self.cycle - self.flying[-1][0] if self.flying else -1
        ctx.set(dut.idling, newest is not None and age < newest.idle)
        ctx.set(dut.issuing, newest is not None and newest.idle <= age < newest.idle + newest.out_w)
        ctx.set(dut.issued, self.cycle in last)
        done = bool(last) and self.cycle == last[0] + self.DRAIN and not self.hang
        ctx.set(dut.finish, done)
        if done:
            start, instruction = self.flying.pop(0)
            tail = ctx.get(dut.tail)
            assert tail.dst == instruction.dst
            self.log.append((start, tail.dst, ctx.get(dut.layer_index)))
        if ctx.get(dut.go):
            self.flying.append((self.cycle + 1, ctx.get(dut.instruction)))
        await ctx.tick()
        self.cycle += 1

    async def wait(self):
        for _ in range(4000):
            if self.ctx.get(self.dut.done):
                return
            await self.step()
        raise AssertionError("no end")

    async def counters(self, index):
        self.ctx.set(self.dut.counter_addr, index)
        await self.ctx.tick().repeat(2)
        value = self.ctx.get(self.dut.counter_data)
        return tuple(value >> shift & 0xFFFFFFFF for shift in (0, 32, 64))


def cost(layer):
    return layer.out_w + layer.idle + Bench.DRAIN


def check(bench, layers, first=0):
    """Each layer starts when its predecessor is written, or `early` cycles before."""
    written = START_CYCLES
    want = []
    for k, layer in enumerate(layers, first):
        when = written - (layer.early if k > first else 0)
        want.append((when, layer.dst, k))
        written = when + cost(layer)
    assert bench.log == want
    assert bench.ctx.get(bench.dut.cycles) == written
    assert not bench.ctx.get(bench.dut.error)


def test_layout_holds_every_field():
    bits = int.from_bytes(LAYERS[3].encode(), "little")
    value = instruction_layout().from_bits(bits)
    assert value["dst"] == 103
    assert value["zp_x"] == -3
    assert instruction_layout().size == 512


def test_layers_start_when_their_predecessor_is_written():
    async def body(bench):
        await bench.load([*LAYERS, END])
        await bench.start()
        await bench.wait()
        check(bench, LAYERS)
        for k, layer in enumerate(LAYERS):
            assert await bench.counters(k) == (cost(layer), layer.out_w, layer.idle)
        assert await bench.counters(4) == (0, 0, 0)
        assert await bench.counters(200) == (0, 0, 0)

    Bench().run(body)


def test_layers_start_early_when_they_are_told():
    layers = [Instruction(dst=k, out_w=20 - k, idle=k, early=early)
              for k, early in enumerate((5, 1, 15, 0, 14))]

    async def body(bench):
        await bench.load([*layers, END])
        for first in (0, 2):
            await bench.start(first)
            await bench.wait()
            check(bench, layers[first:], first)
            for k, layer in enumerate(layers[first:], first):
                cycles = cost(layer) - (layer.early if k > first else 0)
                assert await bench.counters(k) == (cycles, layer.out_w, layer.idle)

    Bench().run(body)


@pytest.mark.parametrize(("first", "count"), [(0, 1), (2, 0), (1, 2), (3, 9)])
def test_part_of_a_program(first, count):
    async def body(bench):
        await bench.load([*LAYERS, END])
        for _ in range(2):
            await bench.start(first, count)
            await bench.wait()
            check(bench, LAYERS[first : first + count if count else None], first)

    Bench().run(body)


def test_start_is_ignored_while_busy():
    async def body(bench):
        await bench.load([*LAYERS[:2], END])
        await bench.start()
        for k in range(20):
            bench.ctx.set(bench.dut.start, k % 2)
            bench.ctx.set(bench.dut.first, 1)
            await bench.step()
        bench.ctx.set(bench.dut.start, 0)
        await bench.wait()
        check(bench, LAYERS[:2])

    Bench().run(body)


def test_layer_that_never_finishes_is_an_error():
    async def body(bench):
        await bench.load([*LAYERS, END])
        await bench.start()
        bench.hang = True
        await bench.wait()
        assert bench.ctx.get(bench.dut.error)
        assert bench.ctx.get(bench.dut.layer_index) == 0
        assert bench.cycle < START_CYCLES + 64 + 8
        bench.hang = False
        await bench.start(1)
        await bench.wait()
        check(bench, LAYERS[1:], 1)

    Bench(limit=64).run(body)


@pytest.mark.parametrize("first", [6, 7, 65535])
def test_start_beyond_the_memory_is_an_error(first):
    async def body(bench):
        await bench.start(first)
        await bench.wait()
        assert bench.ctx.get(bench.dut.error)
        assert bench.ctx.get(bench.dut.layer_index) == first

    Bench().run(body)


def test_clear_wins_over_everything():
    async def body(bench):
        await bench.load([*LAYERS, END])
        await bench.start()
        for _ in range(60):
            await bench.step()
        bench.ctx.set(bench.dut.clear, 1)
        bench.ctx.set(bench.dut.start, 1)
        await bench.ctx.tick()
        bench.ctx.set(bench.dut.clear, 0)
        assert bench.ctx.get(bench.dut.flush)  # and a start in this cycle, too, is ignored
        await bench.ctx.tick()
        bench.ctx.set(bench.dut.start, 0)
        assert not bench.ctx.get(bench.dut.busy)
        assert await bench.counters(0) == (0, 0, 0)
        await bench.start()
        await bench.wait()
        check(bench, LAYERS)

    Bench().run(body)


def test_more_instructions_than_counters_are_refused():
    dut = Sequencer(replace(CONFIG, instructions=257), 256)
    with pytest.raises(ValueError, match="instructions is 257, must be at most 256"):
        rtlil.convert(dut)
