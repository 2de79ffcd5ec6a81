"""Moves items from device to device; when a device is lost, its items go to another one.

An item waits at its stage for a group of devices that is idle. Each device has a thread: an inline
one is called there, for any other it waits for the answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from .device import Buffer, Completion, Device, DeviceBusy, DeviceError, Stage
from .lane import Group, Item, Lane, Loss, Span, Station, mismatch, wrapped

__all__ = ["Fallback", "Flow"]

_log = logging.getLogger("trivet.runtime")

Fallback = Callable[[Stage, str, int], Device]
_Sends = list[tuple[Lane, Item]]
_GLANCE: Final = 1.0  # seconds after which a thread that waits for answers looks whether to go on


class Flow:
    """The stages with their devices.

    Parameters
    ----------
    stages, devices, fallback, strict, timeout
        As :class:`trivet.runtime.pipeline.Pipeline` has them.
    lock
        Guards everything here, and the items.
    finish
        Called for each item that is through, or whose ``error`` is set; without the lock, on any
        thread.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        devices: Sequence[Sequence[Device]],
        lock: threading.Lock,
        finish: Callable[[Item], None],
        *,
        fallback: Fallback | None,
        strict: bool,
        timeout: float | None,
    ) -> None:
        self._lock = lock
        self._finish = finish
        self._fallback = fallback
        self._strict = strict
        self._timeout = timeout
        self.stations = [
            Station(stage, list(self._groups(stage, given)))
            for stage, given in zip(stages, devices, strict=True)
        ]
        self._retired: list[Lane] = []
        self._closed = False
        self.notices: list[str] = []
        """What the user should know of; guarded by the lock."""
        self.losses: list[Loss] = []
        """Devices lost whose stage goes on; guarded by the lock."""

    @property
    def lanes(self) -> list[Lane]:
        """The devices at work; under the lock."""
        return [lane for station in self.stations for lane in station.lanes]

    @property
    def is_current(self) -> bool:
        """The caller is on a device's thread."""
        here = threading.current_thread()
        with self._lock:
            return any(lane.thread is here for lane in (*self.lanes, *self._retired))

    def start(self) -> None:
        for lane in self.lanes:
            self._start(lane)

    def enter(self, item: Item) -> None:
        """Take an item in at its stage."""
        with self._lock:
            sends = self._enqueue(item)
            refused = item.error is not None
        self._send(sends)
        if refused:
            self._finish(item)

    def add(self, station: Station, device: Device) -> Group | None:
        """Put a prepared device to work as a further replica; None, and closed, once all is."""
        lane = Lane(device, station.stage, self._lock)
        group = Group([lane])
        with self._lock:
            closed = self._closed
            if not closed:
                station.groups.append(group)
                self._start(lane)
                sends = self._dispatch(station)
        if closed:
            self._close_device(lane)
            return None
        self._send(sends)
        return group

    def dismiss(self, station: Station, group: Group) -> None:
        """A replica gets no items any more; another one must be left."""
        with self._lock:
            if group not in station.groups:
                return  # it was lost
            self._remove(station, group)
            for lane in group.lanes:
                lane.dismissed = True
                for item in lane.backlog:
                    station.put(item)
                lane.backlog.clear()
            sends = self._dispatch(station)
        self._send(sends)

    def replace(self, lane: Lane, error: DeviceError) -> bool:
        """Take a device out of use whose items can go elsewhere; whether they can."""
        with self._lock:
            station = self.stations[lane.stage.index]
            others = [g for g in station.groups if lane not in g.lanes and g.is_sound()]
            movable = not self._strict and (bool(others) or self._can_retry(lane))
        if movable:
            self._fail(lane, error)
        return movable

    def close(self) -> None:
        """Stop the devices; comes back when their threads have ended, but for the caller's own."""
        with self._lock:
            self._closed = True
            lanes = [*self.lanes, *self._retired]
            for lane in lanes:
                lane.wake.notify_all()
        for lane in lanes:
            self._close_device(lane)
        for lane in lanes:
            if lane.thread is not None and lane.thread is not threading.current_thread():
                lane.thread.join()
            lane.unbind()

    def _groups(self, stage: Stage, devices: Sequence[Device]) -> list[Group]:
        pieces = stage.parts or (stage,)
        if not devices or len(devices) % len(pieces):
            raise ValueError(
                f"stage {stage.index}: {len(devices)} devices for {len(pieces)} parts, must be a "
                "multiple of them"
            )
        lanes = [
            Lane(device, pieces[k % len(pieces)], self._lock) for k, device in enumerate(devices)
        ]
        return [Group(lanes[k : k + len(pieces)]) for k in range(0, len(lanes), len(pieces))]

    @staticmethod
    def _close_device(lane: Lane) -> None:
        try:
            lane.device.close()
        except Exception:
            _log.exception("device %s: close failed", lane.label)

    def _start(self, lane: Lane) -> None:
        lane.thread = threading.Thread(
            target=self._serve,
            args=(lane,),
            name=f"trivet-stage-{lane.stage.index}-{lane.name}",
            daemon=True,
        )
        lane.thread.start()

    # The caller of these holds the lock; they tell what must then be sent without it.

    def _enqueue(self, item: Item) -> _Sends:
        """The item is at its stage; its error is set when no device is left there."""
        station = self.stations[item.stage]
        item.ready = time.perf_counter()
        if station.error is not None:
            item.error = _again(station.error)
            return []
        station.put(item)
        return self._dispatch(station)

    def _dispatch(self, station: Station) -> _Sends:
        """Give waiting items to groups that are idle."""
        sends: _Sends = []
        while station.queue:
            group = station.idle()
            if group is None:
                break
            item = station.queue.popleft()
            item.left = len(group.lanes)
            for lane in group.lanes:
                lane.backlog.append(item)
                sends += self._pump(lane)
        return sends

    @staticmethod
    def _pump(lane: Lane) -> _Sends:
        """Move items of a lane's backlog into the device, as its credits allow."""
        sends: _Sends = []
        if lane.inline:
            lane.wake.notify()
            return sends
        while lane.backlog and len(lane.inside) < lane.credits:
            item = lane.backlog.popleft()
            lane.inside[item.ticket] = item
            lane.since[item.ticket] = time.monotonic()
            sends.append((lane, item))
        return sends

    # These take it themselves.

    def _send(self, sends: _Sends) -> None:
        for lane, item in sends:
            slot = item.slot
            if slot is None:
                continue  # the lane was lost meanwhile, and another has answered
            inputs = [Buffer(slot.arrays[spec.name]) for spec in lane.stage.inputs]
            try:
                lane.device.submit(item.ticket, inputs)
            except DeviceBusy:
                error = DeviceError(
                    f"device {lane.label}: refused an item within the {lane.credits} credits it "
                    "offers"
                )
                self._fail(lane, error)
            except Exception as error:
                self._fail(lane, wrapped(lane, error))

    def _serve(self, lane: Lane) -> None:
        """A lane's thread."""
        if lane.inline:
            self._compute(lane)
        else:
            self._collect(lane)
        if lane.failed is not None:
            self._close_device(lane)

    def _compute(self, lane: Lane) -> None:
        while True:
            with self._lock:
                while not (lane.backlog or lane.failed or self._closed):
                    lane.wake.wait()
                if lane.failed or self._closed:
                    return
                item = lane.backlog.popleft()
                lane.inside[item.ticket] = item
            assert item.slot is not None
            entered = time.monotonic()
            started = time.perf_counter()
            error: DeviceError | None = None
            counters: dict[str, int] = {}
            try:
                counters = lane.compute(item.slot)
            except Exception as caught:
                error = wrapped(lane, caught)
            finished = time.perf_counter()
            if error is not None and self._can_retry(lane):
                self._fail(lane, error)
                return
            with self._lock:
                del lane.inside[item.ticket]
                lane.measure(entered, time.monotonic())
            self._leave(lane, item, lane.span(item.ready, started, finished, counters), error)

    def _collect(self, lane: Lane) -> None:
        """Take answers until the device is lost or all is closed."""
        poll = _GLANCE if self._timeout is None else min(_GLANCE, self._timeout / 4)
        while lane.failed is None and not self._closed:
            try:
                self._answer(lane, lane.device.result(poll))
            except TimeoutError:
                late = self._late(lane)
                if late is not None:
                    self._fail(lane, late)
            except Exception as error:
                self._fail(lane, wrapped(lane, error))

    def _late(self, lane: Lane) -> DeviceError | None:
        with self._lock:
            if self._timeout is None or not lane.inside:
                return None
            since = max(lane.answered, min(lane.since[ticket] for ticket in lane.inside))
            waited = time.monotonic() - since
            if waited < self._timeout:
                return None
            return DeviceError(
                f"device {lane.label}: {len(lane.inside)} items inside and no answer for "
                f"{waited:.1f} s, the limit is {self._timeout:g} s"
            )

    def _answer(self, lane: Lane, completion: Completion) -> None:
        error = completion.error or mismatch(lane, completion)
        with self._lock:
            known = completion.ticket in lane.inside
            retry = known and error is not None and self._can_retry(lane)
            if not retry:  # from here on no other thread moves the item
                lane.answered = time.monotonic()
                item = lane.inside.pop(completion.ticket, None)
                entered = lane.since.pop(completion.ticket, lane.answered)
                lane.measure(entered, lane.answered)
        if retry:
            assert error is not None
            completion.release()
            self._fail(lane, error)
            return
        if item is None:
            _log.warning("device %s: dropped an answer nobody waits for", lane.label)
            completion.release()
            return
        assert item.slot is not None
        if error is None:
            for spec, buffer in zip(lane.stage.outputs, completion.outputs, strict=True):
                item.slot.arrays[spec.name][...] = buffer.array
        completion.release()
        span = lane.span(item.ready, completion.started, completion.finished, completion.counters)
        self._leave(lane, item, span, error)

    def _leave(self, lane: Lane, item: Item, span: Span, error: DeviceError | None) -> None:
        """A lane is done with an item: it takes the next, and this one moves on."""
        assert item.slot is not None
        station = self.stations[lane.stage.index]
        if station.stage.parts and error is None:
            item.slot.gather(lane.stage.outputs)
        with self._lock:
            if station.losses and error is None:
                self._recovered(station.losses.pop(item.ticket, None))
            item.spans.append(span)
            item.error = item.error or error
            item.left -= 1
            sends = self._pump(lane) if lane.backlog else []
            sends += self._dispatch(station)
            through = item.left == 0
            if through and item.error is None and item.stage + 1 < len(self.stations):
                item.stage += 1
                sends += self._enqueue(item)
                through = item.error is not None
        self._send(sends)
        if through:
            self._finish(item)

    def _can_retry(self, lane: Lane) -> bool:
        """Whether a bad answer is the device's fault, and the CPU can give a good one."""
        if self._fallback is None or self._strict or lane.attach == "cpu":
            return False
        if lane.stage.kind == "program":
            return lane.stage.fallback is not None
        return lane.kind == "cpu"  # the same onnxruntime, elsewhere

    def _fail(self, lane: Lane, error: DeviceError) -> None:
        """A device is lost: its items go to a replica or to the CPU, or end with ``error``."""
        began = time.perf_counter()
        sends: _Sends = []
        with self._lock:
            if lane.failed is not None or self._closed:
                return
            lane.failed = error
            # What was inside since before the last answer waits since that one.
            since = max(lane.answered, min(lane.since.values(), default=time.monotonic()))
            lane.wake.notify_all()
            station = self.stations[lane.stage.index]
            group = next((g for g in station.groups if lane in g.lanes), None)
            orphans = sorted([*lane.inside.values(), *lane.backlog], key=lambda i: i.ticket)
            loss = Loss(lane.stage.index, lane.name, lane.attach, str(error), since)
            lane.inside.clear()
            lane.since.clear()
            lane.backlog.clear()
            others = [g for g in station.groups if g is not group and g.is_sound()]
            alone = lane.dismissed if group is None else len(group.lanes) == 1
            moves = not self._strict and alone and bool(others)
            if moves:
                if group is not None:
                    self._remove(station, group)
                for item in orphans:
                    station.put(item)
                sends = self._dispatch(station)
                names = ", ".join(x.label for g in others for x in g.lanes)
                self._tell(lane, len(orphans), f"device {names}", began)
                self._await_recovery(station, orphans, loss)
        self._send(sends)
        if moves:
            return
        if group is not None and self._can_retry(lane):
            assert self._fallback is not None
            try:
                device = self._fallback(lane.stage, lane.name, lane.credits)
                substitute = Lane(device, lane.stage, self._lock)
            except Exception as second:
                error = DeviceError(f"{error}; and its CPU fallback failed: {second}")
            else:
                self._substitute(group, lane, substitute, orphans, began, loss)
                return
        self._give_up(station, group, orphans, error)

    def _remove(self, station: Station, group: Group) -> None:
        station.groups.remove(group)
        self._retired += group.lanes

    def _tell(self, lane: Lane, orphans: int, where: str, began: float) -> None:
        notice = (
            f"device {lane.label} failed at stage {lane.stage.index} ({lane.failed}); {orphans} "
            f"items under way and all later ones run on {where}, which gives the same bytes, ready "
            f"after {time.perf_counter() - began:.2f} s; Session(strict=True) makes this an error"
        )
        _log.warning("%s", notice)
        self.notices.append(notice)

    def _await_recovery(self, station: Station, orphans: list[Item], loss: Loss) -> None:
        """The stage has recovered when the first item that was lost has its answer."""
        if orphans:
            station.losses[orphans[0].ticket] = loss
        else:
            self.losses.append(loss)

    def _recovered(self, loss: Loss | None) -> None:
        if loss is not None:
            done = replace(loss, seconds=time.monotonic() - loss.since)
            self.losses.append(done)
            _log.info("stage %d goes on, %.2f s after '%s'", done.stage, done.seconds, done.device)

    def _substitute(
        self,
        group: Group,
        lane: Lane,
        substitute: Lane,
        orphans: list[Item],
        began: float,
        loss: Loss,
    ) -> None:
        with self._lock:
            closed = self._closed
            sends: _Sends = []
            if not closed:
                group.lanes[group.lanes.index(lane)] = substitute
                self._retired.append(lane)
                substitute.backlog.extend(orphans)
                self._tell(lane, len(orphans), "the CPU fallback", began)
                self._await_recovery(self.stations[lane.stage.index], orphans, loss)
                self._start(substitute)
                sends = self._pump(substitute)
                sends += self._dispatch(self.stations[lane.stage.index])
        if closed:
            self._close_device(substitute)
        self._send(sends)

    def _give_up(
        self, station: Station, group: Group | None, orphans: list[Item], error: DeviceError
    ) -> None:
        """The group is no more; without another one the stage ends with ``error`` from now on.

        None: it was given up before, when another of its devices was lost.
        """
        with self._lock:
            if self._closed:
                return
            if group is not None:
                self._remove(station, group)
            ended = []
            for item in orphans:
                item.error = item.error or _again(error)
                item.left -= 1
                if item.left == 0:  # else another part of it is still under way
                    ended.append(item)
            if not station.groups:
                station.error = error
                for item in station.queue:
                    item.error = _again(error)
                ended += station.queue
                station.queue.clear()
        for item in ended:
            self._finish(item)


def _again(error: DeviceError) -> DeviceError:
    """A copy for one more item: raising one exception object in two threads mixes tracebacks."""
    copy = DeviceError(str(error))
    copy.__cause__ = error.__cause__
    return copy
