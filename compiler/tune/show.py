"""The tuner's answer for a person: the choice, the front as a table and as a small plot."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trivet.boards.board import Board

from .search import Point
from .tune import Tuned, rate

__all__ = ["plot", "render"]

_WIDTH, _HEIGHT = 60, 10
_ROWS = 16


def render(tuned: Tuned) -> RenderableType:
    board, chosen = tuned.board, tuned.chosen
    assert board.clock_hz is not None
    lines = [
        f"{board.name} at {board.clock_hz / 1e6:g} MHz ({board.clock_status}); cycles from the "
        "closed form, resources predicted",
        f"part: {len(tuned.part)} units, {tuned.macs_share:.1%} of the MACs, from "
        f"'{_short(tuned.part[0])}' to '{_short(tuned.part[-1])}'",
    ]
    if tuned.whole is not None:
        lines.append(
            "no engine takes a larger part; the nearest that could take the largest: "
            f"{tuned.whole.text}"
        )
    lines += [
        f"chosen: {_shape(chosen)}: {chosen.cycles:,} cycles, {rate(board, chosen):,.1f} items/s; "
        f"the {board.link.kind} carries {tuned.link_rate:,.1f} items/s at most",
        f"limit: {tuned.limit.resource}: {tuned.limit.text}",
    ]
    front = tuned.front
    shown = list(front) if len(front) <= _ROWS else _thinned(front, chosen)
    title = f"{len(shown)} of the {len(front)} engines on the front; > is the chosen one"
    return Group(
        *(Text(line) for line in lines),
        Text(""),
        _table(board, shown, chosen, title),
        Text(""),
        Text("items/s (log) against the share of the board's scarcest resource, x: chosen"),
        Text(plot(board, front, chosen)),
    )


def _shape(point: Point) -> str:
    c = point.config
    return (
        f"{c.lanes} x {c.simd}, {c.requantisers} requantisers, "
        f"{c.act_banks} x {c.act_bank_words:,} activation words"
    )


def _short(name: str, width: int = 32) -> str:
    """Ends of node names tell them apart."""
    half = (width - 2) // 2
    return name if len(name) <= width else f"{name[:half]}..{name[-half:]}"


def _thinned(front: Sequence[Point], chosen: Point) -> list[Point]:
    step = (len(front) - 1) / (_ROWS - 1)
    kept = {round(k * step) for k in range(_ROWS)} | {front.index(chosen)}
    return [front[k] for k in sorted(kept)]


def _table(board: Board, points: Sequence[Point], chosen: Point, title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("", "engine", "requant.", "act. words"):
        table.add_column(name, no_wrap=True)
    parts = board.resources
    heads = (f"DSP/{parts.dsps}", f"BRAM/{parts.brams}", f"LUT/{parts.luts:,}")
    for name in ("cycles", "items/s", *heads):
        table.add_column(name, justify="right", no_wrap=True)
    for p in points:
        c = p.config
        table.add_row(
            ">" if p is chosen else "", f"{c.lanes} x {c.simd}", str(c.requantisers),
            f"{c.act_banks} x {c.act_bank_words:,}", f"{p.cycles:,}", f"{rate(board, p):,.1f}",
            str(p.used["dsp"]), str(p.used["bram"]), f"{p.used['lut']:,}",
        )  # fmt: skip
    return table


def plot(board: Board, points: Sequence[Point], chosen: Point) -> str:
    """Speed upwards on a logarithmic scale, the largest share of a resource to the right."""
    parts = board.resources
    budget = {"dsp": parts.dsps, "bram": parts.brams, "lut": parts.luts}
    logs = [math.log10(rate(board, p)) for p in points]
    low, high = min(logs), max(logs)
    cells = [[" "] * (_WIDTH + 1) for _ in range(_HEIGHT)]
    order = sorted(zip(points, logs, strict=True), key=lambda pair: pair[0] is chosen)
    for p, log in order:
        share = min(max(p.used[k] / n for k, n in budget.items()), 1.0)
        row = 0 if high == low else round((high - log) / (high - low) * (_HEIGHT - 1))
        cells[row][round(share * _WIDTH)] = "x" if p is chosen else "o"
    marks = [f"{10 ** (high - (high - low) * k / (_HEIGHT - 1)):>10,.1f} " for k in range(_HEIGHT)]
    lines = [f"{m}|{''.join(c).rstrip()}" for m, c in zip(marks, cells, strict=True)]
    return "\n".join([*lines, " " * 11 + "+" + "-" * _WIDTH + " 100 %"])
