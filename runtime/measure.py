"""What a stage takes on an inline device, alone: seconds of items of zeros."""

from __future__ import annotations

import math
import time

from .device import Buffer, InlineDevice, Stage

__all__ = ["item_seconds"]


def item_seconds(
    device: InlineDevice, stage: Stage, count: int, *, least: int = 0, limit: float = math.inf
) -> list[float]:
    """Seconds of ``count`` items: fewer if they take longer than ``limit``, but ``least`` of them.

    One more comes before them and is left out: it pays for what happens once. An error of the
    device is raised.
    """
    inputs = [Buffer.zeros(spec) for spec in stage.inputs]
    found: list[float] = []
    until = time.perf_counter() + limit
    while len(found) <= least or (len(found) <= count and time.perf_counter() < until):
        began = time.perf_counter()
        done = device.compute(0, inputs)
        found.append(time.perf_counter() - began)
        if done.error is not None:
            raise done.error
    return found[1:]
