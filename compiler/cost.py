"""Costs: one vocabulary for every number of a plan, and where its numbers come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = [
    "SOURCES",
    "Cost",
    "LinkLike",
    "Source",
    "Unit",
    "cycles",
    "link_seconds",
    "seconds_at",
    "total",
]

Unit = Literal["s", "cycles", "bytes", "J", "1"]
Source = Literal["counted", "measured", "predicted", "published", "given"]
# Strongest first; a sum is as good as its weakest part.
SOURCES: tuple[Source, ...] = ("counted", "measured", "predicted", "published", "given")


@dataclass(frozen=True)
class Cost:
    """A number, its unit and where it comes from.

    ``detail`` names tool and version, machine and repeats; or the formula; or the citation.
    ``spread`` is the relative inter-quartile range of repeats, for measured numbers only.
    """

    value: float
    unit: Unit
    source: Source
    detail: str
    spread: float | None = None

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"cost: source {self.source!r} is none of {', '.join(SOURCES)}")
        if not self.detail:
            raise ValueError("cost: a number without a detail of where it comes from")
        if self.spread is not None and self.source != "measured":
            raise ValueError(
                f"cost: a spread belongs to measured numbers, not to {self.source} ones"
            )


class LinkLike(Protocol):
    """A link of the rig; ``detail`` says where its figures come from."""

    @property
    def name(self) -> str: ...
    @property
    def bandwidth_bytes_per_second(self) -> float: ...
    @property
    def latency_seconds(self) -> float: ...
    @property
    def source(self) -> Source: ...
    @property
    def detail(self) -> str: ...


def total(costs: Iterable[Cost], unit: Unit = "s") -> Cost:
    """Sum of costs of one unit; its source is the weakest, its spread the widest of the measured.

    The spread of a sum with other than measured parts is dropped. ValueError when units differ.
    """
    parts = list(costs)
    if not parts:
        return Cost(0.0, unit, "counted", "nothing to add")
    odd = {c.unit for c in parts} - {unit}
    if odd:
        raise ValueError(f"cost: cannot add {', '.join(sorted(odd))} to {unit}")
    source = max((c.source for c in parts), key=SOURCES.index)
    details = list(dict.fromkeys(c.detail for c in parts))
    detail = details[0] if len(details) == 1 else f"sum of {len(parts)}: " + "; ".join(details)
    spreads = [c.spread for c in parts if c.spread is not None]
    spread = max(spreads) if spreads and source == "measured" else None
    return Cost(sum(c.value for c in parts), unit, source, detail, spread)


def cycles(count: int, detail: str) -> Cost:
    """Predicted cycles of the closed form."""
    return Cost(float(count), "cycles", "predicted", detail)


def seconds_at(count: Cost, clock_hz: float, clock: str) -> Cost:
    """Cycles as seconds at a clock; ``clock`` says how good the clock's figure is."""
    if count.unit != "cycles":
        raise ValueError(f"cost: {count.unit} cannot be divided by a clock")
    detail = f"{count.detail} at {clock_hz / 1e6:g} MHz ({clock})"
    source = max((count.source, "predicted"), key=SOURCES.index)
    return Cost(count.value / clock_hz, "s", source, detail)


def link_seconds(nbytes: int, link: LinkLike, trips: int = 1) -> Cost:
    """Seconds of one transfer: a latency for each round trip, and ``bytes / bandwidth``."""
    rate, latency = link.bandwidth_bytes_per_second, link.latency_seconds
    detail = (
        f"{nbytes:,} bytes in {trips} round trip{'s' if trips > 1 else ''} over {link.name}, "
        f"{latency * 1e3:g} ms each + bytes / {rate:g} B/s; {link.detail}"
    )
    return Cost(trips * latency + nbytes / rate, "s", link.source, detail)
