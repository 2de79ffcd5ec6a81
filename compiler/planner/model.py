"""A linear model over booleans and non-negative reals, free of any solver.

A *literal* is ``+v`` or ``-v`` for the boolean numbered ``v``, or a plain ``bool`` where the value
is known; what is known is folded away as constraints are added. They begin at 2: 1 == True.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["Literal", "Model", "Row", "negated"]

Literal = int  # or bool


@dataclass(frozen=True)
class Row:
    """``sum(c * literal) + sum(c * real) <= limit``, where all of ``when`` are true."""

    terms: tuple[tuple[float, int], ...]
    reals: tuple[tuple[float, int], ...]
    limit: float
    when: tuple[int, ...] = ()


@dataclass
class Model:
    """Booleans 2..booleans, reals 0..len(upper)-1, and what holds between them.

    Members
    -------
    clauses : list of tuples of literals, of which one at least is true.
    choices : list of tuples of literals, of which exactly one is true.
    differences : list of (b, high, low): ``b = high - low``, booleans.
    rows : list of :class:`Row`.
    upper : upper bounds of the reals.
    objective : (coefficient, real) and (coefficient, literal), minimised.
    impossible : whether a constraint was false on its own.
    """

    booleans: int = 1
    clauses: list[tuple[int, ...]] = field(default_factory=list)
    choices: list[tuple[int, ...]] = field(default_factory=list)
    differences: list[tuple[int, int, int]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    objective: list[tuple[float, int]] = field(default_factory=list)
    objective_terms: list[tuple[float, int]] = field(default_factory=list)
    impossible: bool = False

    def boolean(self) -> Literal:
        self.booleans += 1
        return self.booleans

    def real(self, upper: float) -> int:
        self.upper.append(upper)
        return len(self.upper) - 1

    def clause(self, *literals: Literal) -> None:
        """At least one of them is true."""
        kept = []
        for x in literals:
            if x is True:
                return
            if x is not False:
                kept.append(x)
        if not kept:
            self.impossible = True
        self.clauses.append(tuple(kept))

    def exactly_one(self, literals: Sequence[Literal]) -> None:
        if any(x is True for x in literals):
            for x in literals:
                if x is not True:
                    self.clause(negated(x))
            return
        kept = tuple(x for x in literals if x is not False)
        if not kept:
            self.impossible = True
        elif len(kept) == 1:
            self.clause(kept[0])
        else:
            self.choices.append(kept)

    def between(self, high: Literal, low: Literal) -> Literal:
        """``high and not low`` of a monotone pair, as one literal."""
        if low is False or high is False:
            return high
        if high is True or low is True:
            return negated(low)
        b = self.boolean()
        self.differences.append((b, high, low))
        return b

    def any_of(self, literals: Sequence[Literal]) -> Literal:
        """A literal that is true where one of them is (and may be true elsewhere)."""
        if any(x is True for x in literals):
            return True
        kept = [x for x in literals if x is not False]
        if len(kept) <= 1:
            return kept[0] if kept else False
        b = self.boolean()
        for x in kept:
            self.clause(negated(x), b)
        return b

    def row(
        self,
        terms: Iterable[tuple[float, Literal]],
        reals: Sequence[tuple[float, int]],
        limit: float,
        when: Sequence[Literal] = (),
    ) -> None:
        """``sum(c * literal) + sum(c * real) <= limit`` where all of ``when`` hold."""
        if any(w is False for w in when):
            return
        kept = []
        for c, x in terms:
            if x is True:
                limit -= c
            elif x is not False and c:
                kept.append((c, x))
        if not kept and not reals and limit >= 0:
            return
        self.rows.append(
            Row(tuple(kept), tuple(reals), limit, tuple(w for w in when if w is not True))
        )


def negated(x: Literal) -> Literal:
    return (not x) if isinstance(x, bool) else -x
