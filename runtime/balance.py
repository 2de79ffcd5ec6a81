"""Shares a stage that became slow with the CPU, as far as that is worth it, and takes it back.

A stage's devices are measured as they work. Where the CPU could have the items that its boards are
too slow for, and the whole would be faster for it, the stage gets lanes on the CPU beside them. The
bytes are the same there, so who computes an item does not matter.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from .device import Device, DeviceError, InlineDevice, Stage
from .lane import Group, Lane, Station
from .measure import item_seconds

__all__ = ["Balancer", "Load", "Shares", "share"]

_log = logging.getLogger("trivet.runtime")

_TICK: Final = 0.25  # seconds
_GAIN: Final = 0.9  # of the time of an item: what gains less is not worth a change
_STILL: Final = 8  # ticks without need after which a lane on the CPU ends
_SAMPLES: Final = 3
_BEHIND: Final = 12  # items that others may do while a board does one; see _pause
_TRY: Final = 8  # ticks after which a board that is left out gets an item to be measured by


@dataclass(frozen=True)
class Load:
    """A stage as it works. ``boards``: seconds of an item on each device that is not the CPU.

    ``cpu``: thread-seconds of an item on the CPU, None where it cannot run there.
    """

    boards: tuple[float, ...]
    cpu: float | None


@dataclass(frozen=True)
class Shares:
    """Seconds from item to item, and the share of each stage's items that the CPU has."""

    pace: float
    on_cpu: tuple[float, ...]


def share(loads: Sequence[Load], cores: float) -> Shares:
    """The fastest way to share the stages with a CPU of so many cores: exact but for 0.01 %.

    At a pace T a board has at most T of every T seconds, so takes the share T / seconds of its
    stage's items; the rest is the CPU's, which has T * cores. What the CPU must do falls with T, so
    the least T at which it can is found by halving.
    """

    def rest(load: Load, pace: float) -> float:
        return max(0.0, 1.0 - sum(pace / seconds for seconds in load.boards))

    def fits(pace: float) -> bool:
        need = 0.0
        for load in loads:
            left = rest(load, pace)
            if left > 0.0:
                if load.cpu is None:
                    return False
                need += left * load.cpu
        return need <= pace * cores

    high = 1e-9
    while not fits(high):
        high *= 2.0
    low = high / 2.0
    while high - low > 1e-4 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if fits(middle) else (middle, high)
    return Shares(high, tuple(rest(load, high) for load in loads))


class Balancer:
    """Looks at the stages now and then, and adds and ends lanes on the CPU.

    Parameters
    ----------
    stations, lock
        The pipeline's; what is read is read under the lock.
    make
        A prepared CPU device for a stage, by the name of the device beside it.
    add, end
        Put a device to work as a further replica, with room for so many more items; end one.
    cores, threads
        Of the CPU; threads of one CPU device.
    """

    def __init__(
        self,
        stations: Sequence[Station],
        lock: threading.Lock,
        make: Callable[[Stage, str, int], Device],
        add: Callable[[Station, Device, int], Group | None],
        end: Callable[[Station, Group], None],
        *,
        cores: int,
        threads: int,
    ) -> None:
        self.moves: list[str] = []
        """What was changed, in words."""
        self._stations = stations
        self._lock = lock
        self._make = make
        self._add = add
        self._end = end
        self._cores = cores
        self._threads = max(1, threads or cores)
        self._costs: dict[int, float | None] = {}  # thread-seconds on the CPU of boards' stages
        self._added: dict[int, list[Group]] = {}
        self._still: dict[int, int] = {}
        self._ticks = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trivet-balance", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread; lanes stay. Not from the thread itself."""
        self._over.set()
        if threading.current_thread() is not self._thread and self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_TICK):
            try:
                self._look()
            except DeviceError:
                _log.exception("re-balancing: a stage stays as it is")
            except Exception:
                _log.exception("re-balancing ends")
                return

    def _look(self) -> None:
        loads = [self._load(station) for station in self._stations]
        known = [load for load in loads if load is not None]
        if len(known) < len(loads):
            return  # not every stage has had items yet
        best = share(known, self._cores)
        self._ticks += 1
        now = self._pace(known)
        for station, load, part in zip(self._stations, known, best.on_cpu, strict=True):
            index = station.stage.index
            mine = self._added.setdefault(index, [])
            if not load.boards or load.cpu is None:
                continue
            # A lane computes one item at a time, and waits for its turn among the cores' others.
            busy = part * load.cpu / (best.pace * self._threads)
            wanted = max(1, math.ceil(busy - 0.02)) if part > 0.02 else 0
            if wanted > len(mine) and best.pace < _GAIN * now:
                self._grow(station, load, wanted - len(mine), now, best.pace)
            self._pause(station, best.pace)
            self._still[index] = self._still.get(index, 0) + 1 if wanted < len(mine) else 0
            if self._still[index] >= _STILL:
                self._end(station, mine.pop())
                self._still[index] = 0
                self._pause(station, best.pace)
                self._tell(f"stage {index} gives a lane on the CPU back")

    def _grow(self, station: Station, load: Load, count: int, now: float, pace: float) -> None:
        assert load.cpu is not None
        with self._lock:
            name = station.lanes[0].name if station.groups else "cpu"
        for _ in range(count):
            group = self._add(station, self._make(station.stage, name, 1), 2 * _BEHIND)
            if group is None:
                return
            self._added[station.stage.index].append(group)
        slow = ", ".join(f"{seconds * 1e3:.3g} ms" for seconds in load.boards)
        self._tell(
            f"stage {station.stage.index} is shared with the CPU: {slow} an item on '{name}', "
            f"{load.cpu / self._threads * 1e3:.3g} ms there; {now * 1e3:.3g} ms from item to item "
            f"become {pace * 1e3:.3g}"
        )

    def _pause(self, station: Station, pace: float) -> None:
        """Leave out boards that hold the others up, and try those again from time to time.

        Answers go out in order, so while a board is at its items only so many others can be under
        way as there is room for. One that does less than a share of 1 in 12 is not worth that.
        """
        with self._lock:
            mine = self._added[station.stage.index]
            boards = [g for g in station.groups if g not in mine]
            for group in boards:
                seconds = max(lane.service or 0.0 for lane in group.lanes)
                paused = bool(mine) and seconds > _BEHIND * pace
                if paused != group.paused:
                    group.paused = paused
                    what = "is left out, too slow for the others" if paused else "has items again"
                    self._tell(f"stage {station.stage.index}: '{group.lanes[0].name}' {what}")
                group.tries = int(paused and self._ticks % _TRY == 0)

    def _tell(self, what: str) -> None:
        _log.info("%s", what)
        self.moves.append(what)

    def _load(self, station: Station) -> Load | None:
        """None before the stage's devices were measured."""
        with self._lock:
            mine = self._added.get(station.stage.index, [])
            lanes = [lane for g in station.groups if g not in mine for lane in g.lanes]
            if station.stage.parts or not lanes or any(lane.service is None for lane in lanes):
                return None
            on_cpu = all(lane.attach == "cpu" for lane in lanes)
            seconds = [lane.service for lane in lanes if lane.service is not None]
        if on_cpu:
            return Load((), min(seconds) * self._threads)
        return Load(tuple(max(s, 1e-9) for s in seconds), self._cost(station, lanes[0]))

    def _pace(self, loads: Sequence[Load]) -> float:
        """Seconds from item to item as the stages are now."""
        paces = []
        for station, load in zip(self._stations, loads, strict=True):
            rate = sum(1.0 / seconds for seconds in load.boards)
            if load.cpu is not None:
                lanes = len(self._added.get(station.stage.index, [])) + (not load.boards)
                rate += lanes * self._threads / load.cpu
            paces.append(1.0 / rate)
        return max(paces)

    def _cost(self, station: Station, lane: Lane) -> float | None:
        """Thread-seconds of an item on the CPU, measured once: the least of a few."""
        stage = station.stage
        if stage.index not in self._costs:
            movable = stage.kind == "program" and stage.fallback is not None
            self._costs[stage.index] = self._measured(stage, lane.name) if movable else None
        return self._costs[stage.index]

    def _measured(self, stage: Stage, name: str) -> float:
        device = self._make(stage, name, 1)
        try:
            assert isinstance(device, InlineDevice)
            found = item_seconds(device, stage, _SAMPLES)
        finally:
            device.close()
        return max(min(found), 1e-9) * self._threads
