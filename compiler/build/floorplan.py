"""Where the hard blocks of a large engine lie on an ECP5-85F die.

The placer moves a multiplier or a block RAM late and seldom, so rows of them that belong together
end up anywhere. Here the lanes' multipliers and weights get sites in the order of the lanes, from
left to right; the middle stays free for what all lanes share: activations, Post, the sequencer.
Everything else is left to the placer. The sites are those that nextpnr names on this die (they
were read from its own placements).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["floorplan"]

# Columns of block RAMs and multipliers, the name of the site in each fourth one, and rows.
_EBR_STEPS = (2, 2, 2, 3) * 6 + (2, 2, 2, 5) + (2, 2, 2, 3) * 5 + (2, 2, 2)
_DSP_STEPS = (1, 3, 1, 4) * 6 + (1, 3, 1, 6) + (1, 3, 1, 4) * 5 + (1, 3, 1)
_EBR_ROWS, _FAR_ROW = (22, 46, 70), 82
_DSP_ROWS = (10, 34, 58)
_EBR_NAMES = ("EBR0", "EBR1", "EBR2", "EBR3")
_DSP_NAMES = ("MULT18_0", "MULT18_1", "MULT18_4", "MULT18_5")
_FREE_DSP = range(22, 31)  # columns in the middle
_OUTER_EBR = 10  # columns at the left, one more at the right


def floorplan(netlist: dict[str, Any], top: str) -> int:
    """Fix the lanes' multipliers and weights of module ``top``, in place; returns how many.

    Nothing is fixed where they do not fit the sites set apart for them: small engines need no plan.
    """
    cells: dict[str, dict[str, Any]] = netlist["modules"][top]["cells"]
    products = _named(cells, "MULT18X18D", ".lanes.product_")
    weights = _named(cells, "DP16KD", ".weight_memory.")
    dsp = sorted(
        (x, y, f"X{x}/Y{y}/{_DSP_NAMES[k % 4]}")
        for k, x in enumerate(_columns(_DSP_STEPS))
        if k not in _FREE_DSP
        for y in _DSP_ROWS
    )
    columns = list(_columns(_EBR_STEPS))
    outer = {*range(_OUTER_EBR), *range(len(columns) - _OUTER_EBR - 1, len(columns))}
    ebr = sorted(
        (x, y, f"X{x}/Y{y}/{_EBR_NAMES[k % 4]}")
        for k, x in enumerate(columns)
        for y in ((*_EBR_ROWS, _FAR_ROW) if k in outer else (_FAR_ROW,))
    )
    if len(products) < len(dsp) // 2 or len(products) > len(dsp) or len(weights) > len(ebr):
        return 0
    for names, sites in ((products, dsp), (weights, ebr)):
        for k, name in enumerate(names):
            cells[name]["attributes"]["BEL"] = sites[k * len(sites) // len(names)][2]
    return len(products) + len(weights)


def _columns(steps: Iterable[int]) -> Iterable[int]:
    x = 4
    yield x
    for step in steps:
        x += step
        yield x


def _named(cells: dict[str, dict[str, Any]], kind: str, part: str) -> list[str]:
    found = [name for name, cell in cells.items() if cell["type"] == kind and part in name]
    return sorted(found, key=_natural)


def _natural(name: str) -> list[Any]:
    """Numbers in a name compare as numbers."""
    return [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", name)]
