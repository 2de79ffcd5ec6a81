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
    drain_cycles,
    predicted_cycles,
    predicted_stalls,
    predicted_total,
)
from trivet.hdl.overlap import with_early_starts

TINY = EngineConfig(
    lanes=4, simd=4, requantisers=2, act_banks=3, act_bank_words=32, weight_words=48,
    param_words=16, tables=2, addends=2, instructions=8,
)
END = Instruction(op=Op.END)


def shape(lanes, simd, requantisers):
    """Few tables: loading them takes longer than running layers."""
    return replace(TINY, lanes=lanes, simd=simd, requantisers=requantisers, tables=1, addends=1)


WINDOW = replace(TINY, act_bank_words=64, weight_words=64)

SHAPES = [shape(1, 1, 1), shape(2, 2, 2), shape(4, 4, 1), shape(4, 4, 2), shape(4, 4, 4),
          shape(8, 4, 2), shape(4, 8, 2), shape(2, 8, 1)]
SERIAL = [
    replace(shape(4, 2, 1), serial=1),
    replace(shape(2, 4, 1), serial=1, weight_spram=1, addends=0, expander=0, counters=0),
    replace(shape(1, 2, 1), serial=1, weight_spram=1, tables=0),
    replace(shape(2, 4, 1), serial=1, compact=1),
]


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

    async def load(self, instructions):
        """All that the instructions use, through the write port: a byte is a simulated cycle."""
        mem = self.memories
        weights = max(i.weights + (1 if i.weight_hold else i.blocks * i.slices)
                      for i in instructions)
        params = max(i.params + i.blocks * self.config.beats for i in instructions)
        for addr, word in enumerate(mem.act):
            await self.write(Space.ACT, addr, word.tolist())
        assert weights <= len(mem.weights)
        assert params <= self.config.param_words
        for addr, word in enumerate(mem.weights[:weights]):
            await self.write(Space.WGHT, addr, word.tobytes())
        channels = self.config.requantisers
        for addr in range(params):
            data = b"".join(mem.bias[k].tobytes() + mem.m[k].tobytes()
                            for k in range(addr * channels, (addr + 1) * channels))
            await self.write(Space.PARM, addr, data)
        for table in {i.table for i in instructions if i.has_table}:
            for k, byte in enumerate(mem.tables[table].tolist()):
                await self.write(Space.TABL, table * 256 + k, [byte])
        for addend in {i.addend for i in instructions if i.has_add}:
            for k, pair in enumerate(mem.addends[addend]):
                await self.write(Space.ADDT, addend * 256 + k, pair.tobytes())
        await self.load_code(instructions)

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
        await self.ctx.tick().repeat(2)
        value = self.ctx.get(self.engine.counter_data)
        return tuple(value >> shift & 0xFFFFFFFF for shift in (0, 32, 64))

    async def check(self, instructions, first=0, count=0):
        """Run, then compare memory with the model's and counters with the closed form."""
        part = instructions[first : first + count if count else None]
        part = part[: next((k for k, i in enumerate(part) if i.op == Op.END), len(part))]
        await self.start(first, count)
        # `done` comes in the cycle after the last of those counted.
        cycles, error = await self.wait(predicted_total(self.config, part) + 1)
        assert not error
        for instruction in part:
            execute(self.memories, instruction)
        found = await self.read()
        wrong = np.argwhere(found != self.memories.act)
        assert not len(wrong), f"{len(wrong)} bytes differ, first {wrong[:4].tolist()}"
        assert cycles == predicted_total(self.config, part)
        for k, instruction in enumerate(part, first):
            # The first layer of a run has none before it to overlap with.
            alone = instruction.early if k == first else 0
            expected = (
                predicted_cycles(self.config, instruction) + alone,
                instruction.work,
                predicted_stalls(self.config, instruction),
            )
            assert await self.counters(k) == (expected if self.config.counters else (0, 0, 0)), k


def run_program(config, instructions, seed=0, *, pairs=False):
    """Run it as a whole; before, if asked, each layer with its successor, to see every result."""
    instructions = with_early_starts(config, instructions)

    async def testbench(bench):
        await bench.load(instructions)
        for first in range(len(instructions) - 2 if pairs else 0):
            await bench.check(instructions, first, 2)
        await bench.check(instructions)

    Bench(config, seed).run(testbench)


def with_idle(config, **fields):
    """An instruction whose pixels leave the requantisers the time they need."""
    i = Instruction(**fields)
    return replace(i, idle=max(0, config.pixel_cycles - i.pitch))


def conv(config, channels=None, **fields):
    """A 3 x 3 convolution with uneven everything: from bank 0 to bank 1, two blocks."""
    channels = 5 if channels is None else channels
    words = -(-channels // config.word_bytes)
    out_words = -(-2 * config.lanes // config.word_bytes)
    values = {
        "op": Op.DOT, "src": 2, "dst": config.act_bank_words + 1, "weights": 1, "params": 1,
        "blocks": 2,
        "in_h": 3, "in_w": 4, "out_h": 2, "out_w": 2, "kernel_h": 3, "kernel_w": 2, "stride_h": 2,
        "stride_w": 2,
        "dilation_h": 1, "dilation_w": 2, "pad_top": 1, "pad_left": 1, "pixel_words": words,
        "out_pixel_words": out_words, "c_slices": -(-channels // config.simd), "zp_x": -7,
        "zp_y": 3, "lo": -100, "hi": 90,
    }
    return with_idle(config, **{**values, **fields})


def matrix(config, **fields):
    """One pixel, two blocks, two slices."""
    values = {
        "op": Op.DOT, "src": 1, "dst": config.act_bank_words, "weights": 0, "blocks": 2,
        "c_slices": 2,
        "pixel_words": 2, "out_pixel_words": 2,
    }
    return with_idle(config, **{**values, **fields})


def window(config, **fields):
    """A LANE layer of two blocks over 2 x 3 windows of a 3 x 4 image, padded on the left."""
    words = -(-2 * config.lanes // config.word_bytes)
    values = {
        "op": Op.LANE, "src": 3, "dst": 2 * config.act_bank_words + 2, "weights": 2,
        "blocks": 2, "in_h": 3, "in_w": 4,
        "out_h": 2, "out_w": 3, "kernel_h": 2, "kernel_w": 3, "pad_left": 1, "pixel_words": words,
        "out_pixel_words": words, "zp_x": -128,
    }
    return with_idle(config, **{**values, **fields})


def random_program(config, rng, count):
    """Layers, every other one of which begins with the last words of the one before."""
    layers = [random_layer(config, rng)]
    for k in range(1, count):
        before = layers[-1]
        written = before.pixels * before.out_pixel_words
        near_end = before.dst + max(0, written - int(rng.integers(1, 5)))
        layers.append(random_layer(config, rng, near_end if k % 2 else None))
    return layers


def random_layer(config, rng, src=None):
    """Any layer that the instruction set allows and the engine's memories hold."""
    bank = config.act_bank_words
    banks = rng.permutation(config.act_banks).tolist()
    room = bank
    if src is not None:
        banks.remove(src // bank)
        banks.insert(0, src // bank)
        room -= src % bank
    op = int(rng.choice([Op.DOT, Op.LANE]))
    kernel_h, kernel_w, in_h, in_w = (int(rng.integers(1, 4)) for _ in range(4))
    blocks, c_slices = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    channels = c_slices * config.simd if op == Op.DOT else blocks * config.lanes
    windowed = op == Op.LANE and config.has_window and rng.integers(0, 2)
    if windowed:
        kernel_h = kernel_w = 3
    if op == Op.LANE:
        c_slices = 1
    pixel_words = -(-channels // config.word_bytes) + int(rng.integers(0, 2))
    out_pixel_words = -(-blocks * config.lanes // config.word_bytes) + int(rng.integers(0, 2))
    source = in_h * in_w * pixel_words
    while source > room:
        if in_h == in_w == 1:
            return random_layer(config, rng)
        in_h, in_w = 1, max(1, in_w - 1)
        source = in_h * in_w * pixel_words
    if src is None:
        src = int(banks[0] * bank + rng.integers(0, bank - source + 1))
    out_h, out_w = (int(rng.integers(1, 4)) for _ in range(2))
    while out_h * out_w * out_pixel_words > bank:
        out_h, out_w = 1, max(1, out_w - 1)
    gap = int(rng.integers(0, 3)) if rng.integers(0, 2) else 0
    if out_h * (out_w * out_pixel_words + gap) > bank:
        gap = 0
    result = out_h * (out_w * out_pixel_words + gap)
    weight_hold = int(rng.integers(0, 2))
    slices = kernel_h * kernel_w * c_slices
    if blocks * slices > config.weight_words:
        weight_hold = 1
    used = 1 if weight_hold else blocks * slices
    lo, hi = sorted(int(v) for v in rng.integers(-128, 128, 2))
    lo_a, hi_a = sorted(int(v) for v in rng.integers(-128, 128, 2))
    x_unsigned = int(rng.integers(0, 2))
    fields = {}
    if windowed:
        fields = {"window": 1, "acc_max": 0, "dilation_w": 1, "pad_left": int(rng.integers(0, 2))}
    values = dict(  # noqa: C408 - long, and its names are keywords
        op=op, src=src,
        dst=int(banks[1] * bank + rng.integers(0, bank - result + 1)),
        src2=int(banks[2] * bank + rng.integers(0, bank - result + 1)),
        weights=int(rng.integers(0, config.weight_words - used + 1)),
        params=int(rng.integers(0, config.param_words - blocks * config.beats + 1)),
        blocks=blocks, out_h=out_h, out_w=out_w, kernel_h=kernel_h, kernel_w=kernel_w,
        c_slices=c_slices, in_h=in_h, in_w=in_w, pixel_words=pixel_words,
        out_pixel_words=out_pixel_words, out_row_gap=gap, stride_h=int(rng.integers(1, 3)),
        stride_w=int(rng.integers(1, 3)), dilation_h=int(rng.integers(1, 3)),
        dilation_w=int(rng.integers(1, 3)), pad_top=int(rng.integers(0, 3)),
        pad_left=int(rng.integers(0, 3)), zp_x=int(rng.integers(0, 256) - 128 * (1 - x_unsigned)),
        zp_y=int(rng.integers(-128, 128)), lo=lo, hi=hi, acc_max=int(rng.integers(0, 2)),
        weight_hold=weight_hold, x_unsigned=x_unsigned,
        has_add=int(rng.integers(0, 2)) if config.addends else 0,
        addend=int(rng.integers(0, max(config.addends, 1))),
        zp_a=int(rng.integers(-128, 128)), lo_a=lo_a, hi_a=hi_a,
        has_table=int(rng.integers(0, 2)) if config.tables else 0,
        table=int(rng.integers(0, max(config.tables, 1))),
    )
    return with_idle(config, **values | fields)


def name(config):
    kind = "s" * config.serial + "c" * config.compact
    return f"{config.lanes}x{config.simd}r{config.requantisers}{kind}"


@pytest.mark.parametrize("config", [*SHAPES, *SERIAL], ids=name)
def test_every_shape_of_engine_runs_random_layers(config):
    rng = np.random.default_rng(config.lanes * 100 + config.simd * 10 + config.requantisers)
    run_program(config, [*random_program(config, rng, 7), END], pairs=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("config", [*SHAPES, *SERIAL, shape(8, 16, 4), shape(16, 8, 4)], ids=name)
def test_many_random_layers(config, seed):
    config = replace(config, act_bank_words=64, weight_words=96, param_words=48, instructions=21)
    rng = np.random.default_rng(seed)
    run_program(config, [*random_program(config, rng, 20), END], seed, pairs=True)


def test_one_bank_and_odd_memory_depths():
    config = replace(TINY, act_banks=1, act_bank_words=64, weight_words=21, param_words=5)
    layers = [conv(config, 4, src=0, dst=40, kernel_h=2), matrix(config, src=40, dst=60)]
    run_program(config, [*layers, END])


def test_convolution_with_padding_stride_and_dilation():
    run_program(TINY, [conv(TINY, 7), END])


def test_unsigned_bytes_and_padding_above_127():
    run_program(TINY, [conv(TINY, x_unsigned=1, zp_x=200, lo=0, hi=255, zp_y=130), END])


def test_matrix_and_single_cycle_pixels():
    layers = [
        matrix(TINY),
        matrix(TINY, src=TINY.act_bank_words, dst=0, c_slices=1, weights=7, blocks=1),
        with_idle(TINY, src=0, dst=64, blocks=1, out_h=4, out_w=5, in_h=4, in_w=5),
    ]
    run_program(TINY, [*layers, END])


def test_dense_layers_overlap():
    """Each layer starts before the one before it has written its last word, as early as it may."""
    config = replace(TINY, lanes=2, requantisers=1, weight_words=100, param_words=32)
    layers = with_early_starts(config, [
        with_idle(config, src=32 * (k % 2), dst=32 - 32 * (k % 2), weights=9 * k, blocks=8,
                  params=k, c_slices=4, pixel_words=4, out_pixel_words=4)
        for k in range(4)
    ])
    assert [layer.early for layer in layers] == [0, 4, 4, 4]
    run_program(config, [*layers, END])


@pytest.mark.parametrize(("source", "skip", "bound"), [
    # Word 35 is written last and read by slice 5.
    ({"src": 30, "c_slices": 8}, {}, 6),
    # The bank of the skip tensor is free 11 cycles before the last byte.
    ({"src": 64, "c_slices": 20}, {"has_add": 1, "src2": 90}, 11),
], ids=["written word", "skip bank"])
def test_one_cycle_earlier_would_be_wrong(source, skip, bound):
    before = with_idle(TINY, src=2, dst=32, c_slices=4, pixel_words=4, in_w=4, out_w=4, **skip)
    after = Instruction(dst=0, weights=4, params=3, pixel_words=20, **source)
    layers = with_early_starts(TINY, [before, after, END])
    assert layers[1].early == bound
    run_exactly(layers)
    with pytest.raises(AssertionError, match="bytes differ"):
        run_exactly([before, replace(after, early=bound + 1), END])


def run_exactly(instructions):
    async def testbench(bench):
        await bench.load(instructions)
        await bench.check(instructions)

    Bench(TINY).run(testbench)


def test_depthwise_and_pools():
    layers = [
        window(TINY, zp_x=5),
        window(TINY, src=66, dst=40, weight_hold=1, acc_max=1, in_h=2, in_w=3, out_w=2),
        window(TINY, src=40, dst=0, weight_hold=1, in_h=2, in_w=2, out_h=1, out_w=1, pad_left=0,
               kernel_w=2),
    ]
    run_program(TINY, [*layers, END])


def columns(config, **fields):
    """A window layer of two blocks over a 4 x 5 image, padded all around."""
    return window(config, **{"window": 1, "kernel_h": 3, "in_h": 4, "in_w": 5, "out_h": 4,
                             "out_w": 5, "pad_top": 1, "src": 3, "dst": 70, "zp_x": 9, **fields})


WINDOWS = {
    "padded": {},
    "not padded": {"pad_top": 0, "pad_left": 0, "out_h": 2, "out_w": 3},
    "one column": {"in_w": 1, "out_w": 1, "src": 8},
    "one pixel": {"in_h": 1, "in_w": 1, "out_h": 1, "out_w": 1},
    "two columns": {"in_w": 2, "out_w": 2, "blocks": 3, "pixel_words": 3, "out_pixel_words": 3,
                    "dst": 66},
    "columns beyond the image": {"in_h": 2, "in_w": 2, "out_h": 3, "pad_left": 0},
    "strides": {"stride_h": 2, "stride_w": 2, "out_h": 2, "out_w": 3},
    "stride of three": {"stride_h": 3, "stride_w": 3, "out_h": 2, "out_w": 2, "pad_left": 0},
    "rows apart": {"dilation_h": 2, "out_h": 2, "pad_top": 2},
    "unsigned": {"x_unsigned": 1, "zp_x": 190, "lo": 0, "hi": 255, "zp_y": 90},
    "one weight word": {"weight_hold": 1},
    "add and table": {"has_add": 1, "src2": 150, "has_table": 1, "addend": 1, "src": 34, "in_h": 3,
                      "out_h": 3, "in_w": 4, "out_w": 4},
}


def test_windows():
    """Three taps a cycle, in every form, among layers that start before their sources are done."""
    programs = []
    for fields in WINDOWS.values():
        layer = columns(WINDOW, **fields)
        before = matrix(WINDOW, src=90, dst=layer.src - 1, weights=20)
        after = matrix(WINDOW, src=layer.dst + 2, dst=0, weights=12, x_unsigned=layer.x_unsigned)
        layers = [before, layer, replace(layer, dst=110), after, END]
        programs.append(with_early_starts(WINDOW, layers))
    assert max(i.early for layers in programs for i in layers if i.window) > 0

    async def testbench(bench):
        await bench.load([i for layers in programs for i in layers])
        for case, layers in zip(WINDOWS, programs, strict=True):
            await bench.load_code(layers)
            try:
                await bench.check(layers)
            except AssertionError as e:
                raise AssertionError(f"{case}: {e}") from e

    Bench(WINDOW).run(testbench)


def test_window_takes_a_third_of_the_cycles():
    layer = columns(WINDOW, blocks=1)
    assert layer.work == 4 * 6 * 3
    assert predicted_stalls(WINDOW, layer) == 0
    slow = replace(WINDOW, requantisers=1)
    assert predicted_stalls(slow, columns(slow, blocks=1)) == 4 * 4 * 1
    run_program(slow, [columns(slow), END])


def test_residual_add_and_table():
    fields = {"src2": 70, "addend": 1, "zp_a": -4, "lo_a": -120, "hi_a": 110, "table": 1}
    layers = [
        conv(TINY, dst=32, has_add=1, **fields),
        conv(TINY, src=32, dst=0, has_table=1, **fields),
        conv(TINY, src=0, dst=33, has_add=1, has_table=1, **fields),
        matrix(TINY, src=34, dst=5, has_add=1, src2=69),
    ]
    run_program(TINY, [*layers, END])


@pytest.mark.parametrize("config", [TINY, shape(4, 4, 1), shape(4, 4, 4), shape(8, 4, 2)], ids=name)
@pytest.mark.parametrize("unsigned", [False, True])
def test_products_of_two_tensors(config, unsigned):
    """Signed and unsigned factors at their limits, among other layers and early starts."""
    config = replace(config, act_bank_words=32, weight_words=48, param_words=48)
    low = 0 if unsigned else -128
    zp, at = 9 if unsigned else -119, 12
    code = with_idle(
        config, op=Op.LANE, src=3, dst=64, src2=36, weights=40, weight_hold=1, params=at, blocks=2,
        out_h=2, out_w=3, in_h=2, in_w=3, pixel_words=2, out_pixel_words=2, x_unsigned=unsigned,
        has_add=1, has_mul=1, zp_y=-3, zp_a=low + 200, lo_a=low, addend=0,
    )
    layers = [
        matrix(config, dst=36), code, replace(code, src=64, dst=2, src2=38, out_h=1, has_table=1),
        conv(config, src=2, dst=70), replace(code, src=70, src2=2, dst=36, out_w=1, idle=9),
        matrix(config, src=36, dst=10, has_add=1, src2=70),
    ]
    layers = with_early_starts(config, [*layers, END])
    assert max(i.early for i in layers) > 0

    async def testbench(bench):
        mem, channels = bench.memories, config.requantisers
        mem.weights[40] = 0
        mem.weights[40, :, 0] = 1
        used = slice(at * channels, (at + 2 * config.beats) * channels)
        mem.bias[used] = -zp
        mem.m[used.start : used.stop + channels] = np.float32(0.0071)
        mem.act[::3, ::2] = low & 255
        mem.act[1::5] = low + 255 & 255
        await bench.load([*layers, replace(code, params=at + 1)])
        for first in range(len(layers) - 2):
            await bench.check(layers, first, 2)
        await bench.check(layers)

    Bench(config).run(testbench)


def test_result_between_other_channels():
    """Concatenation: a layer writes some words of wider pixels and leaves the others alone."""
    layers = [conv(TINY, dst=34, out_pixel_words=4), conv(TINY, dst=32, out_pixel_words=4)]
    run_program(TINY, [*layers, END])


def test_default_engine_runs_a_layer():
    config = replace(DEFAULT, act_bank_words=16, weight_words=24, param_words=16, tables=1,
                     addends=1, instructions=4)
    layers = [
        conv(config, 16, in_h=2, in_w=2, pad_top=1, kernel_h=2, blocks=2, out_h=1),
        with_idle(config, src=17, dst=32, src2=1, blocks=1, out_w=2, in_w=2, c_slices=4,
                  pixel_words=2, has_add=1, has_table=1),
    ]
    run_program(config, [*layers, END])
    assert drain_cycles(config, layers[0]) == 31


def test_runs_follow_one_another():
    """`first` and `count`, back to back, without END, and an END met at once."""
    layers = with_early_starts(TINY, [
        conv(TINY), matrix(TINY, src=33, dst=64), window(TINY, src=64, dst=3, in_w=2), END])
    assert layers[2].early > 0

    async def testbench(bench):
        await bench.load(layers)
        await bench.check(layers)
        await bench.check(layers, first=1)
        await bench.check(layers, first=0, count=1)
        await bench.check(layers, first=1, count=2)
        await bench.check(layers, first=2, count=9)
        await bench.start(first=3)
        assert await bench.wait() == (START_CYCLES - 1, 0)
        # The next start may come in the very cycle of `done`.
        await bench.check(layers)

    Bench(TINY).run(testbench)


def test_clear_in_the_middle_leaves_nothing_behind():
    layers = [conv(TINY), matrix(TINY, src=33, dst=64, has_add=1, src2=1), END]

    async def testbench(bench):
        await bench.load(layers)
        for cycles in (1, 4, 8, 9, 10, 15, 22, 30, 41, 56):
            await bench.start()
            await bench.ctx.tick().repeat(cycles)
            bench.ctx.set(bench.engine.clear, 1)
            await bench.ctx.tick()
            bench.ctx.set(bench.engine.clear, 0)
            await bench.ctx.tick()
            assert not bench.ctx.get(bench.engine.busy)
            for k in range(len(layers)):
                assert await bench.counters(k) == (0, 0, 0)
            # What the cut run has written is written again, the sources are as they were.
            await bench.check(layers)

    Bench(TINY).run(testbench)


def failing(*programs, layer, config=TINY, **options):
    """Errors are reported within a bound, name the instruction, and leave a working engine."""
    good = [matrix(config), END]

    async def testbench(bench):
        await bench.load(good)
        for program in programs:
            await bench.load_code(program)
            await bench.start()
            _, error = await bench.wait(2000)
            assert error, program
            found = bench.ctx.get(bench.engine.layer)
            assert found == layer, program
            await bench.ctx.tick().repeat(60)
            assert bench.ctx.get(bench.engine.error)
            bench.memories.act[:] = await bench.read()
            await bench.load_code(good)
            await bench.check(good)
            assert not bench.ctx.get(bench.engine.error)

    Bench(config, **options).run(testbench)


INVALID = [
    {"op": 3}, {"op": 15}, {"blocks": 0}, {"out_h": 0}, {"out_w": 0}, {"kernel_h": 0},
    {"kernel_w": 0}, {"c_slices": 0}, {"window": 1},
    {"window": 1, "op": Op.LANE}, {"window": 1, "kernel_h": 3}, {"has_mul": 1},
]


def test_invalid_instruction_is_an_error():
    failing(*([matrix(TINY), replace(matrix(TINY), **fields), END] for fields in INVALID), layer=1)


@pytest.mark.parametrize(("without", "fields"), [
    ({"tables": 0}, {"has_table": 1}),
    ({"addends": 0}, {"has_add": 1}),
    ({"addends": 0}, {"has_add": 1, "has_mul": 1}),
    ({"serial": 1, "requantisers": 1}, {"has_add": 1, "has_mul": 1}),
], ids=str)
def test_what_the_engine_is_without_is_an_error(without, fields):
    layer = replace(matrix(TINY), src2=TINY.act_bank_words, **fields)
    failing([layer, END], layer=0, config=replace(TINY, **without))


def test_engine_of_few_multipliers_has_no_windows():
    config = replace(TINY, simd=2)
    failing([columns(config), END], layer=0, config=config)


def test_first_instruction_may_be_the_invalid_one():
    failing([replace(matrix(TINY), op=9), END], layer=0)


def test_missing_end_is_an_error():
    failing([matrix(TINY)] * TINY.instructions, layer=TINY.instructions)


def test_too_few_idle_cycles_are_an_error():
    config_layer = matrix(TINY, c_slices=1, out_w=4, in_w=4, pixel_words=1)
    failing([replace(config_layer, idle=0), END], layer=0)


def test_too_early_start_is_an_error():
    """Write-back serves one layer at a time; the engine does not trust the program with that."""
    short = matrix(TINY, blocks=1, c_slices=1, early=15)
    failing([short, short, short, END], layer=1)


def test_stuck_layer_is_an_error():
    failing([matrix(TINY), conv(TINY, out_h=3, out_w=200), END], layer=1, cycles_limit=256)


def test_small_configuration_is_what_the_tests_resemble():
    assert name(SMALL) == name(TINY)
