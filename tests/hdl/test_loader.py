"""Areas are judged before they are touched, written and read a byte at a time."""

import random

import pytest
from streams import collect, feed, simulate

from trivet.hdl.config import DEFAULT, SMALL, EngineConfig
from trivet.hdl.loader import Extent, Loader, Peeker, memories
from trivet.hdl.mover import Mover


def last_word(word_bytes, address, run, count):
    """Word after the last that an area touches, by walking its bytes."""
    word, byte, left = address, 0, run or count + 1
    for _ in range(count):
        byte, left = byte + 1, left - 1
        if byte == word_bytes or left == 0:
            word, byte = word + 1, 0
        if left == 0:
            left = run
    return word + (byte != 0)


def one_of(kind, is_shared, config, *arguments):
    """An extent, loader or peeker and what to simulate for it: itself, or the mover it is in."""
    if is_shared:
        mover = Mover(config, *(arguments or (1,)))
        return getattr(mover, kind.__name__.lower()), mover
    part = kind(config, *arguments)
    return part, part


def set_area(ctx, dut, **area):
    """A mover looks at the area of its extent."""
    ctx.set((dut.extent if isinstance(dut, Mover) else dut).area, area)


shared = pytest.mark.parametrize("is_shared", [False, True], ids=["apart", "mover"])


@shared
@pytest.mark.parametrize("config", [SMALL, DEFAULT], ids=["4x4", "16x8"])
def test_extent_is_exact_at_every_memory_end(config, is_shared):
    rng = random.Random(2)
    cases = []
    for space, (_, size, words) in enumerate(memories(config)):
        for _ in range(12):
            run, count = rng.choice((0, 1, 3, size, 17, 2000)), rng.randrange(1, 200)
            used = last_word(size, 0, run, count)
            for slack in (-1, 0, 1):
                address = words - used - slack
                if address >= 0:
                    cases.append((space, address, run, count, slack >= 0))
    cases += [
        (6, 0, 0, 1, False),
        (255, 0, 0, 1, False),
        (0, 1 << 16, 0, 1, False),
        (0, (1 << 32) - 1, 0, 4, False),
        (0, 0, 0, 0, True),
    ]
    dut, whole = one_of(Extent, is_shared, config)

    async def testbench(ctx):
        for space, address, run, count, inside in cases:
            set_area(ctx, whole, space=space, address=address, run=run, count=count)
            await ctx.tick()
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            for _ in range(1100):
                if ctx.get(dut.done):
                    break
                await ctx.tick()
            assert ctx.get(dut.done)
            assert ctx.get(dut.inside) == inside, (space, address, run, count)
            await ctx.tick()

    simulate(whole, testbench)


@shared
@pytest.mark.parametrize(("space", "run"), [(0, 0), (0, 3), (0, 5), (1, 0), (3, 0), (5, 0)])
def test_loader_writes_bytes_in_order(space, run, is_shared):
    size = memories(SMALL)[space].word_bytes
    text = random.Random(space).randbytes(3 * size + 2)
    dut, whole = one_of(Loader, is_shared, SMALL)
    written = []

    async def watch(ctx):
        ctx.set(dut.write_ready, 1)
        ctx.set(dut.write_idle, 1)
        set_area(ctx, whole, space=space, address=7, run=run, count=len(text))
        await ctx.tick()
        ctx.set(dut.start, 1)
        await ctx.tick()
        ctx.set(dut.start, 0)
        port = (dut.write_addr, dut.write_byte, dut.write_data)
        is_done = False
        while not is_done:
            _, _, is_done, enable, where, *write = await ctx.tick().sample(
                dut.done, dut.write_en, dut.write_space, *port)
            if enable:
                assert where == space
                written.append(tuple(write))

    simulate(whole, watch, feed(dut.i, text, stall=0.3))
    expected, word, byte, left = [], 7, 0, run or len(text) + 1
    for value in text:
        expected.append((word, byte, value))
        byte, left = byte + 1, left - 1
        if byte == size or left == 0:
            word, byte = word + 1, 0
        left = left or run
    assert written == expected


@shared
@pytest.mark.parametrize("latency", [1, 2, 4])
def test_peeker_waits_for_the_memory(latency, is_shared):
    dut, whole = one_of(Peeker, is_shared, SMALL, latency)
    memory = [random.Random(k).randrange(1 << 32) for k in range(40)]
    sent = []

    async def read_port(ctx):
        answers = [0] * (latency + 1)
        while True:
            _, _, enable, address = await ctx.tick().sample(dut.read_en, dut.read_addr)
            answers = [*answers[1:], memory[address] if enable else 0xDEADBEEF]
            ctx.set(dut.read_data, answers[1])

    async def start(ctx):
        ctx.set(dut.read_ready, 1)
        set_area(ctx, whole, space=0, address=4, run=6, count=20)
        await ctx.tick()
        ctx.set(dut.start, 1)
        await ctx.tick()
        ctx.set(dut.start, 0)

    simulate(whole, start, collect(dut.o, sent, 20, stall=0.4), background=[read_port])
    image = b"".join(w.to_bytes(4, "little") for w in memory[4:])
    assert bytes(sent) == image[0:6] + image[8:14] + image[16:22] + image[24:26]


def test_words_too_wide_for_the_link_are_refused():
    config = EngineConfig(lanes=32, simd=16)
    with pytest.raises(ValueError, match="WGHT has 512 bytes, the host link addresses at most 256"):
        memories(config)
