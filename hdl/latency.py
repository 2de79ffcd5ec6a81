"""Depth of the pipeline's parts in cycles; pure data, without Amaranth, for cycle formulas.

The components assert these figures about themselves (tests/hdl/test_post.py and test_lanes.py count
them).
"""

from __future__ import annotations

from .config import EngineConfig

__all__ = [
    "ADDEND", "BIAS", "PRODUCT_OFFSET", "REQUANTISER", "SERIAL_REQUANTISER", "SKIP_OFFSET", "TABLE",
    "operand_latency", "post_latency", "requantiser_latency", "skip_offset",
]

BIAS = 1
REQUANTISER = 13
SERIAL_REQUANTISER = 53
ADDEND = 5
TABLE = 2

# Cycles from a beat's sums to its skip bytes: one before the requantised byte, since the skip
# bytes are registered before they address the second addend table.
SKIP_OFFSET = BIAS + REQUANTISER - 1
# The same in a layer that multiplies by them. A register takes them less their zero point, then the
# multiplier; three cycles later its product enters the requantiser, so that all takes as long as an
# add.
PRODUCT_OFFSET = BIAS + ADDEND - 3


def operand_latency(config: EngineConfig) -> int:
    """Cycles from an activation word to the lanes' operands: choice of the bytes, operand.

    A compact engine, whose lanes are few and near, does both in one.
    """
    return 1 if config.compact else 2


def requantiser_latency(config: EngineConfig) -> int:
    """Cycles from a sum with its bias to the byte, of the engine's kind of requantiser."""
    return SERIAL_REQUANTISER if config.serial else REQUANTISER


def skip_offset(config: EngineConfig) -> int:
    """``SKIP_OFFSET`` for the engine's kind of requantiser."""
    return BIAS + requantiser_latency(config) - 1


def post_latency(config: EngineConfig, has_add: int, has_table: int) -> int:
    """Cycles from ``i_valid`` to ``o_valid`` of :class:`trivet.hdl.post.Post`.

    A beat whose sums are sampled by clock edge t is on ``o_bytes`` after edge t + latency - 1, so
    it is sampled by edge t + latency.
    """
    plain = BIAS + requantiser_latency(config)
    return plain + (ADDEND if has_add else 0) + (TABLE if has_table else 0)
