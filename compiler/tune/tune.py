"""``trivet tune``: the part of a model for a board's engine, the engines for it, the choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trivet.boards.board import Board
from trivet.compiler.build.predict import block_rams
from trivet.compiler.contract import edges
from trivet.compiler.cost_fpga import program_cycles
from trivet.compiler.errors import CompileError
from trivet.compiler.lower import lower
from trivet.compiler.units import ConvSpec, Graph
from trivet.hdl.config import EngineConfig

from .search import Found, Point, front, search
from .space import predicted, shares

__all__ = ["Limit", "Tuned", "parts", "rate", "tune"]


@dataclass(frozen=True)
class Limit:
    """What a better engine lacks: the resource, and where that is in words."""

    resource: str  # dsp, bram, lut, ff, link, or none
    text: str


@dataclass(frozen=True)
class Tuned:
    """``part``: units for the engine; ``chosen`` on the ``front``, fastest first.

    ``whole``: why not all that an engine can compute is in the part, None if it is.
    ``link_rate``: items a second that the board's link carries at most.
    """

    board: Board
    part: tuple[str, ...]
    macs_share: float
    front: tuple[Point, ...]
    chosen: Point
    limit: Limit
    whole: Limit | None
    link_rate: float
    target: float | None
    lowered: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "board": self.board.name,
            "clock_hz": self.board.clock_hz,
            "part": list(self.part),
            "macs_share": round(self.macs_share, 4),
            "whole": None if self.whole is None else vars(self.whole),
            "target": self.target,
            "link_items_per_second": round(self.link_rate, 2),
            "chosen": _row(self.board, self.chosen),
            "limit": vars(self.limit),
            "front": [_row(self.board, p) for p in self.front],
            "lowered": self.lowered,
        }


def _row(board: Board, point: Point) -> dict[str, Any]:
    return {
        "engine": point.config.to_dict(),
        "engine_sha256": point.config.sha256,
        "cycles": point.cycles,
        "items_per_second": round(rate(board, point), 2),
        "used": point.used,
    }


def rate(board: Board, point: Point) -> float:
    """Items a second of the engine at the board's clock, one run after the other."""
    assert board.clock_hz is not None
    return board.clock_hz / point.cycles


def tune(graph: Graph, board: Board, target: float | None = None) -> Tuned:
    """The fastest engine, or the smallest that reaches ``target`` items a second.

    Smallest: the resource that is used most, as a share of the board, is used least.
    CompileError when nothing fits or the target is out of reach; it names the limit.
    """
    if board.clock_hz is None:
        raise CompileError(f"tune: board {board.name!r} has no clock planned; choose another one")
    predicted(board, EngineConfig())  # refuses a family without a model
    first: Found | None = None
    lowered = 0
    for part in parts(graph, board):
        found = search(graph, part, board)
        first = first or found
        lowered += found.lowered
        if found.points:
            break
    else:
        raise CompileError(
            f"tune: no part of {graph.name!r} fits an engine on board {board.name!r}; "
            "trivet explain tells what each layer lacks"
        )
    points = front(found.points)
    fastest = points[0]
    limit = _limit(board, found, fastest)
    link = _link_rate(graph, part, board)
    chosen = fastest
    if target is not None:
        chosen, limit = _smallest(board, points, target, link, limit)
    _confirm(graph, part, chosen)
    macs = sum(u.macs for u in graph.units)
    return Tuned(
        board, tuple(part), sum(graph.unit(n).macs for n in part) / max(macs, 1), tuple(points),
        chosen, limit, None if found is first else _too_large(board, first), link, target, lowered,
    )  # fmt: skip


def _confirm(graph: Graph, part: Sequence[str], chosen: Point) -> None:
    """The very engine that was chosen takes the part, in the cycles that are told."""
    cycles = program_cycles(lower(graph, part, chosen.config))
    if cycles != chosen.cycles:
        raise CompileError(
            f"tune: the chosen engine takes {cycles:,} cycles, not the {chosen.cycles:,} found; "
            "report the model, it is a defect of the compiler"
        )


def _smallest(
    board: Board, points: Sequence[Point], target: float, link: float, limit: Limit
) -> tuple[Point, Limit]:
    if target > link:
        raise CompileError(
            f"tune: {target:g} items a second are out of reach: the {board.link.kind} of board "
            f"{board.name!r} carries {link:.4g} at most; lower --target-fps or choose a faster link"
        )
    enough = [p for p in points if rate(board, p) >= target]
    if not enough:
        raise CompileError(
            f"tune: {target:g} items a second are out of reach: the fastest engine on board "
            f"{board.name!r} makes {rate(board, points[0]):.4g}, the limit is {limit.resource} "
            f"({limit.text}); lower --target-fps or choose a larger board"
        )
    chosen = min(enough, key=lambda p: (max(_size(board, p)), sum(_size(board, p)), p.cycles))
    return chosen, Limit("target", f"the smallest engine of {len(enough)} that reach {target:g}/s")


def _size(board: Board, point: Point) -> tuple[float, ...]:
    return tuple(shares(board, point.used).values())


def parts(graph: Graph, board: Board) -> list[tuple[str, ...]]:
    """Runs of consecutive units that an engine could take, most MACs first, then the longest.

    Without those whose weights alone are more than all block RAMs, and without runs that begin or
    end with a view.
    """
    runs: list[list[str]] = [[]]
    for unit in graph.units:
        if "fpga" in unit.refusals:
            runs.append([])
        else:
            runs[-1].append(unit.name)
    found = {
        tuple(run[a:b]) for run in runs for a in range(len(run)) for b in range(a + 1, len(run) + 1)
    }
    ends = [p for p in found if all(graph.unit(n).kind != "view" for n in (p[0], p[-1]))]
    room = board.resources.brams * board.resources.bram_bits // 8
    most = max((_macs(graph, p) for p in ends), default=0)
    small = [p for p in ends if _macs(graph, p) == most or _bytes(graph, p) <= room]
    return sorted(small, key=lambda p: (-_macs(graph, p), -len(p), p))


def _macs(graph: Graph, part: Sequence[str]) -> int:
    return sum(graph.unit(n).macs for n in part)


def _bytes(graph: Graph, part: Sequence[str]) -> int:
    """Bytes of weights, and of the largest layer's input and output: none can be spared."""
    units = [graph.unit(n) for n in part]
    weights = sum(u.spec.weight.size for u in units if isinstance(u.spec, ConvSpec))
    sizes = [
        sum(math.prod(graph.tensors[n].shape) for n in {*u.inputs, *u.outputs}) for u in units
        if u.kind == "conv"
    ]  # fmt: skip
    return int(weights) + max(sizes, default=0)


def _link_rate(graph: Graph, part: Sequence[str], board: Board) -> float:
    ways = edges(graph, set(part))
    most = max(sum(math.prod(graph.tensors[n].shape) for n in way) for way in ways)
    return board.link.bandwidth_bytes_per_second / most


def _limit(board: Board, found: Found, fastest: Point) -> Limit:
    """What the nearest faster engine lacks."""
    faster = [(max(b.values()), p.cycles, p, b) for p, b in found.outside
              if p.cycles < fastest.cycles]  # fmt: skip
    if not faster:
        return Limit("none", "no engine that was tried is faster, with any resources")
    _, _, point, beyond = min(faster, key=lambda f: f[:2])
    return _named(board, point, beyond)


def _too_large(board: Board, found: Found) -> Limit:
    """Why the largest part fits no engine: what the nearest lacks."""
    if not found.outside:
        return Limit("memory", "no engine can address its weights or hold its tensors")
    # Logic alone can be made as small as it takes: the memory is what counts, where that was tried.
    tried = [f for f in found.outside if "bram" in f[1]] or found.outside
    point, beyond = min(tried, key=lambda f: max(f[1].values()))
    return _named(board, point, beyond)


def _named(board: Board, point: Point, beyond: dict[str, float]) -> Limit:
    name = max(beyond, key=lambda k: beyond[k])
    have = board.resources.budget[name]
    c = point.config
    text = (
        f"{c.lanes} x {c.simd} with {c.requantisers} requantisers takes {point.cycles:,} cycles "
        f"and {point.used[name]:,} of {have:,} {name.upper()}"
    )
    if name == "bram":
        held = block_rams(c)
        most = max(held, key=lambda k: held[k])
        text += f", {held[most]} of them {most}"
    return Limit(name, text)
