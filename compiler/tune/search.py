"""The search: shapes by what they could reach, activation memories from the smallest up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from trivet.boards.board import Board
from trivet.compiler.cost_fpga import program_cycles
from trivet.compiler.errors import CompileError
from trivet.compiler.lower import lower
from trivet.compiler.units import Graph, MulSpec
from trivet.hdl.config import EngineConfig
from trivet.hdl.isa import Program

from .space import LIMITS, Memory, Shape, fit, generous, memories, over, predicted, shapes

__all__ = ["Found", "Point", "Search", "coverage", "exhaustive", "front", "search"]

_LOGIC = ("dsp", "lut", "ff")


@dataclass(frozen=True)
class Point:
    """An engine, its cycles an item (closed form) and its resources (predicted)."""

    config: EngineConfig
    cycles: int
    used: dict[str, int]

    def beats(self, other: Point) -> bool:
        """No worse in anything, and not the same in all."""
        pairs = [(self.cycles, other.cycles), *((n, other.used[k]) for k, n in self.used.items())]
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


@dataclass
class Found:
    """``points`` within the budget; ``outside``: the smallest of each shape that is beyond it."""

    points: list[Point] = field(default_factory=list)
    outside: list[tuple[Point, dict[str, float]]] = field(default_factory=list)
    lowered: int = 0


class Search:
    """Points of one part of a graph on one board; each is lowered once."""

    def __init__(self, graph: Graph, part: Sequence[str], board: Board) -> None:
        self.graph, self.part, self.board = graph, tuple(part), board
        self.products = any(isinstance(graph.unit(n).spec, MulSpec) for n in part)
        self.found = Found()
        self._plain: dict[tuple[object, ...], int] = {}
        self._points: dict[tuple[Shape, Memory | None], Point | None] = {}

    def point(self, shape: Shape, memory: Memory | None = None) -> Point | None:
        """The part on such an engine; None when it does not fit that activation memory."""
        key = (shape, memory)
        if key not in self._points:
            self.found.lowered += 1
            try:
                program = lower(self.graph, self.part, generous(shape, memory))
            except CompileError:
                self._points[key] = None
            else:
                least = self.unexpanded(shape, program)
                config = fit(program, products=self.products, least=least)
                used = predicted(self.board, config)
                self._points[key] = Point(config, program_cycles(program), used)
        return self._points[key]

    def unexpanded(self, shape: Shape, program: Program) -> int:
        """Weight words that layers behind expanded inputs would take without that.

        An engine has to have so many: lowering looks at that form first.
        """
        names = {port.tensor for port in program.inputs if port.expand is not None}
        readers = [u for u in self.part if names.intersection(self.graph.unit(u).inputs)]
        key = (shape, *readers)
        if key not in self._plain:
            found = 0
            for name in readers:
                config = generous(shape)
                try:
                    plain = lower(self.graph, [name], config, expand=False)
                except CompileError:
                    continue  # not a layer of its own: it needs no weights either
                found = max(found, len(plain.weights) // config.weight_word_bytes)
            self._plain[key] = found
        return self._plain[key]

    def take(self, point: Point, limits: Sequence[str] = LIMITS) -> bool:
        """Keep the point if the board has what it needs of ``limits``."""
        beyond = over(self.board, point.used, limits)
        if beyond:
            self.found.outside.append((point, beyond))
        else:
            self.found.points.append(point)
        return not beyond


def search(graph: Graph, part: Sequence[str], board: Board) -> Found:
    """Engines for the units ``part``; what cannot lie on the front is left out.

    A shape's cycles with all the memory in the world come first: more memory than gives those is
    not tried, and a shape whose logic is too large is not tried at all.
    """
    s = Search(graph, part, board)
    for shape in shapes(board):
        ideal = s.point(shape)
        if ideal is None:
            continue
        if over(board, ideal.used, _LOGIC):
            s.take(ideal, _LOGIC)
        else:
            _walk(s, shape, ideal)
    return s.found


def _walk(s: Search, shape: Shape, ideal: Point) -> None:
    """From the smallest activation memory up, until more memory makes nothing faster."""
    tried = [m for m in memories(s.board, shape) if m.banks * m.words >= _least(s, shape)]
    seen: list[Point] = []
    for memory in tried:
        point = s.point(shape, memory)
        if point is None or any(not point.beats(p) and p.cycles <= point.cycles for p in seen):
            continue
        if not s.take(point) or point.cycles <= ideal.cycles:
            return
        seen.append(point)


def _least(s: Search, shape: Shape) -> int:
    """Words that the largest tensor of the part takes, at the least."""
    most = max(math.prod(s.graph.tensors[n].shape) for u in s.part for n in s.graph.unit(u).outputs)
    return -(-most // max(shape.lanes, shape.simd))


def exhaustive(graph: Graph, part: Sequence[str], board: Board, banks: int = 8) -> Found:
    """Every shape with every activation memory: what the search is judged by."""
    s = Search(graph, part, board)
    for shape in shapes(board):
        for memory in memories(board, shape, banks):
            if (point := s.point(shape, memory)) is not None:
                s.take(point)
    return s.found


def coverage(points: Sequence[Point], judge: Sequence[Point]) -> float:
    """By what factor the points are worse, at most, than those of ``judge`` in every respect.

    1.0: for each of them there is a point no worse in cycles and every resource.
    """

    def worse(point: Point, than: Point) -> float:
        used = (n / than.used[k] for k, n in point.used.items())
        return max(point.cycles / than.cycles, *used)

    return max(min(worse(p, than) for p in points) for than in judge)


def front(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats, fastest first; of equal ones the first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.cycles, sorted(p.used.items()))):
        same = any(p.cycles == point.cycles and p.used == point.used for p in kept)
        if not same and not any(p.beats(point) for p in points):
            kept.append(point)
    return kept
