"""The address generator walks a layer as nested Python loops do."""

from dataclasses import replace

import pytest
from amaranth.sim import Simulator

from trivet.hdl.address import AddressGenerator
from trivet.hdl.config import EngineConfig
from trivet.hdl.isa import Instruction, Op
from trivet.hdl.sequencer import instruction_layout

COMPACT = EngineConfig(
    lanes=2, simd=4, requantisers=1, act_banks=4, act_bank_words=16384, serial=1, compact=1)
WIDE = EngineConfig(lanes=8, simd=4, requantisers=2)
DEEP = EngineConfig(lanes=2, simd=8, requantisers=2)


def walk(config, i):
    """One tuple a cycle or None: addr, part, pad, weight, first, last, block_last, layer_last,
    blind; None in it is anything.
    """
    cycles = []
    for block in range(i.blocks):
        for oy in range(i.out_h):
            if i.window:
                cycles += row(config, i, block, oy)
                continue
            for ox in range(i.out_w):
                final = (oy, ox) == (i.out_h - 1, i.out_w - 1)
                for k in range(i.slices):
                    tap, cs = divmod(k, i.c_slices)
                    ky, kx = divmod(tap, i.kernel_w)
                    y = oy * i.stride_h + ky * i.dilation_h - i.pad_top
                    x = ox * i.stride_w + kx * i.dilation_w - i.pad_left
                    byte = cs * config.simd if i.op == Op.DOT else block * config.lanes
                    size = config.simd if i.op == Op.DOT else config.lanes
                    word, rest = divmod(byte, config.word_bytes)
                    last = k == i.slices - 1
                    cycles.append((
                        (i.src + (y * i.in_w + x) * i.pixel_words + word) % 65536,
                        rest // size if size < config.word_bytes else None,
                        int(not (0 <= y < i.in_h and 0 <= x < i.in_w)),
                        i.weights + (0 if i.weight_hold else block * i.slices + k),
                        int(k == 0), int(last), int(last and final),
                        int(last and final and block == i.blocks - 1), None,
                    ))
                cycles += [None] * i.idle
    return cycles[: len(cycles) - (0 if i.window else i.idle)]


def row(config, i, block, oy):
    """A row of a window layer; ends with `blind`: its last tap lies left of the image."""
    cycles = []
    part = block * config.lanes % config.word_bytes // config.lanes
    final = oy == i.out_h - 1
    for x in range((i.out_w - 1) * i.stride_w + 3 - i.pad_left):
        ox, rest = divmod(x + i.pad_left - 2, i.stride_w)
        result = ox >= 0 and rest == 0
        for ky in range(3):
            y = oy * i.stride_h + ky * i.dilation_h - i.pad_top
            last = result and ky == 2
            word = block * config.lanes // config.word_bytes
            cycles.append((
                (i.src + (y * i.in_w + x) * i.pixel_words + word) % 65536,
                part if config.lanes < config.word_bytes else None,
                int(not (0 <= y < i.in_h and x < i.in_w)),
                i.weights + (0 if i.weight_hold else block * 3 + ky),
                int(ky == 0), int(last), int(last and final and ox == i.out_w - 1),
                int(last and final and ox == i.out_w - 1 and block == i.blocks - 1),
                int(x == 1) if result and i.pad_left else 0 if result else None,
            ))
        if result and ox < i.out_w - 1:
            cycles += [None] * i.idle
    return cycles


def layers():
    window = Instruction(op=Op.LANE, src=40, weights=9, window=1, blocks=2, out_h=3, out_w=2,
                         kernel_h=3, kernel_w=3, in_h=4, in_w=5, pixel_words=3)
    base = Instruction(src=40, weights=9, blocks=2, out_h=3, out_w=2, kernel_h=2, kernel_w=3,
                       c_slices=3, in_h=4, in_w=5, pixel_words=3)
    padded = replace(base, stride_h=2, stride_w=3, dilation_h=2, dilation_w=2, pad_top=3,
                     pad_left=4)
    return [
        base, padded,
        replace(padded, idle=1, blocks=3), replace(padded, idle=5, weight_hold=1),
        replace(base, op=Op.LANE, c_slices=1, blocks=5, idle=2),
        replace(padded, op=Op.LANE, c_slices=1, weight_hold=1, blocks=1),
        window, replace(window, pad_left=1, pad_top=1, idle=2, out_w=5),
        replace(window, pad_left=1, in_w=1, out_w=1, weight_hold=1, stride_h=2, dilation_h=2),
        replace(window, stride_w=2, idle=1, pad_left=1), replace(window, stride_w=3, blocks=3),
        Instruction(), Instruction(src=65535, idle=3, blocks=7, out_w=4),
        replace(base, pad_top=255, pad_left=255, src=0, out_h=2, blocks=1),
    ]


@pytest.mark.parametrize("config", [WIDE, DEEP, COMPACT], ids=["wide", "deep", "compact"])
def test_slices_follow_the_definition(config):
    dut = AddressGenerator(config)
    names = ("addr", "part", "pad", "weight", "first", "last", "block_last", "layer_last",
             "blind")

    def check(ctx, where, slice_):
        """The outputs two cycles after the slice was issued."""
        assert ctx.get(dut.valid) == (slice_ is not None), where
        if slice_ is None:
            assert ctx.get(dut.last) == 0, where
            return
        found = [ctx.get(getattr(dut, name)) for name in names]
        for name, have, want in zip(names, found, slice_, strict=True):
            # Padding may point anywhere; a word of one part has no part to choose.
            if want is not None and not (name in ("addr", "part") and slice_[2]):
                assert have == want, (*where, name)

    async def testbench(ctx):
        # Behind a serial requantiser there are no windows.
        found = [i for i in layers() if config.has_window or not i.window]
        for number, instruction in enumerate(found):
            bits = int.from_bytes(instruction.encode(), "little")
            ctx.set(dut.instruction, instruction_layout().from_bits(bits))
            ctx.set(dut.load, 1)
            await ctx.tick().repeat(1 + number % 2)
            ctx.set(dut.go, 1)
            await ctx.tick()
            ctx.set(dut.load, 0)
            ctx.set(dut.go, 0)
            expected = walk(config, instruction)
            for cycle, slice_ in enumerate(expected):
                where = (number, cycle)
                assert ctx.get(dut.issuing) == (slice_ is not None), where
                assert ctx.get(dut.idling) == (slice_ is None), where
                assert ctx.get(dut.finish) == (cycle == len(expected) - 1), where
                await ctx.tick()
                check(ctx, where, expected[cycle - 1] if cycle else None)
            await ctx.tick()
            check(ctx, (number, len(expected)), expected[-1])
            for _ in range(4):
                assert not ctx.get(dut.issuing)
                assert not ctx.get(dut.idling)
                await ctx.tick()
                assert not ctx.get(dut.last)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
