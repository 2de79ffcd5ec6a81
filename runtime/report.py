"""What the stages did in one run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .lane import Lane, Span

__all__ = ["Reports", "StageReport"]


@dataclass
class StageReport:
    """What a device did for a stage in one run: items, seconds inside it, summed counters.

    ``seconds`` are of all items together, ``busy`` those in which there was one or more.
    """

    index: int
    device: str
    attach: str
    items: int = 0
    seconds: float = 0.0
    busy: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)


class Reports:
    """A report for each device of each stage, and for those that took one's place."""

    def __init__(self, lanes: Iterable[Lane]) -> None:
        self._found: dict[tuple[int, str, str], StageReport] = {}
        self._free_at: dict[tuple[int, str, str], float] = {}
        for lane in lanes:
            self._of(lane.stage.index, lane.name, lane.attach)

    def _of(self, index: int, device: str, attach: str) -> StageReport:
        key = (index, device, attach)
        return self._found.setdefault(key, StageReport(*key))

    def add(self, spans: Iterable[Span]) -> None:
        """Count an item."""
        for span in spans:
            report = self._of(span.stage, span.device, span.attach)
            report.items += 1
            report.seconds += span.finished - span.started
            who = (span.stage, span.device, span.attach)
            free_at = self._free_at.get(who, span.started)
            report.busy += max(0.0, span.finished - max(span.started, free_at))
            self._free_at[who] = max(free_at, span.finished)
            for key, value in span.counters.items():
                report.counters[key] = report.counters.get(key, 0) + value

    def rows(self) -> list[StageReport]:
        """In the order of the stages."""
        return sorted(self._found.values(), key=lambda r: r.index)
