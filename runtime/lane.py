"""A device at work for a stage, groups of them, and what waits for them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .device import Completion, Device, DeviceError, InlineDevice, Stage
from .ring import Array, Slot

__all__ = ["Group", "Item", "Lane", "Loss", "Span", "Station", "mismatch", "wrapped"]


_REST: Final = 0.5  # seconds without items after which a device is measured anew


class Span(NamedTuple):
    """One item on one device. Times are those of ``time.perf_counter()``, in seconds."""

    stage: int
    device: str
    attach: str
    ready: float  # when the item was there
    started: float
    finished: float
    counters: dict[str, int]


@dataclass(eq=False, slots=True)
class Item:
    """One item on its way."""

    ticket: int
    slot: Slot | None
    outputs: dict[str, Array]  # what passes through unchanged, and at the end the rest
    deliver: Callable[[Item], None] | None = None
    stage: int = 0
    left: int = 0  # devices that have not answered yet, of its stage
    ready: float = 0.0
    done: bool = False
    error: DeviceError | None = None
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True)
class Loss:
    """A device that was lost under a stream, and how long the stage did without it."""

    stage: int
    device: str
    attach: str
    reason: str
    since: float  # time.monotonic() of the last sign that it worked
    seconds: float = 0.0  # from there to the first answer in its place


class Lane:
    """A device at work for one stage, or for one part of it.

    An inline device is called on the lane's thread. Any other has ``inside`` up to its credits, and
    the thread waits for its answers.
    """

    def __init__(self, device: Device, stage: Stage, lock: threading.Lock) -> None:
        info = device.describe()
        if info.credits < 1:
            raise DeviceError(f"device '{info.name}': offers {info.credits} credits, needs 1")
        self.device = device
        self.stage = stage
        self.name = info.name
        self.kind = info.kind
        self.attach = info.attach
        self.credits = info.credits
        self.inline = isinstance(device, InlineDevice) and device.inline
        self.backlog: deque[Item] = deque()  # given to the lane, not yet to the device
        self.inside: dict[int, Item] = {}
        self.since: dict[int, float] = {}  # time.monotonic() when an item went into the device
        self.answered = time.monotonic()
        self.wake = threading.Condition(lock)
        self.thread: threading.Thread | None = None
        self.failed: DeviceError | None = None
        self.dismissed = False  # gets no items any more, and finishes those that it has
        self.service: float | None = None  # seconds of an item while there is always a next one
        self._free_at = 0.0
        self._bound: dict[Slot, Callable[[], dict[str, int]]] = {}

    @property
    def label(self) -> str:
        return f"'{self.name}' ({self.attach})"

    def has_room(self) -> bool:
        """A further item would go into the device at once."""
        limit = 1 if self.inline else self.credits
        return not (self.failed or self.dismissed) and len(self.backlog) + len(self.inside) < limit

    def measure(self, entered: float, left: float) -> None:
        """An item came and went; times of ``time.monotonic()``.

        What a device takes for an item is the time since it was free: since the item before left,
        if this one waited for that. The mean forgets: a quarter is of the latest, all after a rest.
        """
        seconds = left - max(entered, self._free_at)
        rested = entered - self._free_at > _REST
        mean = seconds if self.service is None or rested else self.service
        self._free_at = left
        self.service = mean + (seconds - mean) / 4

    def compute(self, slot: Slot) -> dict[str, int]:
        """One item on an inline device, from and into the slot's arrays; its counters."""
        call = self._bound.get(slot)
        if call is None:
            assert isinstance(self.device, InlineDevice)
            call = self._bound[slot] = self.device.bind(
                [slot.arrays[spec.name] for spec in self.stage.inputs],
                [slot.arrays[spec.name] for spec in self.stage.outputs],
            )
        return call()

    def unbind(self) -> None:
        """Let go of the device's bindings to the slots."""
        self._bound.clear()

    def span(self, ready: float, started: float, finished: float, counters: dict[str, int]) -> Span:
        return Span(self.stage.index, self.name, self.attach, ready, started, finished, counters)


class Group:
    """The devices that together hold a stage once: one, or one for each of its parts."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = list(lanes)
        self.paused = False
        """It gets no items while another group of the stage is there,"""
        self.tries = 0
        """but for so many."""

    def has_room(self) -> bool:
        return all(lane.has_room() for lane in self.lanes)

    def is_sound(self) -> bool:
        """None of its devices is lost."""
        return all(lane.failed is None for lane in self.lanes)

    def load(self) -> int:
        lane = self.lanes[0]
        return len(lane.backlog) + len(lane.inside)


class Station:
    """A stage: its groups (replicas), and the items that wait for one."""

    def __init__(self, stage: Stage, groups: Sequence[Group]) -> None:
        self.stage = stage
        self.groups = list(groups)
        self.queue: deque[Item] = deque()
        self.error: DeviceError | None = None  # once no group is left
        self.losses: dict[int, Loss] = {}  # by the ticket whose answer ends them

    @property
    def lanes(self) -> list[Lane]:
        return [lane for group in self.groups for lane in group.lanes]

    def put(self, item: Item) -> None:
        """An item waits, before those of later tickets: answers go out in the tickets' order."""
        place = len(self.queue)
        while place and self.queue[place - 1].ticket > item.ticket:
            place -= 1
        self.queue.insert(place, item)

    def idle(self) -> Group | None:
        """The group with the least to do, among those with room."""
        groups = [g for g in self.groups if not g.paused or g.tries] or self.groups
        with_room = [group for group in groups if group.has_room()]
        if not with_room:
            return None
        found = min(with_room, key=Group.load)
        found.tries = max(0, found.tries - 1)
        return found


def mismatch(lane: Lane, completion: Completion) -> DeviceError | None:
    """An answer of other tensors than the stage's must not travel on."""
    specs = lane.stage.outputs
    found = [(b.array.dtype.name, b.array.shape) for b in completion.outputs]
    wanted = [(spec.dtype, spec.shape) for spec in specs]
    if completion.error is not None or found == wanted:
        return None
    return DeviceError(
        f"device {lane.label}: stage {lane.stage.index} answered {found}, must be {wanted}; "
        "compile the model again"
    )


def wrapped(lane: Lane, error: Exception) -> DeviceError:
    """``error`` as one that names the device."""
    if isinstance(error, DeviceError):
        return error
    found = DeviceError(
        f"device {lane.label}: {type(error).__name__}: {' '.join(str(error).split())}"
    )
    found.__cause__ = error
    return found
