"""The pipeline keeps order, answers each item once, bounds what is inside, and never hangs."""

from __future__ import annotations

import hashlib
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from trivet.runtime.device import (
    Buffer,
    Completion,
    DeviceBusy,
    DeviceError,
    DeviceInfo,
    Stage,
    TensorSpec,
)
from trivet.runtime.pipeline import Pipeline

Array = np.ndarray[Any, Any]


class Gauge:
    """How many items are inside devices, and the most there were."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = 0

    def add(self, step: int) -> None:
        with self.lock:
            self.now += step
            self.most = max(self.most, self.now)


class ShuffleDevice:
    """Adds 1; answers each item after a random delay, on a thread of its own, in any order.

    ``trouble(ticket, count)`` says what goes wrong with the ``count``-th item: "" nothing, "error",
    "die" (result raises), "hang", "twice", "shape", "refuse" (submit raises), "busy".
    """

    def __init__(
        self,
        name: str,
        *,
        credits: int = 3,
        delay: float = 0.002,
        seed: int = 0,
        gauge: Gauge | None = None,
        trouble: Callable[[int, int], str] = lambda ticket, count: "",
        attach: str = "fake",
    ) -> None:
        self.info = DeviceInfo(name, "fpga", attach, credits)
        self.random = random.Random(seed)
        self.delay, self.gauge, self.trouble = delay, gauge, trouble
        self.answers: queue.SimpleQueue[Completion | None] = queue.SimpleQueue()
        self.seen: list[int] = []
        self.inside = 0
        self.closed = False
        self.released = 0

    def describe(self) -> DeviceInfo:
        return self.info

    def prepare(self, stage: Stage) -> None:
        pass

    def submit(self, ticket: int, inputs: Sequence[Buffer]) -> None:
        if self.closed:
            raise DeviceError("the board is gone")
        what = self.trouble(ticket, len(self.seen))
        self.seen.append(ticket)
        if what == "refuse":
            raise DeviceError("no such board any more")
        if what == "busy" or self.inside >= self.info.credits:
            raise DeviceBusy("busy")
        self.inside += 1
        if self.gauge:
            self.gauge.add(1)
        if what == "hang":
            return
        wait = self.random.random() * self.delay
        threading.Timer(wait, self._answer, (ticket, inputs[0].array, what)).start()

    def _answer(self, ticket: int, x: Array, what: str) -> None:
        if what == "die":
            self.close()
            return
        y = x + 1 if what != "shape" else np.zeros((7,), np.int64)
        error = DeviceError("lost every frame") if what == "error" else None
        for _ in range(2 if what == "twice" else 1):
            self.answers.put(
                Completion(ticket, (Buffer(y),), error=error, on_release=self._release)
            )

    def _release(self) -> None:
        self.released += 1

    def result(self, timeout: float | None) -> Completion:
        try:
            answer = self.answers.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        if answer is None:
            self.answers.put(None)
            raise DeviceError("the board is gone")
        self.inside -= 1
        if self.gauge:
            self.gauge.add(-1)
        return answer

    def close(self) -> None:
        self.closed = True
        self.answers.put(None)


def stages(count: int, kind: str = "program") -> list[Stage]:
    names = [f"t{i}" for i in range(count + 1)]
    payload = b"p"
    return [
        Stage(
            index=i,
            kind=kind,  # type: ignore[arg-type]
            payload=payload,
            sha256=hashlib.sha256(payload).hexdigest(),
            inputs=(TensorSpec(names[i], "int64", (1,)),),
            outputs=(TensorSpec(names[i + 1], "int64", (1,)),),
            fallback=b"f",
        )
        for i in range(count)
    ]


def pipeline(devices: Sequence[ShuffleDevice], **options: Any) -> Pipeline:
    return Pipeline(stages(len(devices)), devices, [f"t{len(devices)}"], **options)


def cpu(stage: Stage, name: str, credits: int) -> ShuffleDevice:
    return ShuffleDevice(name, credits=credits, attach="cpu")


def drive(pipe: Pipeline, count: int) -> list[int | str]:
    """Values out for values in 0..count-1, as a session streams them; errors as their text."""
    out: list[int | str] = []
    pending: list[int] = []

    def take() -> None:
        try:
            values = pipe.take(pending.pop(0)).values
            out.append(int(next(iter(values.values()))[0]))
        except DeviceError as error:
            out.append(str(error))

    for value in range(count):
        while True:
            ticket = None
            if len(pending) < pipe.capacity:
                ticket = pipe.step({"t0": np.int64([value])}, pending[0] if pending else None)
            if ticket is not None:
                pending.append(ticket)
                break
            take()
    while pending:
        take()
    return out


def in_time(work: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The result of ``work``; a hang fails."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "hangs"
    return result[0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("credits", [(1, 1, 1), (3, 1, 2), (4, 4, 4)])
def test_order_once_and_bound_under_random_delays(seed: int, credits: tuple[int, ...]) -> None:
    gauge = Gauge()
    devices = [
        ShuffleDevice(f"d{i}", credits=c, seed=seed * 10 + i, gauge=gauge)
        for i, c in enumerate(credits)
    ]
    pipe = pipeline(devices)
    try:
        assert in_time(lambda: drive(pipe, 60)) == [v + 3 for v in range(60)]
    finally:
        pipe.close()
    assert gauge.now == 0
    assert gauge.most <= sum(credits)
    for device in devices:
        assert sorted(device.seen) == list(range(60))
        assert device.released == 60


def test_stages_overlap() -> None:
    """Three stages of 10 ms: 20 items take about 20 steps, not 60."""
    devices = [ShuffleDevice(f"d{i}", credits=2, delay=0.0) for i in range(3)]
    for device in devices:
        device.random = type("Fixed", (), {"random": staticmethod(lambda: 1.0)})()  # type: ignore[assignment]
        device.delay = 0.01
    pipe = pipeline(devices)
    try:
        began = time.perf_counter()
        in_time(lambda: drive(pipe, 20))
        assert time.perf_counter() - began < 0.45
    finally:
        pipe.close()


def test_answer_given_twice_is_taken_once() -> None:
    devices = [ShuffleDevice("d0", trouble=lambda t, c: "twice"), ShuffleDevice("d1")]
    pipe = pipeline(devices)
    try:
        assert in_time(lambda: drive(pipe, 20)) == [v + 2 for v in range(20)]
    finally:
        pipe.close()
    assert sorted(devices[1].seen) == list(range(20))


TROUBLES = ["error", "die", "refuse", "busy", "shape", "hang"]


@pytest.mark.parametrize("what", TROUBLES)
@pytest.mark.parametrize("at", [0, 5])
def test_lost_device_is_replaced_by_the_cpu(what: str, at: int) -> None:
    bad = ShuffleDevice("d1", trouble=lambda t, c: what if c == at else "")
    pipe = pipeline([ShuffleDevice("d0"), bad, ShuffleDevice("d2")], fallback=cpu, timeout=0.5)
    try:
        assert in_time(lambda: drive(pipe, 30)) == [v + 3 for v in range(30)]
        (notice,) = pipe.take_notices()
        assert "device 'd1' (fake) failed at stage 1" in notice
        assert not pipe.take_notices()
        assert pipe.report()[1].attach == "cpu"
    finally:
        pipe.close()
    assert bad.closed


@pytest.mark.parametrize("what", ["die", "refuse", "busy", "hang"])
def test_strict_fails_every_item_from_then_on(what: str) -> None:
    bad = ShuffleDevice("d1", trouble=lambda t, c: what if c >= 5 else "", credits=1)
    pipe = pipeline([ShuffleDevice("d0"), bad], fallback=cpu, strict=True, timeout=0.5)
    try:
        found = in_time(lambda: drive(pipe, 12))
    finally:
        pipe.close()
    good = [v for v in found if isinstance(v, int)]
    assert len(found) == 12
    assert len(good) == 5
    assert not pipe.take_notices()


@pytest.mark.parametrize("what", ["error", "shape"])
def test_strict_error_goes_to_its_own_item(what: str) -> None:
    bad = ShuffleDevice("d1", trouble=lambda t, c: what if t == 4 else "")
    pipe = pipeline([ShuffleDevice("d0"), bad], strict=True)
    try:
        found = in_time(lambda: drive(pipe, 12))
    finally:
        pipe.close()
    assert [v for v in found if isinstance(v, int)] == [v + 2 for v in range(12) if v != 4]
    assert "lost every frame" in str(found[4]) or "must be [('int64', (1,))]" in str(found[4])


def test_fallback_that_fails_too_names_both() -> None:
    def broken(stage: Stage, name: str, credits: int) -> ShuffleDevice:
        raise DeviceError("no memory")

    pipe = pipeline([ShuffleDevice("d0", trouble=lambda t, c: "die")], fallback=broken)
    try:
        found = in_time(lambda: drive(pipe, 5))
    finally:
        pipe.close()
    assert all("the board is gone; and its CPU fallback failed: no memory" in str(v) for v in found)


def test_onnx_stage_has_no_second_home() -> None:
    device = ShuffleDevice("d0", trouble=lambda t, c: "die" if c == 1 else "")
    pipe = Pipeline(stages(1, "onnx"), [device], ["t1"], fallback=cpu)
    try:
        found = in_time(lambda: drive(pipe, 5))
    finally:
        pipe.close()
    assert any("the board is gone" in str(v) for v in found)


@pytest.mark.parametrize("seed", range(3))
def test_every_stage_lost_at_a_random_time(seed: int) -> None:
    pick = random.Random(seed)
    devices = []
    for i in range(3):
        at, what = pick.randrange(20), pick.choice(TROUBLES)
        devices.append(
            ShuffleDevice(
                f"d{i}", seed=seed, trouble=lambda t, c, at=at, what=what: what if c == at else ""
            )
        )
    pipe = pipeline(devices, fallback=cpu, timeout=0.5)
    try:
        assert in_time(lambda: drive(pipe, 60)) == [v + 3 for v in range(60)]
    finally:
        pipe.close()


def test_close_from_another_thread_ends_who_waits() -> None:
    pipe = pipeline([ShuffleDevice("d0", trouble=lambda t, c: "hang")])
    ticket = pipe.submit({"t0": np.int64([0])})
    threading.Timer(0.05, pipe.close).start()

    def wait() -> str:
        try:
            pipe.take(ticket)
        except DeviceError as error:
            return str(error)
        return ""

    assert "the session is closed" in in_time(wait)
    pipe.close()
    with pytest.raises(DeviceError, match="closed"):
        pipe.submit({"t0": np.int64([0])})


def test_close_while_busy_leaves_no_threads() -> None:
    before = {t.ident for t in threading.enumerate()}
    pipe = pipeline([ShuffleDevice("d0", credits=1), ShuffleDevice("d1", credits=1, delay=0.2)])
    for value in range(2):
        pipe.submit({"t0": np.int64([value])})
    pipe.close()
    left = [
        t
        for t in threading.enumerate()
        if t.ident not in before and t.name.startswith("trivet-stage")
    ]
    assert not left


def test_abandoned_items_give_their_credits_back() -> None:
    pipe = pipeline([ShuffleDevice("d0", credits=2)])
    try:
        for _ in range(10):
            tickets = [pipe.submit({"t0": np.int64([0])}) for _ in range(2)]
            pipe.abandon(tickets)
        assert in_time(lambda: drive(pipe, 5)) == [1, 2, 3, 4, 5]
        assert not pipe._done
    finally:
        pipe.close()


def test_device_without_credits_is_refused() -> None:
    with pytest.raises(DeviceError, match="'d0': offers 0 credits"):
        pipeline([ShuffleDevice("d0", credits=0)])


def test_only_outputs_are_left_at_the_end() -> None:
    pipe = pipeline([ShuffleDevice("d0"), ShuffleDevice("d1")])
    try:
        item = pipe.take(pipe.submit({"t0": np.int64([5]), "unread": np.int64([1])}))
    finally:
        pipe.close()
    assert set(item.values) == {"t2"}
