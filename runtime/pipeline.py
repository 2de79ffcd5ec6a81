"""Moves items through the stages: credits, order, exactly one answer each, and the CPU retry.

One lock and one condition guard everything. Each device has a thread that waits for its answers and
hands them to the next stage; it gives its own credit back only after that, so the items inside the
devices never exceed the sum of the credits. Items of different callers share the stages; a caller
takes its own answers by ticket, so none waits for another's consumer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy.typing as npt

from .device import Buffer, Completion, Device, DeviceBusy, DeviceError, InlineDevice, Stage

__all__ = ["Item", "Pipeline", "StageReport"]

_log = logging.getLogger("trivet.runtime")

Array = npt.NDArray[Any]

_JOIN_SECONDS: Final = 10.0


@dataclass
class StageReport:
    """What a stage did in one run: where, items, seconds inside the device, summed counters."""

    index: int
    device: str
    attach: str
    items: int = 0
    seconds: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)


@dataclass
class Item:
    """One item on its way. ``values`` holds its tensors that are still needed, by name."""

    ticket: int
    values: dict[str, Array]
    stage: int = 0
    submitted: float = 0.0  # time.monotonic() when it went into its present device
    error: DeviceError | None = None
    completions: list[tuple[str, str, float, dict[str, int]]] = field(default_factory=list)


class _Lane:
    """A device at work for one stage: its credits, and the items inside it."""

    def __init__(self, device: Device, stage: Stage) -> None:
        info = device.describe()
        if info.credits < 1:
            raise DeviceError(f"device '{info.name}': offers {info.credits} credits, needs 1")
        self.device = device
        self.stage = stage
        self.name = info.name
        self.attach = info.attach
        self.credits = info.credits
        self.inside: dict[int, Item] = {}
        self.answered = time.monotonic()
        self.thread: threading.Thread | None = None
        self.failed: DeviceError | None = None  # set once; its items move to a substitute,
        self.final = False  # or, when there is none, end with that error

    @property
    def label(self) -> str:
        return f"'{self.name}' ({self.attach})"


class Pipeline:
    """Runs items through ``stages``, each on its own device instance.

    Parameters
    ----------
    stages, devices
        One prepared device per stage, in order; the pipeline closes them.
    outputs
        Names of the tensors an answer holds.
    fallback
        Makes and prepares the CPU's device for a stage, by the failed device's name, with as many
        credits as that had. Called for a program stage that has a fallback model.
    strict
        A failed device fails its items; nothing is retried.
    timeout
        Seconds after which a device that holds items and answers none counts as dead; None: never.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        devices: Sequence[Device],
        outputs: Sequence[str],
        *,
        fallback: Callable[[Stage, str, int], Device] | None = None,
        strict: bool = False,
        timeout: float | None = None,
    ) -> None:
        self._stages = tuple(stages)
        self._fallback = None if strict else fallback
        self._timeout = timeout
        self._changed = threading.Condition()
        self._lanes = [_Lane(d, s) for d, s in zip(devices, self._stages, strict=True)]
        self._retired: list[_Lane] = []
        self._free = [lane.credits for lane in self._lanes]
        self._done: dict[int, Item] = {}
        self._waiting: set[int] = set()  # tickets somebody will take; others' answers are dropped
        self._next_ticket = 0
        self._closed = False
        self._notices: list[str] = []
        self._keep = _last_uses(self._stages, outputs)
        for lane in self._lanes:
            self._start(lane)

    @property
    def capacity(self) -> int:
        """Items that can be inside the devices at once: the sum of the credits."""
        return sum(lane.credits for lane in self._lanes)

    def report(self) -> list[StageReport]:
        """Empty reports, one per stage, for :meth:`account`."""
        with self._changed:
            return [StageReport(s.index, x.name, x.attach) for s, x in self._pairs()]

    @staticmethod
    def account(reports: list[StageReport], item: Item) -> None:
        """Add a finished item to the reports."""
        for report, (device, attach, seconds, counters) in zip(
            reports, item.completions, strict=False
        ):
            report.device, report.attach = device, attach
            report.items += 1
            report.seconds += seconds
            for key, value in counters.items():
                report.counters[key] = report.counters.get(key, 0) + value

    def take_notices(self) -> list[str]:
        """Warnings since the last call, for the caller's thread to raise."""
        with self._changed:
            notices, self._notices = self._notices, []
            return notices

    def direct(self, values: Mapping[str, Array]) -> Item | None:
        """One item on the caller's thread, when all devices can; None when one cannot.

        Each change of thread costs tens of microseconds, which is much for a small model.
        """
        with self._changed:
            self._check_open()
            lanes = list(self._lanes)
        item = Item(-1, dict(values))
        devices = [lane.device for lane in lanes]
        inline = [d for d in devices if isinstance(d, InlineDevice) and d.inline]
        if len(inline) != len(lanes):
            return None
        for lane, device in zip(lanes, inline, strict=True):
            inputs = [Buffer.of(item.values[spec.name]) for spec in lane.stage.inputs]
            completion = device.compute(item.ticket, inputs)
            error = completion.error or _mismatch(lane, completion)
            if error is not None:
                self._check_open()
                raise error
            _keep_outputs(lane, item, completion)
        return item

    def submit(self, values: Mapping[str, Array]) -> int:
        """Put an item in; blocks for a credit. Its ticket. :class:`DeviceError` once closed."""
        ticket = self.step(values, None)
        assert ticket is not None
        return ticket

    def step(self, values: Mapping[str, Array], awaited: int | None) -> int | None:
        """Put an item in; None when the answer to ``awaited`` comes before a free credit."""
        with self._changed:
            while True:
                self._check_open()
                if self._free[0] > 0:
                    break
                if awaited is not None and awaited in self._done:
                    return None
                self._changed.wait()
            self._free[0] -= 1
            item = Item(self._next_ticket, dict(values))
            self._next_ticket += 1
            self._waiting.add(item.ticket)
        self._enter(item)
        return item.ticket

    def take(self, ticket: int) -> Item:
        """Wait for the answer to ``ticket``; each can be taken once. Raises the item's error."""
        with self._changed:
            while ticket not in self._done:
                self._check_open()
                self._changed.wait()
            item = self._done.pop(ticket)
        if item.error is not None:
            raise item.error
        return item

    def abandon(self, tickets: Sequence[int]) -> None:
        """Drop the answers to ``tickets``, now or when they come."""
        with self._changed:
            self._waiting.difference_update(tickets)
            for ticket in tickets:
                self._done.pop(ticket, None)

    def close(self) -> None:
        """Stop all devices and fail what is under way; idempotent, from any thread."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            lanes = [*self._lanes, *self._retired]
            self._changed.notify_all()
        for lane in lanes:
            self._close_device(lane)
        for lane in lanes:
            if lane.thread is not None and lane.thread is not threading.current_thread():
                lane.thread.join(_JOIN_SECONDS)

    # Everything below runs on the thread of a caller or of a lane.

    def _pairs(self) -> list[tuple[Stage, _Lane]]:
        return list(zip(self._stages, self._lanes, strict=True))

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError("the session is closed; open a new one")

    @staticmethod
    def _close_device(lane: _Lane) -> None:
        try:
            lane.device.close()
        except Exception:
            _log.exception("device %s: close failed", lane.label)

    def _start(self, lane: _Lane) -> None:
        lane.thread = threading.Thread(
            target=self._collect, args=(lane,), name=f"trivet-stage-{lane.stage.index}", daemon=True
        )
        lane.thread.start()

    def _enter(self, item: Item) -> None:
        """Give the item, which holds a credit of its stage, to the stage's device."""
        with self._changed:
            lane = self._lanes[item.stage]
            item.submitted = time.monotonic()
            failed, final = lane.failed, lane.final
            if not final:
                lane.inside[item.ticket] = item
        if failed is not None:
            if final:
                self._finish(item, _again(failed))
            return  # else whoever replaces the lane moves the item
        try:
            inputs = [Buffer.of(item.values[spec.name]) for spec in lane.stage.inputs]
            lane.device.submit(item.ticket, inputs)
        except DeviceBusy:
            error = DeviceError(
                f"device {lane.label}: refused an item within the {lane.credits} credits it offers"
            )
            self._fail_lane(lane, error)
        except DeviceError as error:
            self._fail_lane(lane, error)
        except Exception as error:
            self._fail_lane(lane, _wrapped(lane, error))

    def _collect(self, lane: _Lane) -> None:
        """A lane's thread: take answers until the device dies or the pipeline closes."""
        poll = None if self._timeout is None else self._timeout / 4
        while lane.failed is None and not self._closed:
            try:
                self._answer(lane, lane.device.result(poll))
            except TimeoutError:
                late = self._late(lane)
                if late is not None:
                    self._fail_lane(lane, late)
            except DeviceError as error:
                self._fail_lane(lane, error)
            except Exception as error:
                self._fail_lane(lane, _wrapped(lane, error))

    def _late(self, lane: _Lane) -> DeviceError | None:
        with self._changed:
            if self._timeout is None or not lane.inside:
                return None
            since = max(lane.answered, min(i.submitted for i in lane.inside.values()))
            waited = time.monotonic() - since
            if waited < self._timeout:
                return None
            return DeviceError(
                f"device {lane.label}: {len(lane.inside)} items inside and no answer for "
                f"{waited:.1f} s, the limit is {self._timeout:g} s"
            )

    def _answer(self, lane: _Lane, completion: Completion) -> None:
        with self._changed:
            lane.answered = time.monotonic()
            known = completion.ticket in lane.inside
        if not known:
            _log.warning("device %s: dropped an answer nobody waits for", lane.label)
            completion.release()
            return
        error = completion.error or _mismatch(lane, completion)
        if error is not None and self._can_retry(lane):
            completion.release()
            self._fail_lane(lane, error)
            return
        with self._changed:
            item = lane.inside.pop(completion.ticket, None)
        if item is None:
            completion.release()
            return  # another thread failed the lane meanwhile and took the item along
        if error is None:
            try:
                _keep_outputs(lane, item, completion)
            except Exception as problem:  # no memory for a copy: the item must still get an answer
                error = _wrapped(lane, problem)
        completion.release()
        self._advance(item, error)

    def _advance(self, item: Item, error: DeviceError | None) -> None:
        """Move the item to the next stage, or out; then give back the credit it held."""
        stage = item.stage
        for name in [n for n in item.values if self._keep.get(n, -1) <= stage]:
            del item.values[name]
        if error is not None or stage + 1 == len(self._stages):
            self._finish(item, error)
            return
        with self._changed:
            while self._free[stage + 1] < 1 and not self._closed:
                self._changed.wait()
            if self._closed:
                return
            self._free[stage + 1] -= 1
            item.stage = stage + 1
        self._enter(item)
        with self._changed:
            self._free[stage] += 1
            self._changed.notify_all()

    def _finish(self, item: Item, error: DeviceError | None) -> None:
        with self._changed:
            item.error = error
            if item.ticket in self._waiting:
                self._waiting.discard(item.ticket)
                self._done[item.ticket] = item
            self._free[item.stage] += 1
            self._changed.notify_all()

    def _can_retry(self, lane: _Lane) -> bool:
        return (
            self._fallback is not None
            and lane.stage.kind == "program"
            and lane.stage.fallback is not None
            and lane.attach != "cpu"
        )

    def _fail_lane(self, lane: _Lane, error: DeviceError) -> None:
        """The device is lost: its items and all later ones go to the CPU, or end with ``error``."""
        with self._changed:
            if lane.failed is not None or self._closed:
                return
            lane.failed = error
        self._close_device(lane)
        substitute: _Lane | None = None
        if self._can_retry(lane):
            assert self._fallback is not None
            try:
                device = self._fallback(lane.stage, lane.name, lane.credits)
                substitute = _Lane(device, lane.stage)
            except Exception as second:
                error = DeviceError(f"{error}; and its CPU fallback failed: {second}")
        with self._changed:
            orphans = list(lane.inside.values())
            lane.inside.clear()
            if substitute is None:
                lane.failed, lane.final = error, True
            else:
                self._replace(lane, substitute, len(orphans))
            closed = self._closed
        if substitute is not None and closed:
            self._close_device(substitute)
        elif substitute is not None:
            self._start(substitute)
        for item in orphans:
            if substitute is None:
                self._finish(item, _again(error))
            else:
                self._enter(item)

    def _replace(self, lane: _Lane, substitute: _Lane, orphans: int) -> None:
        self._retired.append(lane)
        self._lanes[self._lanes.index(lane)] = substitute
        notice = (
            f"device {lane.label} failed at stage {lane.stage.index} ({lane.failed}); {orphans} "
            "items under way and all later ones run on the CPU fallback, which gives the same "
            "bytes; Session(strict=True) makes this an error"
        )
        _log.warning("%s", notice)
        self._notices.append(notice)


def _last_uses(stages: Sequence[Stage], outputs: Sequence[str]) -> dict[str, int]:
    """Tensor name -> index of the last stage that needs it; model outputs are needed to the end."""
    last: dict[str, int] = {}
    for position, stage in enumerate(stages):
        for spec in stage.outputs:
            last[spec.name] = position
        for spec in stage.inputs:
            last[spec.name] = position
    last.update(dict.fromkeys(outputs, len(stages)))
    return last


def _keep_outputs(lane: _Lane, item: Item, completion: Completion) -> None:
    """Put the answer into the item and give the buffers back."""
    # Outputs go back to a device that owns them at once: later stages may hold them for long.
    owned = completion.on_release is not None
    for spec, buffer in zip(lane.stage.outputs, completion.outputs, strict=True):
        item.values[spec.name] = buffer.array.copy() if owned else buffer.array
    completion.release()
    seconds = completion.finished - completion.started
    item.completions.append((lane.name, lane.attach, seconds, completion.counters))


def _mismatch(lane: _Lane, completion: Completion) -> DeviceError | None:
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


def _wrapped(lane: _Lane, error: Exception) -> DeviceError:
    wrapped = DeviceError(f"device {lane.label}: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _again(error: DeviceError) -> DeviceError:
    """A copy for one more item: raising one exception object in two threads mixes tracebacks."""
    copy = DeviceError(str(error))
    copy.__cause__ = error.__cause__
    return copy
