"""How early a layer may start: while the one before it still writes its last words.

The engine does what the instruction's ``early`` field says and checks nothing, since all of it is
known beforehand: the pipeline never stalls, so each read and each write has its cycle. Pure data,
without Amaranth.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .config import EngineConfig
from .isa import Instruction, Op, drain_cycles
from .latency import ADDEND

__all__ = ["EARLY_MAX", "early_start", "with_early_starts", "with_restarts"]

# What the field holds.
EARLY_MAX = 31
# The same for engines that fetch only then (`compact`): so that the instruction is there in time,
# after an END as well.
_EARLY_MAX_COMPACT = 15
# Cycles from the last slice of a layer to the first of the next, at the least: the address
# generator takes the instruction, its loops are set.
_TURN_AROUND = 3
# Cycles from taking the last instruction of a run to the first slice of a run behind it, at the
# least: END is fetched, then the next run's first instruction.
_RESTART = 18

# The last skip read of a layer comes so many cycles before its last write, and would win against a
# read of the next layer in the same bank.
_SKIP_AHEAD = ADDEND + 6


def _first_reads(config: EngineConfig, i: Instruction, count: int) -> list[int | None]:
    """Words that the first ``count`` slices read, None where they lie in the padding."""
    words: list[int | None] = []
    step = config.simd if i.op == Op.DOT else config.lanes
    for k in range(count):
        tap, channel_slice = divmod(k, i.c_slices)
        ky, kx = divmod(tap, i.kernel_w)
        y, x = ky * i.dilation_h - i.pad_top, kx * i.dilation_w - i.pad_left
        if i.window:  # columns of three words, from the image's first on
            x, ky = divmod(k, i.kernel_h)
            y = ky * i.dilation_h - i.pad_top
        inside = 0 <= y < i.in_h and 0 <= x < i.in_w
        channel = (channel_slice if i.op == Op.DOT else 0) * step
        word = i.src + (y * i.in_w + x) * i.pixel_words + channel // config.word_bytes
        words.append(word & 0xFFFF if inside else None)
    return words


def _last_writes(config: EngineConfig, i: Instruction, cycles: int) -> list[tuple[int, int]]:
    """Words written in the last cycles of a layer: (cycles before its last write, word)."""
    words = []
    ahead = 0
    for k in reversed(range(i.blocks * i.pixels)):
        if ahead >= cycles:
            break
        block, pixel = divmod(k, i.pixels)
        row = pixel // i.out_w
        offset = pixel * i.out_pixel_words + row * i.out_row_gap
        offset += block * config.lanes // config.word_bytes
        words.append((ahead, (i.dst + offset) & 0xFFFF))
        ahead += _first_pixel(i) if i.window and pixel % i.out_w == 0 else i.pitch + i.idle
    return words


def _first_pixel(i: Instruction) -> int:
    """Slices up to the first result, of the layer and, with ``window``, of every row."""
    return i.slices * (1 + i.derived()["prime"])


def early_start(config: EngineConfig, before: Instruction, after: Instruction) -> int:
    """Cycles that ``after`` may start ahead of the last byte written by ``before``.

    Slice s of ``after`` reads s + 2 cycles after its start; started e cycles early, it must come
    after the write that is j cycles ahead of the last one: e <= s + j + 1, for every word that both
    touch. Besides, the first pixel of ``after`` must not be complete before ``before`` is done
    (write-back serves one layer at a time): e <= its slices.
    """
    most = _EARLY_MAX_COMPACT if config.compact else EARLY_MAX
    early = min(most, drain_cycles(config, before) - _TURN_AROUND, _first_pixel(after))
    if before.has_add:
        early = min(early, _SKIP_AHEAD)
    reads = _first_reads(config, after, early)
    for ahead, word in _last_writes(config, before, early):
        for k, read in enumerate(reads):
            if read == word:
                early = min(early, k + ahead + 1)
    return max(early, 0)


def with_early_starts(
    config: EngineConfig, instructions: Iterable[Instruction], cut: int = 0
) -> tuple[Instruction, ...]:
    """The same program with the largest ``early`` that is right for each instruction.

    ``cut``: a run may end before this instruction, and another begin with it.
    """
    program = list(instructions)
    for k in range(1, len(program)):
        before, after = program[k - 1], program[k]
        if Op.END not in (before.op, after.op):
            early = early_start(config, before, after)
            if k == cut:
                early = min(early, _fetched(config, before))
            program[k] = replace(after, early=early)
    return tuple(program)


def _fetched(config: EngineConfig, last: Instruction) -> int:
    """How early the first layer of a run can be ready that follows the last one of another."""
    return max(drain_cycles(config, last) + last.work - _RESTART, 0)


def with_restarts(
    config: EngineConfig, forms: Iterable[Iterable[Instruction]]
) -> list[tuple[Instruction, ...]]:
    """Forms of a program, each with the ``early`` of its first instruction behind any of them.

    In a run on its own that ``early`` is ignored.
    """
    programs = [tuple(form) for form in forms]
    found = []
    for program in programs:
        first = program[0]
        early = EARLY_MAX
        for before in programs:
            last = before[-1]
            early = min(early, early_start(config, last, first), _fetched(config, last))
        found.append((replace(first, early=early), *program[1:]))
    return found
