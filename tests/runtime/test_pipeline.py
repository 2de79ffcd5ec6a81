"""The pipeline keeps order, answers each item once, bounds what is inside, and never hangs."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from shuffle_device import Array, Gauge, ShuffleDevice, cpu, drive, in_time, pipeline, stages

from trivet.runtime.device import (
    DeviceError,
    Stage,
    TensorSpec,
)
from trivet.runtime.pipeline import Item, Pipeline


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
        assert pipe.reports().rows()[1].attach == "cpu"
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
    pipe = Pipeline(stages(1, "onnx"), [[device]], ["t1"], fallback=cpu)
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


def replicated(*groups: Sequence[ShuffleDevice], **options: Any) -> Pipeline:
    """Stages that add 1, each on a group of replicas."""
    return Pipeline(stages(len(groups)), groups, [f"t{len(groups)}"], **options)


@pytest.mark.parametrize("seed", range(3))
def test_replicas_share_the_items_and_keep_their_order(seed: int) -> None:
    first = [ShuffleDevice(f"a{k}", seed=seed + k, credits=1 + k) for k in range(3)]
    second = [ShuffleDevice(f"b{k}", seed=seed + 9 + k, delay=0.01) for k in range(2)]
    pipe = replicated(first, second)
    try:
        assert in_time(lambda: drive(pipe, 90)) == [v + 2 for v in range(90)]
    finally:
        pipe.close()
    for group in (first, second):
        assert sorted(t for d in group for t in d.seen) == list(range(90))
        assert all(d.seen for d in group)


@pytest.mark.parametrize("what", TROUBLES)
def test_lost_replica_leaves_its_items_to_the_others(what: str) -> None:
    bad = ShuffleDevice("bad", trouble=lambda t, c: what if c == 3 else "")
    good = ShuffleDevice("good")
    pipe = replicated([bad, good], [ShuffleDevice("last")], fallback=cpu, timeout=0.5)
    try:
        assert in_time(lambda: drive(pipe, 40)) == [v + 2 for v in range(40)]
        (notice,) = pipe.take_notices()
        assert "device 'bad' (fake) failed at stage 0" in notice
        assert "all later ones run on device 'good' (fake)" in notice
        assert [r.device for r in pipe.reports().rows()] == ["good", "last"]
    finally:
        pipe.close()
    assert bad.closed


def test_cpu_comes_when_the_last_replica_is_lost() -> None:
    devices = [
        ShuffleDevice(f"d{k}", trouble=lambda t, c, k=k: "die" if c == 2 + 3 * k else "")
        for k in range(3)
    ]
    pipe = replicated(devices, fallback=cpu)
    try:
        assert in_time(lambda: drive(pipe, 40)) == [v + 1 for v in range(40)]
        assert len(pipe.take_notices()) == 3
        assert [r.attach for r in pipe.reports().rows()] == ["cpu"]
    finally:
        pipe.close()


def test_strict_fails_the_items_of_a_lost_replica_alone() -> None:
    bad = ShuffleDevice("bad", credits=1, trouble=lambda t, c: "die" if c == 2 else "")
    pipe = replicated([bad, ShuffleDevice("good")], fallback=cpu, strict=True)
    try:
        found = in_time(lambda: drive(pipe, 30))
    finally:
        pipe.close()
    assert [v for v in found if isinstance(v, str)] == ["the board is gone"]
    assert [v for v in found if isinstance(v, int)] == [
        v + 1 for v in range(30) if v != bad.seen[2]
    ]


class PartDevice(ShuffleDevice):
    """Adds 1 and answers the columns of its part alone."""

    def __init__(self, name: str, columns: slice, **options: Any) -> None:
        super().__init__(name, **options)
        self.columns = columns

    def _answer(self, ticket: int, x: Array, what: str) -> None:
        super()._answer(ticket, x[:, self.columns].copy(), what)


COLUMNS = (slice(0, 3), slice(3, 4), slice(4, 8))


def split_stage() -> Stage:
    """``y = x + 1`` of shape (2, 8), in three parts along axis 1."""
    (plain,) = stages(1)
    x = TensorSpec("x", "int64", (2, 8))
    parts = tuple(
        dataclasses.replace(
            plain,
            inputs=(x,),
            outputs=(TensorSpec(f"y/{k}", "int64", (2, cut.stop - cut.start)),),
            fallback=b"%d" % k,
        )
        for k, cut in enumerate(COLUMNS)
    )
    return dataclasses.replace(
        plain,
        kind="onnx",
        inputs=(x,),
        outputs=(TensorSpec("y", "int64", (2, 8)),),
        parts=parts,
        shard_axis=1,
    )


def part_on_cpu(stage: Stage, name: str, credits: int) -> PartDevice:
    assert stage.fallback is not None
    return PartDevice(name, COLUMNS[int(stage.fallback)], credits=credits, attach="cpu")


def parts(replica: int = 0, **troubles: Callable[[int, int], str]) -> list[PartDevice]:
    return [
        PartDevice(f"p{replica}{k}", cut, seed=10 * replica + k, **options)
        for k, cut in enumerate(COLUMNS)
        for options in [{"trouble": troubles[f"p{k}"]} if f"p{k}" in troubles else {}]
    ]


def drive_split(devices: Sequence[PartDevice], count: int, **options: Any) -> Pipeline:
    """Run random matrices through the split stage; the pipeline, closed."""
    pipe = Pipeline([split_stage()], [devices], ["y"], **options)
    rng = np.random.default_rng(0)
    xs = [rng.integers(-9, 9, (2, 8)) for _ in range(count)]

    def work() -> list[Array]:
        found: list[Array] = []
        tickets: list[int] = []
        for x in xs:
            while (ticket := pipe.step({"x": x}, tickets[0] if tickets else None)) is None:
                found.append(pipe.take(tickets.pop(0)).outputs["y"])
            tickets.append(ticket)
        return found + [pipe.take(t).outputs["y"] for t in tickets]

    try:
        for x, y in zip(xs, in_time(work), strict=True):
            np.testing.assert_array_equal(y, x + 1)
    finally:
        pipe.close()
    return pipe


@pytest.mark.parametrize("replicas", [1, 2])
def test_parts_of_a_split_stage_are_put_together(replicas: int) -> None:
    devices = [device for r in range(replicas) for device in parts(r)]
    drive_split(devices, 40)
    for k in range(len(COLUMNS)):
        seen = [t for device in devices[k :: len(COLUMNS)] for t in device.seen]
        assert sorted(seen) == list(range(40)), "every part gets every item once"


@pytest.mark.parametrize("what", TROUBLES)
def test_lost_part_is_computed_on_the_cpu(what: str) -> None:
    devices = parts(p1=lambda t, c: what if c == 4 else "")
    pipe = drive_split(devices, 30, fallback=part_on_cpu, timeout=0.5)
    (notice,) = pipe.take_notices()
    assert "device 'p01' (fake) failed at stage 0" in notice
    assert devices[0].seen == devices[2].seen == list(range(30)), "the others go on undisturbed"


def test_strict_ends_every_item_though_two_parts_are_lost() -> None:
    devices = parts(
        p0=lambda t, c: "die" if c == 2 else "", p1=lambda t, c: "die" if c == 3 else ""
    )
    pipe = Pipeline([split_stage()], [devices], ["y"], strict=True)
    try:
        tickets = [pipe.submit({"x": np.zeros((2, 8), np.int64)}) for _ in range(pipe.capacity)]
        for ticket in tickets:
            with suppress(DeviceError):
                in_time(lambda ticket=ticket: catch(lambda: pipe.take(ticket)))()
        with pytest.raises(DeviceError, match="the board is gone"):
            pipe.take(pipe.submit({"x": np.zeros((2, 8), np.int64)}))
    finally:
        pipe.close()


def test_a_replica_is_added_and_dismissed_under_a_stream() -> None:
    first, second = ShuffleDevice("d0", delay=0.004), ShuffleDevice("d1", delay=0.004)
    pipe = pipeline([first, ShuffleDevice("last")])
    (station, _) = pipe._flow.stations

    def change() -> None:
        time.sleep(0.03)
        group = pipe._grow(station, second, 3)
        assert group is not None
        time.sleep(0.05)
        pipe._flow.dismiss(station, group)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        assert in_time(lambda: drive(pipe, 300)) == [v + 2 for v in range(300)]
    finally:
        thread.join()
        pipe.close()
    assert second.seen
    assert sorted(first.seen + second.seen) == list(range(300))
    assert second.closed


def test_error_of_a_part_is_the_items_once() -> None:
    pipe = Pipeline([split_stage()], [parts(p0=lambda t, c: "error" if t == 1 else "")], ["y"])
    try:
        tickets = [pipe.submit({"x": np.zeros((2, 8), np.int64)}) for _ in range(3)]
        with pytest.raises(DeviceError, match="lost every frame"):
            in_time(lambda: catch(lambda: pipe.take(tickets[1])))()
        for ticket in (tickets[0], tickets[2]):
            np.testing.assert_array_equal(pipe.take(ticket).outputs["y"], np.ones((2, 8)))
    finally:
        pipe.close()


def test_number_of_devices_must_fit_the_parts() -> None:
    with pytest.raises(ValueError, match="stage 0: 2 devices for 3 parts, must be a multiple"):
        Pipeline([split_stage()], [parts()[:2]], ["y"])


def catch(work: Callable[[], Any]) -> Callable[[], Any]:
    """Raises, when called, what ``work`` raised; on another thread."""
    try:
        value = work()
    except Exception as error:
        caught = error

        def again() -> Any:
            raise caught

        return again
    return lambda: value


def test_callbacks_come_in_order_each_once() -> None:
    devices = [ShuffleDevice(f"d{k}", seed=k, delay=0.01) for k in range(3)]
    pipe = replicated(devices)
    found: list[int] = []
    over = threading.Event()

    def deliver(item: Item) -> None:
        found.append(int(item.outputs["t1"][0]))
        if len(found) == 60:
            over.set()

    try:
        for value in range(60):
            pipe.submit({"t0": np.int64([value])}, deliver)
        assert over.wait(30)
    finally:
        pipe.close()
    assert found == [v + 1 for v in range(60)]


def test_close_ends_what_callbacks_wait_for() -> None:
    pipe = replicated([ShuffleDevice("d0", trouble=lambda t, c: "hang" if c else "")])
    errors: list[str] = []
    for value in range(3):
        pipe.submit({"t0": np.int64([value])}, lambda item: errors.append(str(item.error)))
    in_time(lambda: pipe.close())
    assert errors[0] in ("None", "the session is closed; open a new one")
    assert errors[1:] == ["the session is closed; open a new one"] * 2


def test_callback_may_fail_submit_and_close(caplog: pytest.LogCaptureFixture) -> None:
    pipe = replicated([ShuffleDevice("d0")])
    found: list[int] = []
    over = threading.Event()

    def deliver(item: Item) -> None:
        found.append(item.ticket)
        if item.ticket < 20:  # more than wait for callbacks elsewhere
            pipe.submit({"t0": np.int64([0])}, deliver)
            pipe.submit({"t0": np.int64([0])}, lambda item: None)
        else:
            pipe.close()
            over.set()
        raise KeyError("mine")

    pipe.submit({"t0": np.int64([0])}, deliver)
    assert over.wait(30)
    in_time(lambda: pipe.close())
    assert found == sorted(found)
    assert "the callback for item 0 failed" in caplog.text
    assert not [t for t in threading.enumerate() if t.name.startswith("trivet-")]


def test_a_watch_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def watch(item: Item) -> None:
        seen.append(item.ticket)
        raise KeyError("mine")

    pipe = pipeline([ShuffleDevice("d0")], watch=watch)
    try:
        assert in_time(lambda: drive(pipe, 10)) == [v + 1 for v in range(10)]
    finally:
        pipe.close()
    assert sorted(seen) == list(range(10))
    assert "what watches the items failed at item" in caplog.text


def test_device_without_credits_is_refused() -> None:
    with pytest.raises(DeviceError, match="'d0': offers 0 credits"):
        pipeline([ShuffleDevice("d0", credits=0)])


def test_only_outputs_are_left_at_the_end() -> None:
    pipe = pipeline([ShuffleDevice("d0"), ShuffleDevice("d1")])
    try:
        item = pipe.take(pipe.submit({"t0": np.int64([5]), "unread": np.int64([1])}))
    finally:
        pipe.close()
    assert set(item.outputs) == {"t2"}
