"""Boards: one a file, registered here by name."""

from __future__ import annotations

from .arty_a7_100t import ARTY_A7_100T
from .board import Board, HostLink, Resources, Toolchain, Wiring
from .colorlight_i5 import COLORLIGHT_I5
from .ecpix5_85 import ECPIX5_85
from .icebreaker import ICEBREAKER
from .kv260 import KV260
from .orangecrab_85f import ORANGECRAB_85F
from .tang_nano_20k import TANG_NANO_20K
from .ulx3s_12f import ULX3S_12F
from .ulx3s_25f import ULX3S_25F
from .ulx3s_45f import ULX3S_45F
from .ulx3s_85f import ULX3S_85F

__all__ = ["BOARDS", "Board", "HostLink", "Resources", "Toolchain", "Wiring", "get"]

BOARDS: dict[str, Board] = {
    b.name: b
    for b in (
        ULX3S_85F,
        ULX3S_45F,
        ULX3S_25F,
        ULX3S_12F,
        ECPIX5_85,
        ORANGECRAB_85F,
        COLORLIGHT_I5,
        ICEBREAKER,
        TANG_NANO_20K,
        ARTY_A7_100T,
        KV260,
    )
}


def get(name: str) -> Board:
    """The board of that name; ValueError lists the known ones."""
    board = BOARDS.get(name)
    if board is None:
        raise ValueError(f"board {name!r} is not known; known boards: {', '.join(BOARDS)}")
    return board
