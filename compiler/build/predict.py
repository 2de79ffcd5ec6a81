"""What a build will need, before anything is synthesised: closed forms of the configuration.

Multipliers and block RAMs follow from the engine's parts and are exact. LUTs and flip-flops are
straight lines through counted results; every report shows by how much they are off.

LUTs: least squares of relative errors over eight engines, the FIT of ``benchmarks/predict.py``,
LUT4 of whole boards as yosys 0.70 counts them; there off by at most 4.8 %, at ten others, its
CHECK, by at most 8.7 %. nextpnr-ecp5 0.11.1 adds cells where carries come from logic or go to it.

Flip-flops: least squares over nine engines (lanes x simd, requantisers: 1 x 1, 1; 2 x 4, 1; 4 x 4,
1 and 2; 8 x 4, 2; 4 x 8, 2; 8 x 8, 4; 16 x 4, 4; 16 x 8, 4), as packed after the netlist pass,
engine and host link without pins. Counted before requantisers had a product of two tensors and
before the registers and copies that a large engine's clock needs, and not fitted again since: 30 %
too few for 16 x 8, 17 % for 4 x 4.
"""

from __future__ import annotations

from trivet.boards.board import Board
from trivet.hdl.config import EngineConfig

__all__ = ["block_rams", "predict", "synthesised_luts"]

_SHALLOW = 512  # words: the rest of a deep memory below it is distributed RAM (hdl.memories)
_COUNTER_BITS = 96
_LINK_BRAMS = 3  # frame buffer, COBS group, the UART's FIFO
# Cells that nextpnr packs, of those that yosys counts: 1.087 to 1.105 at four engines.
_PACKED = 1.09
# Coefficients of 1, lanes, multipliers, requantisers; and of a cell of 16 x 4 distributed bits.
_LUT = (5640.9, 154.16, 33.035, 505.04, 9.711)
_FF = (4676.9, 108.3, 61.4, 92.8, 0.0)


def predict(board: Board, config: EngineConfig) -> dict[str, int]:
    """Predicted ``lut``, ``ff``, ``dsp`` and ``bram`` on an ECP5; empty for other families.

    Without those that the formulas do not cover: of engines with a serial requantiser, without
    expander or counters.
    """
    toolchain = board.toolchain
    if toolchain is None or toolchain.family != "ecp5":
        return {}
    found = {"bram": sum(block_rams(config).values())}
    if not config.serial:
        found["dsp"] = config.dsps
    if not config.serial and config.expander and config.counters:  # as all nine engines of the fit
        found |= {"lut": round(_PACKED * synthesised_luts(config)), "ff": _line(config, _FF)}
    return found


def synthesised_luts(config: EngineConfig) -> int:
    """LUT4 as yosys counts them: two for each carry cell, four for each of distributed RAM.

    Of a whole board with such an engine; not for a serial requantiser, nor without expander or
    counters.
    """
    return _line(config, _LUT)


def _line(config: EngineConfig, c: tuple[float, float, float, float, float]) -> int:
    rest = _distributed(config.weight_words, 8 * config.weight_word_bytes)
    rest += _distributed(config.param_words, 64 * config.requantisers)
    terms = (1, config.lanes, config.multipliers, config.requantisers, rest)
    return round(sum(a * b for a, b in zip(c, terms, strict=True)))


def _distributed(words: int, bits: int) -> int:
    """Cells of 16 x 4 bits for a deep memory's shallow rest."""
    rest = words % _SHALLOW if words > _SHALLOW else 0
    return -(-rest // 16) * -(-bits // 4)


def block_rams(config: EngineConfig) -> dict[str, int]:
    """DP16KD by what they hold: 512 x 36, 1,024 x 18, 2,048 x 9 bits and so on, the smallest depth
    that holds it."""
    act = _blocks(config.act_bank_words, 8 * config.word_bytes, bytewise=True)
    addend = 2 * _blocks(256 * config.addends, 32, bytewise=True)
    counted = config.counters and config.instructions > 32
    return {
        "weight memory": _deep(config.weight_words, 8 * config.weight_word_bytes),
        "activation memory": config.act_banks * act,
        "parameter memory": _deep(config.param_words, 64 * config.requantisers),
        "instruction memory": _deep(4 * config.instructions, 128),
        "tables": config.requantisers * (_blocks(256 * config.tables, 8) + addend),
        "counters": _blocks(config.instructions, _COUNTER_BITS) if counted else 0,
        "link": _LINK_BRAMS,
    }


def _deep(words: int, bits: int) -> int:
    """A memory in pieces of powers of two; a shallow rest beside one is distributed."""
    if words < _SHALLOW:
        return _blocks(words, bits)
    blocks = 0
    while words >= _SHALLOW:
        piece = 1 << (words.bit_length() - 1)
        blocks += _blocks(piece, bits)
        words -= piece
    return blocks


def _blocks(words: int, bits: int, *, bytewise: bool = False) -> int:
    """Blocks for a memory; with byte enables only 8 of every 9 bits are used."""
    if not words:
        return 0
    deep, wide = 0, 1
    for depth, width in ((512, 36), (1024, 18), (2048, 9), (4096, 4), (8192, 2), (16384, 1)):
        if words <= depth:
            deep, wide = 1, width
            break
    else:
        deep = -(-words // 16384)
    used = wide // 9 * 8 if bytewise and wide >= 9 else wide
    return deep * -(-bits // used)
