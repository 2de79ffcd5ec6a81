"""The UART bit by bit, at rates that are not quite right, with noise and broken frames."""

import random

import pytest
from amaranth.hdl import *
from amaranth.sim import Simulator

from trivet.hdl.board.uart import Uart, UartReceiver, UartTransmitter, phase

RATES = [  # clock, baud: cycles a bit 6, 8, 33.3, 43.4
    (18_000_000, 3_000_000),
    (24_000_000, 3_000_000),
    (100_000_000, 3_000_000),
    (5_000_000, 115_200),
]


@pytest.mark.parametrize(
    ("clock_hz", "baud"), [*RATES, (125_000_000, 9_600), (12_000_000, 115_200)])
def test_the_accumulator_meets_the_rate(clock_hz, baud):
    width, step = phase(clock_hz, baud)
    assert step * clock_hz / (1 << width) == pytest.approx(baud, rel=1 / 2000)
    assert width <= 21
    assert 0 < step < 1 << width


@pytest.mark.parametrize("baud", [0, 3_000_001, 12_000_000])
def test_a_rate_too_fast_for_the_clock_is_refused(baud):
    with pytest.raises(ValueError, match=r"uart: .* baud at 18 MHz is .* choose a lower rate"):
        phase(18_000_000, baud)


def frame(byte, stop=1):
    return [0, *((byte >> k) & 1 for k in range(8)), stop]


def run(dut, *benches, cycles_hz):
    sim = Simulator(dut)
    sim.add_clock(1 / cycles_hz)
    for bench in benches[:-1]:
        sim.add_testbench(bench, background=True)
    sim.add_testbench(benches[-1])
    sim.run()


def line_driver(port, bits, seconds, *, offset=0.0):
    """Puts bits on a line for ``seconds`` each, from ``offset`` seconds on, at any phase."""
    async def drive(ctx):
        await ctx.delay(offset + 1e-9)
        for bit in bits:
            ctx.set(port, bit)
            await ctx.delay(seconds)
        ctx.set(port, 1)
        await ctx.delay(12 * seconds)
    return drive


@pytest.mark.parametrize(("clock_hz", "baud"), RATES)
@pytest.mark.parametrize("mismatch", [-0.02, 0.0, 0.02])
@pytest.mark.parametrize("gap", [0, 1, 5])
def test_bytes_are_received_at_rates_two_percent_off(clock_hz, baud, mismatch, gap):
    rng = random.Random(f"{clock_hz} {mismatch} {gap}")
    dut = UartReceiver(clock_hz, baud)
    sent = [0x00, 0xFF, 0x55, 0xAA, *(rng.randrange(256) for _ in range(12))]
    bits = [b for byte in sent for b in [*frame(byte), *[1] * gap]]
    got = []

    async def watch(ctx):
        async for _, _, valid, data, error in ctx.tick().sample(dut.valid, dut.data, dut.error):
            assert not error
            if valid:
                got.append(data)

    seconds = (1 + mismatch) / baud
    run(dut, watch, line_driver(dut.rx, bits, seconds, offset=rng.random() / baud),
        cycles_hz=clock_hz)
    assert got == sent


def test_a_frame_without_stop_bit_is_dropped_and_the_next_one_received():
    clock_hz, baud = RATES[1]
    dut = UartReceiver(clock_hz, baud)
    bits = [*frame(0x31), *frame(0x32, stop=0), 0, 0, 0, 1, *frame(0x33), 1]
    got = []

    async def watch(ctx):
        async for _, _, valid, data, error in ctx.tick().sample(dut.valid, dut.data, dut.error):
            if valid or error:
                got.append("error" if error else data)

    run(dut, watch, line_driver(dut.rx, bits, 1 / baud), cycles_hz=clock_hz)
    assert got == [0x31, "error", 0x33]


def test_noise_shorter_than_half_a_bit_starts_nothing():
    clock_hz, baud = RATES[2]
    dut = UartReceiver(clock_hz, baud)
    got = []

    async def watch(ctx):
        async for _, _, valid, data, error in ctx.tick().sample(dut.valid, dut.data, dut.error):
            if valid or error:
                got.append("error" if error else data)

    # In thirds of a bit.
    bits = [0, 1, 1, 1, 1, 1, *(b for bit in [*frame(0x5A), 1] for b in [bit] * 3)]
    run(dut, watch, line_driver(dut.rx, bits, 1 / 3 / baud), cycles_hz=clock_hz)
    assert got == [0x5A]


@pytest.mark.parametrize(("clock_hz", "baud"), RATES)
def test_bytes_are_sent_with_every_bit_in_its_place(clock_hz, baud):
    """Back to back: each bit's middle is where its number says, counted from its start bit."""
    dut = UartTransmitter(clock_hz, baud)
    sent = [0x00, 0xFF, 0xA5, 0x5A, 0x01, 0x80]
    per_bit = clock_hz / baud
    levels = []

    async def feed(ctx):
        ctx.set(dut.i.valid, 1)
        for byte in sent:
            ctx.set(dut.i.payload, byte)
            await ctx.tick().until(dut.i.ready)
        ctx.set(dut.i.valid, 0)

    async def watch(ctx):
        for _ in range(round(per_bit * 10 * (len(sent) + 1))):
            levels.append(ctx.get(dut.tx))
            await ctx.tick()

    run(dut, feed, watch, cycles_hz=clock_hz)
    at, got = 0, []
    for _ in sent:
        start = levels.index(0, at)
        assert at == 0 or start - at <= 2  # no pause but the cycle in which the byte is taken
        bits = [levels[start + int((k + 0.5) * per_bit)] for k in range(10)]
        edges = [levels[start + round(k * per_bit) + d] for k in range(10) for d in (1, -2)][:-1]
        assert edges[::2] == bits
        assert bits[0] == 0
        assert bits[9] == 1
        got.append(sum(bit << k for k, bit in enumerate(bits[1:9])))
        at = start + int(10 * per_bit)
    assert got == sent


def loop(depth):
    """A UART whose line is closed upon itself."""
    m = Module()
    m.submodules.uart = uart = Uart(24_000_000, 3_000_000, depth)
    m.d.comb += uart.rx.eq(uart.tx)
    return m, uart


def test_bytes_wait_in_the_fifo_until_they_are_taken():
    m, uart = loop(16)
    sent = list(range(100, 116))
    got = []

    async def feed(ctx):
        ctx.set(uart.i.valid, 1)
        for byte in sent:
            ctx.set(uart.i.payload, byte)
            await ctx.tick().until(uart.i.ready)
        ctx.set(uart.i.valid, 0)

    async def take(ctx):
        await ctx.tick().repeat(16 * 90)
        assert ctx.get(uart.o.valid)
        ctx.set(uart.o.ready, 1)
        while len(got) < len(sent):
            *_, byte = await ctx.tick().sample(uart.o.payload).until(uart.o.valid)
            got.append(byte)

    run(m, feed, take, cycles_hz=24e6)
    assert got == sent


def test_what_overflows_the_fifo_is_told():
    m, uart = loop(4)
    errors = []

    async def feed(ctx):
        ctx.set(uart.i.valid, 1)
        for byte in range(16):
            ctx.set(uart.i.payload, byte)
            await ctx.tick().until(uart.i.ready)
        ctx.set(uart.i.valid, 0)

    async def watch(ctx):
        for _ in range(17 * 90):
            *_, error = await ctx.tick().sample(uart.error)
            errors.append(error)

    run(m, feed, watch, cycles_hz=24e6)
    # The FIFO's four and the buffer's two and the one in between.
    assert sum(errors) == 16 - 4 - 2
