"""Static allocation of activation words: every tensor of a program gets one place for its life.

Rules (the engine relies on them, ``hdl/isa.py``): tensors that live at the same time do not
overlap; a layer never writes where it reads; source and skip tensor of a layer share no bank.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from trivet.hdl.config import EngineConfig

from .errors import CompileError

__all__ = ["Block", "Step", "allocate"]

_SHUFFLES = 200
_SEED = 2026


@dataclass(frozen=True)
class Step:
    """One layer's use of memory, by names of stored tensors."""

    name: str
    reads: tuple[str, ...]  # source, then the skip tensor if there is one
    writes: str


@dataclass(frozen=True)
class Block:
    """A tensor to place: written in step ``first`` (-1: by the host), read last in ``last``."""

    name: str
    words: int
    first: int
    last: int
    high: bool = False  # as far up as it can lie

    def meets(self, other: Block) -> bool:
        """Whether both live at one time; the step that ends one and starts the other counts."""
        return self.first <= other.last and other.first <= self.last


def allocate(
    steps: Sequence[Step],
    sizes: dict[str, int],
    inputs: Sequence[str],
    outputs: Sequence[str],
    config: EngineConfig,
    kept: Collection[str] = (),
    twins: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """Word address of every tensor in ``sizes``; the same arguments give the same answer.

    Nothing else ever lies where the inputs in ``kept`` do, nor where those in ``twins`` do: inputs
    and outputs, each with the name of its second place, which it has in every other run. Outputs
    lie as high as can be then: what the host reads while layers run should be in no bank that they
    read from.
    First fit over several orders: largest first, longest-lived first, in order of use, and then
    shuffles with a fixed seed. CompileError names the layer with the largest need.
    """
    twins = twins or {}
    blocks = _lives(steps, sizes, inputs, (*outputs, *kept))
    ports = {*twins, *twins.values()}
    high = {name for output in outputs if output in twins for name in (output, twins[output])}
    blocks = [
        Block(b.name, b.words, -1, len(steps), b.name in high) if b.name in ports else b
        for b in blocks
    ]
    apart = {frozenset(s.reads) for s in steps if len(set(s.reads)) == 2}
    apart |= {frozenset(twins.get(name, name) for name in pair) for pair in apart}
    needs = [sum(b.words for b in blocks if b.first <= k <= b.last) for k in range(len(steps))]
    # No order helps when the tensors of one layer are too large already.
    for order in _orders(blocks) if max(needs) <= config.act_words else ():
        places = _first_fit(order, apart, config)
        if places is not None:
            return places
    raise CompileError(_explain(steps, needs, config))


def _lives(
    steps: Sequence[Step], sizes: dict[str, int], inputs: Sequence[str], outputs: Sequence[str]
) -> list[Block]:
    first = dict.fromkeys(inputs, -1)
    last = dict.fromkeys(inputs, -1)
    for k, step in enumerate(steps):
        for name in step.reads:
            last[name] = k
        first.setdefault(step.writes, k)  # a joint tensor is written part by part
        last[step.writes] = k
    last.update(dict.fromkeys(outputs, len(steps)))
    return [
        Block(name, words, first.get(name, -1), last.get(name, -1)) for name, words in sizes.items()
    ]


def _orders(blocks: list[Block]) -> list[list[Block]]:
    keys: tuple[Callable[[Block], tuple[int, ...]], ...] = (
        lambda b: (-b.words, b.first),
        lambda b: (-b.words * (b.last - b.first + 1), b.first),
        lambda b: (b.first, -b.words),
        lambda b: (-(b.last - b.first), -b.words),
        lambda b: (-b.last, -b.words),
    )
    orders = [sorted(blocks, key=key) for key in keys]
    rng = random.Random(_SEED)
    for _ in range(_SHUFFLES):
        order = list(blocks)
        rng.shuffle(order)
        # Near the largest-first order, which is good, but never twice the same.
        orders.append(sorted(order, key=lambda b: -b.words * rng.uniform(0.5, 1.0)))
    return orders


def _first_fit(
    order: list[Block], apart: set[frozenset[str]], config: EngineConfig
) -> dict[str, int] | None:
    places: dict[str, int] = {}
    placed: list[Block] = []
    for block in order:
        rivals = [p for p in placed if p.meets(block)]
        strangers = [p for p in placed if frozenset((p.name, block.name)) in apart]
        at = _lowest(block, rivals, strangers, places, config)
        if at is None:
            return None
        places[block.name] = at
        placed.append(block)
    return places


def _lowest(
    block: Block,
    rivals: list[Block],
    strangers: list[Block],
    places: dict[str, int],
    config: EngineConfig,
) -> int | None:
    """Lowest address that fits; candidates touch a bank's edge or a neighbour."""
    size = config.act_bank_words
    candidates = {bank * size for bank in range(config.act_banks)}
    candidates |= {(bank + 1) * size - block.words for bank in range(config.act_banks)}
    for rival in rivals:
        candidates |= {places[rival.name] + rival.words, places[rival.name] - block.words}
    for at in sorted(candidates, reverse=block.high):
        if at < 0 or at + block.words > config.act_words:
            continue
        end = at + block.words
        if any(places[r.name] < end and at < places[r.name] + r.words for r in rivals):
            continue
        banks = _banks(at, block.words, size)
        if any(banks & _banks(places[s.name], s.words, size) for s in strangers):
            continue
        return at
    return None


def _banks(at: int, words: int, bank_words: int) -> set[int]:
    return set(range(at // bank_words, (at + words - 1) // bank_words + 1))


def _explain(steps: Sequence[Step], needs: list[int], config: EngineConfig) -> str:
    worst = max(range(len(steps)), key=needs.__getitem__)
    where, need = f"layer '{steps[worst].name}'", needs[worst]
    way_out = "end the FPGA stage before it, or choose an engine with more activation memory"
    if need > config.act_words:
        return (
            f"{where}: the tensors alive need {need} words of activation memory, "
            f"the engine has {config.act_words}; {way_out}"
        )
    return (
        f"{where}: no arrangement of its tensors ({need} words) was found in {config.act_banks} "
        f"banks of {config.act_bank_words} words with source and skip tensor apart; {way_out}"
    )
