"""Drivers and monitors for ready/valid streams in Amaranth's simulator, with random stalls."""

import random
from collections.abc import Callable, Iterable
from typing import Any

from amaranth.hdl import Elaboratable
from amaranth.sim import Simulator

__all__ = ["collect", "feed", "simulate"]


def simulate(
    dut: Elaboratable, *testbenches: Callable[..., Any], background: Iterable[Any] = ()
) -> None:
    """Run ``testbenches`` to their ends; those in ``background`` are cut off then."""
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    for testbench in testbenches:
        simulator.add_testbench(testbench)
    for testbench in background:
        simulator.add_testbench(testbench, background=True)
    simulator.run()


def feed(port: Any, items: Iterable[Any], stall: float = 0.0, seed: int = 0) -> Callable[..., Any]:
    """Testbench that offers ``items``, pausing before each with probability ``stall`` a cycle."""

    async def testbench(ctx: Any) -> None:
        rng = random.Random(seed)
        for item in items:
            while rng.random() < stall:
                await ctx.tick()
            ctx.set(port.payload, item)
            ctx.set(port.valid, 1)
            await ctx.tick().until(port.ready)
            ctx.set(port.valid, 0)

    return testbench


def collect(
    port: Any,
    into: list[Any],
    count: int,
    counts: Callable[[Any], bool] = lambda payload: True,
    *,
    stall: float = 0.0,
    seed: int = 1,
    limit: int = 20_000,
) -> Callable[..., Any]:
    """Testbench that takes payloads until ``count`` of them satisfied ``counts``.

    AssertionError after ``limit`` cycles.
    """

    async def testbench(ctx: Any) -> None:
        rng = random.Random(seed)
        left = count
        for _ in range(limit):
            if left == 0:
                return
            ready = rng.random() >= stall
            ctx.set(port.ready, ready)
            _, _, valid, payload = await ctx.tick().sample(port.valid, port.payload)
            if ready and valid:
                into.append(payload)
                left -= bool(counts(payload))
        raise AssertionError(f"only {len(into)} items after {limit} cycles")

    return testbench
