"""The instruction set as loops over bytes, straight from its definition: judges the engine.

Slow and plain on purpose; shares nothing with the reference machine. Requantising is golden's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from golden import requant

Array = npt.NDArray[Any]


@dataclass
class Memories:
    """Contents of an engine's memories; ``config`` is an ``EngineConfig``."""

    config: Any
    act: Array  # uint8 [act_words, word_bytes]
    weights: Array  # int8 [weight_words, lanes, simd]
    bias: Array  # int32 [channels], channel = params word * requantisers + index
    m: Array  # float32 [channels]
    tables: Array  # uint8 [tables, 256]
    addends: Array  # int32 [addends, 256, 2]

    @classmethod
    def random(cls, config: Any, rng: np.random.Generator) -> Memories:
        channels = config.param_words * config.requantisers
        lanes, simd = config.lanes, config.simd
        return cls(
            config,
            rng.integers(0, 256, (config.act_words, config.word_bytes), dtype=np.uint8),
            rng.integers(-128, 128, (config.weight_words, lanes, simd), dtype=np.int8),
            rng.integers(-3000, 3000, channels, dtype=np.int32),
            (2.0 ** rng.uniform(-11, -6, channels)).astype(np.float32),
            rng.integers(0, 256, (config.tables, 256), dtype=np.uint8),
            rng.integers(-(100 << 16), 100 << 16, (config.addends, 256, 2), dtype=np.int32),
        )


def execute(mem: Memories, i: Any) -> None:
    """Run one instruction on ``mem.act``."""
    c = mem.config
    source = mem.act.copy()
    flat = source.reshape(-1).astype(np.int64)
    if not i.x_unsigned:
        flat = flat.astype(np.uint8).view(np.int8).astype(np.int64)
    slices = i.kernel_h * i.kernel_w * i.c_slices
    taps = i.kernel_w if i.window else 1  # of a weight word
    for block in range(i.blocks):
        for pixel in range(i.out_h * i.out_w):
            oy, ox = divmod(pixel, i.out_w)
            totals = np.zeros((slices, c.lanes), np.int64)
            for k in range(slices):
                tap, cs = divmod(k, i.c_slices)
                ky, kx = divmod(tap, i.kernel_w)
                y = oy * i.stride_h + ky * i.dilation_h - i.pad_top
                x = ox * i.stride_w + kx * i.dilation_w - i.pad_left
                n = c.simd if i.op == 1 else c.lanes
                byte = (cs if i.op == 1 else block) * n
                if 0 <= y < i.in_h and 0 <= x < i.in_w:
                    start = (i.src + (y * i.in_w + x) * i.pixel_words) * c.word_bytes + byte
                    data = flat[start : start + n]
                else:
                    data = np.full(n, i.zp_x, np.int64)
                word = i.weights + (0 if i.weight_hold else (block * slices + k) // taps)
                w = mem.weights[word].astype(np.int64)
                own = taps - 1 - kx if i.window else 0
                totals[k] = (w * data).sum(1) if i.op == 1 else w[:, own] * data
            sums = totals.max(0) if i.acc_max else totals.sum(0)
            channel = i.params * c.requantisers + block * c.lanes + np.arange(c.lanes)
            total = sums + mem.bias[channel]
            offset = pixel * i.out_pixel_words + oy * i.out_row_gap
            place = (i.dst + offset) * c.word_bytes + block * c.lanes
            skip = (i.src2 + offset) * c.word_bytes + block * c.lanes
            b = source.reshape(-1)[skip : skip + c.lanes]
            if i.has_mul:
                total = total * ((b.view(np.int8) if i.lo_a < 0 else b).astype(np.int64) - i.zp_a)
            y8 = requant(total, mem.m[channel], i.zp_y, i.lo, i.hi)
            if i.has_add and not i.has_mul:
                t = mem.addends[i.addend].astype(np.int64)
                y8 = np.clip(((t[y8 & 255, 0] + t[b, 1]) >> 16) + i.zp_a, i.lo_a, i.hi_a)
            out = (y8 & 255).astype(np.uint8)
            if i.has_table:
                out = mem.tables[i.table][out]
            mem.act.reshape(-1)[place : place + c.lanes] = out
