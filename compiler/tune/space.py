"""What there is to choose from: shapes of the datapath, activation memories, depths.

Parameters that the engine gets later (``rows``, multipliers made of LUTs, several engines) belong
into :class:`Shape` and :func:`shapes`; all else follows from the program that is lowered for one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trivet.boards.board import Board
from trivet.compiler.build.predict import block_rams, predict
from trivet.compiler.errors import CompileError
from trivet.hdl.config import EngineConfig
from trivet.hdl.isa import Program

__all__ = [
    "LIMITS",
    "Memory",
    "Shape",
    "fit",
    "generous",
    "memories",
    "over",
    "predicted",
    "shapes",
    "shares",
]

LIMITS = ("dsp", "bram", "lut", "ff")
_WIDTHS = (1, 2, 4, 8, 16, 32, 64)
_MOST = 1 << 16  # words that an instruction can address
_PIECE = 512  # words of the shallowest block RAM: a rest below would be made of LUTs
BANKS = 4
_BEYOND = 2  # times the multipliers that the board has: tried to say what they would bring
_BANK_WORDS = tuple(1 << k for k in range(5, 15))
# Predicted LUTs and flip-flops are off by up to a tenth: a tenth is left free.
_SHARE = {"dsp": 1.0, "bram": 1.0, "lut": 0.9, "ff": 0.9}


@dataclass(frozen=True)
class Shape:
    """What computes: lanes x simd products a cycle and the requantisers behind them."""

    lanes: int
    simd: int
    requantisers: int

    def __str__(self) -> str:
        return f"{self.lanes} x {self.simd}, {self.requantisers}"


@dataclass(frozen=True)
class Memory:
    """The activation memory: so many banks of so many words."""

    banks: int
    words: int


def shapes(board: Board) -> list[Shape]:
    """Shapes worth a look, widest first: also some with more multipliers than the board has."""
    found = [
        Shape(lanes, simd, requantisers)
        for lanes in _WIDTHS
        for simd in _WIDTHS
        for requantisers in (1, 2, 4, 8)
        if requantisers <= lanes
        and lanes * simd + 4 * requantisers <= _BEYOND * board.resources.dsps
    ]
    return sorted(found, key=lambda s: (-s.lanes * s.simd, -s.requantisers, s.lanes))


def memories(board: Board, shape: Shape, banks: int = BANKS) -> list[Memory]:
    """Activation memories that the block RAMs hold, by the blocks they take, fewest first.

    Of those with as many banks and blocks only the deepest.
    """
    found: dict[tuple[int, int], Memory] = {}
    for count in range(1, banks + 1):
        for words in _BANK_WORDS:
            if count * words <= _MOST:
                memory = Memory(count, words)
                blocks = block_rams(generous(shape, memory))["activation memory"]
                if blocks <= board.resources.brams:
                    found[blocks, count] = memory
    return [found[key] for key in sorted(found)]


def generous(shape: Shape, memory: Memory | None = None) -> EngineConfig:
    """An engine of this shape in which a program finds room for all but its activations.

    Without ``memory`` for those as well: what nothing can beat.
    """
    memory = memory or Memory(4, 1 << 14)
    return EngineConfig(
        lanes=shape.lanes, simd=shape.simd, requantisers=shape.requantisers,
        act_banks=memory.banks, act_bank_words=memory.words, weight_words=_MOST, param_words=_MOST,
        tables=64, addends=64, instructions=512,
    )  # fmt: skip


def fit(program: Program, *, products: bool, least: int = 0) -> EngineConfig:
    """The program's engine with memories as deep as it needs; cycles stay the same.

    ``products``: the program multiplies two tensors, which needs addend tables (hdl.config).
    ``least``: weight words that there are in any case.
    """
    config = program.config
    weights = -(-len(program.weights) // config.weight_word_bytes)
    params = -(-len(program.params) // (8 * config.requantisers))
    return replace(
        config,
        weight_words=_rounded(max(weights, least)),
        param_words=_rounded(params),
        tables=_power(len(program.tables) // 256),
        addends=_power(max(len(program.addends) // 2048, int(products))),
        # Room for a second form, which lets runs overlap.
        instructions=-(-2 * len(program.instructions) // 16) * 16,
    )


def _rounded(words: int) -> int:
    """Up to whole block RAMs, or to a power of two where one is not filled."""
    if words >= _PIECE:
        return min(-(-words // _PIECE) * _PIECE, _MOST)
    return max(16, _power(words))


def _power(value: int) -> int:
    return 0 if value == 0 else 1 << (value - 1).bit_length()


def shares(board: Board, used: dict[str, int]) -> dict[str, float]:
    """Share of what may be used of the board, for each resource."""
    budget = board.resources.budget
    return {name: used[name] / (budget[name] * _SHARE[name]) for name in LIMITS}


def over(board: Board, used: dict[str, int], limits: Iterable[str] = LIMITS) -> dict[str, float]:
    """Resources beyond what may be used of the board: name -> times the limit."""
    found = shares(board, used)
    return {name: found[name] for name in limits if found[name] > 1}


def predicted(board: Board, config: EngineConfig) -> dict[str, int]:
    """All four resources; CompileError for a family that the model does not cover."""
    used = predict(board, config)
    if any(name not in used for name in LIMITS):
        raise CompileError(
            f"tune: board {board.name!r}: LUTs are predicted for ECP5 parts only; choose such a "
            "board, or give the engine in a rig file"
        )
    return used
