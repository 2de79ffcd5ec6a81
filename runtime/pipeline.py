"""Runs items through the stages: bounded, in order, exactly one answer for each.

An item has a slot of the ring from its submission to its end, so the slots bound what is under way.
Items of different callers share the stages; a caller takes its own answers by ticket, so none waits
for another's consumer.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .balance import Balancer
from .delivery import Delivery
from .device import (
    Buffer,
    Device,
    DeviceError,
    InlineDevice,
    Scrubbed,
    ScrubbedDevice,
    Stage,
    TensorSpec,
)
from .flow import Fallback, Flow
from .lane import Group, Item, Loss, Station, mismatch
from .report import Reports
from .ring import Array, Slot, specs_of

__all__ = ["Item", "Pipeline"]

_log = logging.getLogger("trivet.runtime")
_HAS_AFFINITY = hasattr(os, "sched_getaffinity")


class Pipeline:
    """Runs items through ``stages``.

    Parameters
    ----------
    stages, devices
        Prepared devices for each stage, in order; the pipeline closes them. For a split stage one
        for each part; more such groups are replicas, of which any idle one takes the next item.
    outputs
        Names of the tensors an answer holds.
    fallback
        Makes and prepares the CPU's device for a stage, by the failed device's name, with as many
        credits as that had. Called for a program stage that has a fallback model.
    strict
        A failed device fails its items; nothing is retried.
    timeout
        Seconds after which a device that holds items and answers none counts as dead; None: never.
    watch
        Told of every item that is done, on any thread; must be quick.
    rebalance
        Stages whose boards are slow are shared with the CPU; see :mod:`.balance`. Needs
        ``fallback``, and ``threads``: those of one CPU device (0: all cores).
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        devices: Sequence[Sequence[Device]],
        outputs: Sequence[str],
        *,
        fallback: Fallback | None = None,
        strict: bool = False,
        timeout: float | None = None,
        watch: Callable[[Item], None] | None = None,
        rebalance: bool = False,
        threads: int = 0,
    ) -> None:
        self._stages = stages
        self._watch = watch
        self._lock = threading.Lock()
        self._finished = threading.Condition(self._lock)
        self._flow = Flow(
            stages,
            devices,
            self._lock,
            self._finish,
            fallback=fallback,
            strict=strict,
            timeout=timeout,
        )
        known = specs_of(stages)
        self._made = [name for name in outputs if name in known]
        self._passed = [name for name in outputs if name not in known]  # inputs no stage touches
        self.capacity = sum(
            group.lanes[0].credits for s in self._flow.stations for group in s.groups
        )
        """Items that can be under way at once: the devices' credits together."""
        self._free = [Slot(stages) for _ in range(self.capacity)]
        self._done: dict[int, Item] = {}
        self._waiting: set[int] = set()  # tickets somebody will take; others' answers are dropped
        self._delivery = Delivery(self._lock, self._finished)
        self._next_ticket = 0
        self._closed = False
        self._down = threading.Event()
        self._flow.start()
        self._balancer: Balancer | None = None
        if rebalance and fallback is not None:
            self._balancer = Balancer(
                self._flow.stations,
                self._lock,
                fallback,
                self._grow,
                self._flow.dismiss,
                cores=len(os.sched_getaffinity(0)) if _HAS_AFFINITY else os.cpu_count() or 1,
                threads=threads,
            )
            self._balancer.start()

    @property
    def moves(self) -> tuple[str, ...]:
        """What re-balancing changed, in words."""
        return () if self._balancer is None else tuple(self._balancer.moves)

    def _grow(self, station: Station, device: Device, ahead: int) -> Group | None:
        """One more replica of a stage, and room for as many more items."""
        group = self._flow.add(station, device)
        if group is not None:
            slots = [Slot(self._stages) for _ in range(ahead)]
            with self._lock:
                self._free += slots
                self.capacity += ahead
                self._finished.notify_all()
        return group

    def reports(self) -> Reports:
        """Empty reports, one for each device now at work."""
        with self._lock:
            return Reports(self._flow.lanes)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Devices lost so far whose stage went on without them."""
        with self._lock:
            return tuple(self._flow.losses)

    def take_notices(self) -> list[str]:
        """Warnings since the last call, for the caller's thread to raise."""
        with self._lock:
            notices, self._flow.notices = self._flow.notices, []
            return notices

    def warn(self, stacklevel: int = 2) -> None:
        """Raise the notices as warnings of the caller's."""
        if self._flow.notices:  # read without the lock: this is asked after every item
            for notice in self.take_notices():
                warnings.warn(notice, RuntimeWarning, stacklevel=stacklevel + 1)

    def direct(self, values: Mapping[str, Array]) -> Item | None:
        """One item on the caller's thread, when all devices can; None when one cannot.

        Each change of thread costs tens of microseconds, which is much for a small model.
        """
        with self._lock:
            self._check_open()
            firsts = [s.groups[0].lanes if s.groups else [] for s in self._flow.stations]
        if not all(len(lanes) == 1 and lanes[0].inline for lanes in firsts):
            return None
        known = {name: Buffer.of(array) for name, array in values.items()}
        item = Item(-1, None, {})
        for (lane,) in firsts:
            ready = time.perf_counter()
            assert isinstance(lane.device, InlineDevice)
            done = lane.device.compute(item.ticket, [known[s.name] for s in lane.stage.inputs])
            error = done.error or mismatch(lane, done)
            if error is not None:
                self._check_open()
                raise error
            known |= zip((s.name for s in lane.stage.outputs), done.outputs, strict=True)
            item.spans.append(lane.span(ready, done.started, done.finished, done.counters))
        item.outputs = {name: known[name].array for name in (*self._made, *self._passed)}
        self._told(item)
        return item

    def scrub(self, model_of: Callable[[Stage], Device]) -> list[Scrubbed]:
        """Have every device that can check what it holds; see :class:`ScrubbedDevice`.

        ``model_of``: a prepared CPU device for a stage, which says what is right; closed here. A
        device that stays wrong is lost, as any that fails; DeviceError when its items have no other
        place.
        """
        with self._lock:
            self._check_open()
            lanes = self._flow.lanes
        found: list[Scrubbed] = []
        for lane in lanes:
            if not isinstance(lane.device, ScrubbedDevice):
                continue
            inputs = [_sample(spec) for spec in lane.stage.inputs]
            right = model_of(lane.stage)
            try:
                assert isinstance(right, InlineDevice)
                expected = right.compute(0, inputs)
            finally:
                right.close()
            if expected.error is not None:
                raise expected.error
            try:
                found.append(lane.device.scrub(inputs, expected.outputs))
            except DeviceError as error:
                if not self._flow.replace(lane, error):
                    raise
        return found

    def submit(
        self, values: Mapping[str, Array], deliver: Callable[[Item], None] | None = None
    ) -> int:
        """Put an item in; blocks for a slot. Its ticket. :class:`DeviceError` once closed.

        ``deliver`` is called with the item when it is done and all submitted before it with one
        were told of; without, :meth:`take` gives the answer. Not from a callback itself it also
        blocks while twice the capacity waits for callbacks.
        """
        ticket = self.step(values, None, deliver)
        assert ticket is not None
        return ticket

    def step(
        self,
        values: Mapping[str, Array],
        awaited: int | None,
        deliver: Callable[[Item], None] | None = None,
    ) -> int | None:
        """Put an item in; None when the answer to ``awaited`` comes before a free slot."""
        with self._lock:
            while True:
                self._check_open()
                if self._free and (deliver is None or self._may_deliver()):
                    slot = self._free.pop()
                    break
                if awaited is not None and awaited in self._done:
                    return None
                self._finished.wait()
        try:
            slot.fill(values)
            passed = {name: values[name].copy() for name in self._passed}
        except BaseException:
            with self._lock:
                self._release(slot)
            raise
        with self._lock:
            self._check_open()
            item = Item(self._next_ticket, slot, passed, deliver)
            self._next_ticket += 1
            if deliver is None:
                self._waiting.add(item.ticket)
            else:
                self._delivery.expect(item)
        self._flow.enter(item)
        return item.ticket

    def take(self, ticket: int) -> Item:
        """Wait for the answer to ``ticket``; each can be taken once. Raises the item's error."""
        with self._lock:
            while ticket not in self._done:
                self._check_open()
                self._finished.wait()
            item = self._done.pop(ticket)
        if item.error is not None:
            raise item.error
        return item

    def abandon(self, tickets: Sequence[int]) -> None:
        """Drop the answers to ``tickets``, now or when they come."""
        with self._lock:
            self._waiting.difference_update(tickets)
            for ticket in tickets:
                self._done.pop(ticket, None)

    def close(self) -> None:
        """Stop all devices and fail what is under way; idempotent, from any thread.

        Comes back when no thread of the pipeline is left, but for the caller's own.
        """
        with self._lock:
            first = not self._closed
            self._closed = True
            self._finished.notify_all()
        if first:
            if self._balancer is not None:
                self._balancer.close()
            self._flow.close()
            self._delivery.close(_closed_error())
            self._down.set()
        elif not (self._delivery.is_current or self._flow.is_current):
            self._down.wait()
        self._delivery.join()

    def _check_open(self) -> None:
        if self._closed:
            raise _closed_error()

    def _may_deliver(self) -> bool:
        return self._delivery.is_current or len(self._delivery) < 2 * self.capacity

    def _release(self, slot: Slot) -> None:
        self._free.append(slot)
        self._finished.notify_all()

    def _told(self, item: Item) -> None:
        if self._watch is None:
            return
        try:
            self._watch(item)
        except Exception:  # on a device's thread, which must go on
            _log.exception("what watches the items failed at item %d", item.ticket)

    def _finish(self, item: Item) -> None:
        slot = item.slot
        assert slot is not None
        if item.error is None:
            item.outputs |= {name: slot.arrays[name].copy() for name in self._made}
        self._told(item)
        with self._lock:
            item.slot = None
            item.done = True
            if item.deliver is not None:
                self._delivery.notify(item)
            elif item.ticket in self._waiting:
                self._waiting.discard(item.ticket)
                self._done[item.ticket] = item
            self._release(slot)


def _sample(spec: TensorSpec) -> Buffer:
    """A seeded item: any byte in integers, small numbers in floats."""
    rng = np.random.default_rng(2026)
    dtype = np.dtype(spec.dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return Buffer(rng.integers(limits.min, limits.max, spec.shape, dtype, endpoint=True))
    return Buffer(rng.standard_normal(spec.shape).astype(dtype))


def _closed_error() -> DeviceError:
    return DeviceError("the session is closed; open a new one")
