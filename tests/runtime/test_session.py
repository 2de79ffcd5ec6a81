"""Sessions look like onnxruntime's, say what is wrong with a feed, and never fail in silence."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import SHAPE, expected, model, write

import trivet
from trivet.runtime import registry
from trivet.runtime.bundle import BundleWriter, ModelInfo, PortInfo, Rig, RigDevice, TensorInfo
from trivet.runtime.device import Stage
from trivet.runtime.devices.worker import WorkerDevice

Array = np.ndarray[Any, Any]


class FakeBoard(WorkerDevice):
    """Runs a program that is JSON ``[op, value]``; fails from item number ``fail_at`` on."""

    kind = "fpga"
    attach = "fake"
    fail_at: int | None = None
    made: list[FakeBoard] = []  # noqa: RUF012

    def __init__(self, name: str, options: dict[str, str]) -> None:
        super().__init__(name, options)
        self.options = options
        self.count = 0
        FakeBoard.made.append(self)

    def _load(self, stage: Stage) -> None:
        self.op, self.value = json.loads(stage.payload)

    def _execute(self, stage: Stage, inputs: Any) -> Any:
        self.count += 1
        if self.fail_at is not None and self.count > self.fail_at:
            raise RuntimeError("the cable fell out")
        x, value = inputs[0], np.float32(self.value)
        return [x + value if self.op == "Add" else x * value], {"cycles": 10}


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {"fake": FakeBoard})
    monkeypatch.setattr(FakeBoard, "fail_at", None)
    monkeypatch.setattr(FakeBoard, "made", [])


def item(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_two_cpu_stages(tmp_path: Path) -> None:
    with trivet.Session(write(tmp_path / "m")) as session:
        (y,) = session.run(None, {"x": item()})
        np.testing.assert_array_equal(y, expected(item(), 2), strict=True)
        (arg,) = session.get_inputs()
        assert (arg.name, arg.shape, arg.type) == ("x", [1, 4], "tensor(float)")
        assert session.get_outputs()[0].name == "y"


def test_open_bundle_stays_open(tmp_path: Path) -> None:
    with trivet.Bundle.open(write(tmp_path / "m")) as bundle:
        with trivet.Session(bundle) as session:
            session.run(["y"], {"x": item()})
        bundle.read("plan.json")


def test_program_stage_and_its_counters(tmp_path: Path) -> None:
    path = write(tmp_path / "m", ("onnx", "program", "onnx"))
    with trivet.Session(path) as session:
        results = list(session.stream({"x": item(i)} for i in range(20)))
        for index, (y,) in enumerate(results):
            np.testing.assert_array_equal(y, expected(item(index), 3), strict=True)
        assert session.last_counters == {0: {}, 1: {"cycles": 200}, 2: {}}
        report = session.last_reports[1]
        assert (report.device, report.attach, report.items) == ("fpga0", "fake", 20)
    assert FakeBoard.made[0].options == {
        "kind": "fpga",
        "board": "ulx3s-85f",
        "clock_hz": "100000000.0",
    }


def test_device_can_be_chosen_with_an_address(tmp_path: Path) -> None:
    path = write(tmp_path / "m", ("program",), attach="uart")
    with trivet.Session(path, {"fpga0": "fake:/dev/x:y"}) as session:
        session.run(None, {"x": item()})
    assert FakeBoard.made[0].options["address"] == "/dev/x:y"


def test_program_stage_forced_on_the_cpu_gives_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "m", ("onnx", "program"))
    with trivet.Session(path, {"fpga0": "cpu"}, strict=True) as session:
        (y,) = session.run(None, {"x": item()})
    np.testing.assert_array_equal(y, expected(item(), 2), strict=True)
    assert not FakeBoard.made


@pytest.mark.parametrize("fail_at", [0, 1, 7])
def test_failing_board_is_replaced_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    monkeypatch.setattr(FakeBoard, "fail_at", fail_at)
    path = write(tmp_path / "m", ("onnx", "program", "onnx"))
    with (
        trivet.Session(path) as session,
        pytest.warns(
            RuntimeWarning, match="'fpga0' \\(fake\\) failed at stage 1.*cable fell out"
        ) as w,
    ):
        results = list(session.stream({"x": item(i)} for i in range(20)))
    assert len(w) == 1
    assert len(results) == 20
    for index, (y,) in enumerate(results):
        np.testing.assert_array_equal(y, expected(item(index), 3), strict=True)
    found = [(r.index, r.device, r.attach, r.items) for r in session.last_reports]
    board, rest = min(fail_at, 20), 20 - fail_at
    assert found == [
        (0, "cpu0", "cpu", 20),
        (1, "fpga0", "fake", board),
        (1, "fpga0", "cpu", rest),
        (2, "cpu0", "cpu", 20),
    ]


def test_strict_raises_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeBoard, "fail_at", 2)
    path = write(tmp_path / "m", ("program",))
    with trivet.Session(path, strict=True) as session:
        for _ in range(2):
            session.run(None, {"x": item()})
        with pytest.raises(trivet.DeviceError, match="cable fell out"):
            session.run(None, {"x": item()})


def test_unknown_attach_and_device(tmp_path: Path) -> None:
    path = write(tmp_path / "m", ("program",), attach="nowhere")
    with pytest.raises(trivet.DeviceError, match="nothing is called 'nowhere'; known are"):
        trivet.Session(path)
    with pytest.raises(ValueError, match="device 'fpga9' is not in the bundle's rig"):
        trivet.Session(path, {"fpga9": "cpu"})


def test_replicas_share_the_items(tmp_path: Path) -> None:
    names = ["fpga0", "fpga1", "fpga2"]
    path = write(tmp_path / "m", ("onnx", "program", "onnx"), members={1: names})
    with trivet.Session(path) as session:
        results = list(session.stream({"x": item(i)} for i in range(40)))
        reports = [r for r in session.last_reports if r.index == 1]
        assert session.last_counters[1] == {"cycles": 400}
    for index, (y,) in enumerate(results):
        np.testing.assert_array_equal(y, expected(item(index), 3), strict=True)
    assert [r.device for r in reports] == names
    assert sum(r.items for r in reports) == 40
    assert [board.name for board in FakeBoard.made] == names


@pytest.mark.parametrize("axis", [0, 1])
def test_shards_give_the_same_bytes(tmp_path: Path, axis: int) -> None:
    """Both where pieces lie together in memory (axis 0) and where they do not."""
    shape = (4, 6)
    ports = [PortInfo(name, "float32", list(shape)) for name in "xy"]
    made = BundleWriter(
        trivet="0.1.0",
        model=ModelInfo("a" * 64, ports[:1], ports[1:]),
        plan=b'{"version": 1, "stages": [{"index": 0, "device": "fpga0"}]}',
        rig=Rig({"fpga0": RigDevice("fpga", "cpu"), "cpu0": RigDevice("cpu")}),
    )
    ends = (1, 4) if axis == 0 else (5, 6)
    cuts = [(axis, 0, ends[0]), (axis, *ends)]
    codes = [model("Add", 1.0, "x", f"y/{k}", shape, cut=cut) for k, cut in enumerate(cuts)]
    made.add_split_stage(
        ["x"],
        ["y"],
        model("Add", 1.0, "x", "y", shape),
        [(code, None, None) for code in codes],
        axis=axis,
        members=["fpga0", "cpu0"],
    )
    for name in "xy":
        made.add_tensor(name, TensorInfo("float32", list(shape)))
    for k, (_, start, end) in enumerate(cuts):
        piece = list(shape)
        piece[axis] = end - start
        made.add_tensor(f"y/{k}", TensorInfo("float32", piece))
    made.write(tmp_path / "m")
    with trivet.Session(tmp_path / "m") as session:
        results = list(session.stream({"x": item(i, shape)} for i in range(20)))
        (y,) = session.run(None, {"x": item(20, shape)})
        assert [(r.device, r.items) for r in session.last_reports] == [("fpga0", 1), ("cpu0", 1)]
    for index, (found,) in enumerate([*results, [y]]):
        np.testing.assert_array_equal(found, item(index, shape) + 1, strict=True)


def test_futures_come_in_order_and_tell_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "m", ("onnx", "program"), members={1: ["fpga0", "fpga1"]})
    order: list[int] = []
    with trivet.Session(path, strict=True) as session:
        futures = [session.submit({"x": item(i)}) for i in range(50)]
        for index, future in enumerate(futures):
            future.add_done_callback(lambda _, index=index: order.append(index))
        for index, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(30)[0], expected(item(index), 2))
        monkeypatch.setattr(FakeBoard, "fail_at", 0)
        with pytest.raises(trivet.DeviceError, match="cable fell out"):
            session.submit({"x": item()}).result(30)
        with pytest.raises(ValueError, match="input 'x': is missing"):
            session.submit({})
    assert sorted(order) == list(range(50))


def test_run_async_is_that_of_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[Any, int, str]] = []
    over = threading.Semaphore(0)

    def callback(outputs: list[Array], user_data: int, error: str) -> None:
        found.append((outputs, user_data, error))
        over.release()

    with trivet.Session(write(tmp_path / "m", ("program", "onnx")), strict=True) as session:
        for index in range(20):
            session.run_async(["y"], {"x": item(index)}, callback, index)
        for _ in range(20):
            assert over.acquire(timeout=30)
        monkeypatch.setattr(FakeBoard, "fail_at", 0)
        session.run_async(None, {"x": item()}, callback, 20)
        assert over.acquire(timeout=30)
    assert [user_data for _, user_data, _ in found] == list(range(21))
    for index, (outputs, _, error) in enumerate(found[:20]):
        np.testing.assert_array_equal(outputs[0], expected(item(index), 2))
        assert error == ""
    assert "cable fell out" in found[20][2]


def test_no_thread_outlives_close(tmp_path: Path) -> None:
    path = write(tmp_path / "m", ("onnx", "program", "onnx"), members={1: ["fpga0", "fpga1"]})
    session = trivet.Session(path)
    futures = [session.submit({"x": item(i)}) for i in range(3)]
    stream = session.stream({"x": item(i)} for i in itertools.count())
    next(stream)
    closers = [threading.Thread(target=session.close) for _ in range(3)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(30)
        assert not closer.is_alive()
    assert not [t for t in threading.enumerate() if t.name.startswith("trivet")]
    assert all(future.done() for future in futures)
    with pytest.raises(trivet.DeviceError, match="closed"):
        deque(stream, maxlen=0)


def test_batch_axis_streams_items_and_joins_them(tmp_path: Path) -> None:
    path = write(tmp_path / "m", ("onnx", "program"), batch="N")
    with trivet.Session(path) as session:
        assert session.get_inputs()[0].shape == ["N", 4]
        for count in (0, 1, 9):
            x = item(count, (count, 4))
            (y,) = session.run(None, {"x": x})
            np.testing.assert_array_equal(y, expected(x, 2), strict=True)
        with pytest.raises(ValueError, match="feed 1: axis 0 \\('N'\\) is 2"):
            list(session.stream([{"x": item(0)}, {"x": item(0, (2, 4))}]))


@pytest.mark.parametrize(
    ("names", "feed", "text"),
    [
        (None, {}, "input 'x': is missing"),
        (None, {"x": item(), "z": item()}, "input 'z': is none of x"),
        (["z"], {"x": item()}, "output 'z': is none of y"),
        (None, {"x": item().astype(np.float64)}, "has dtype float64, must be float32"),
        (None, {"x": [[1, 2, 3, 4]]}, "has dtype int64, must be float32"),
        (None, {"x": item(0, (1, 5))}, r"has shape \[1, 5\], must be \[1, 4\]"),
        (None, {"x": item(0, (4,))}, r"has shape \[4\], must be \[1, 4\]"),
        (None, {"x": item(0, (2, 4))}, r"has shape \[2, 4\], must be \[1, 4\]"),
    ],
)
def test_bad_feeds(
    tmp_path: Path, names: list[str] | None, feed: dict[str, Any], text: str
) -> None:
    with trivet.Session(write(tmp_path / "m")) as session:
        with pytest.raises(ValueError, match=text):
            session.run(names, feed)
        session.run(None, {"x": item()})


def test_inputs_may_be_views_and_stay_untouched(tmp_path: Path) -> None:
    wide = item(0, (1, 8))
    before = wide.copy()
    with trivet.Session(write(tmp_path / "m", ("program", "onnx"))) as session:
        (y,) = session.run(None, {"x": wide[:, ::2]})
    np.testing.assert_array_equal(y, expected(before[:, ::2], 2))
    np.testing.assert_array_equal(wide, before)


def test_stream_may_reuse_its_buffer(tmp_path: Path) -> None:
    buffer = np.zeros(SHAPE, np.float32)

    def feeds() -> Any:
        for index in range(10):
            buffer[:] = index
            yield {"x": buffer}

    with trivet.Session(write(tmp_path / "m", ("onnx", "program"))) as session:
        values = [y[0, 0] for (y,) in session.stream(feeds())]
    assert values == [(i + 1) * 2 for i in range(10)]


def test_run_inside_an_unfinished_stream(tmp_path: Path) -> None:
    with trivet.Session(write(tmp_path / "m", ("onnx", "program"))) as session:
        stream = session.stream({"x": item(i)} for i in range(50))
        next(stream)
        (y,) = session.run(None, {"x": item(99)})
        np.testing.assert_array_equal(y, expected(item(99), 2))
        np.testing.assert_array_equal(next(stream)[0], expected(item(1), 2))
        stream.close()
        session.run(None, {"x": item()})


def test_error_of_the_feed_iterator_passes_through(tmp_path: Path) -> None:
    def feeds() -> Any:
        yield {"x": item()}
        raise KeyError("mine")

    with trivet.Session(write(tmp_path / "m")) as session:
        with pytest.raises(KeyError, match="mine"):
            list(session.stream(feeds()))
        session.run(None, {"x": item()})


def test_many_threads_get_their_own_answers(tmp_path: Path) -> None:
    wrong: list[int] = []
    with trivet.Session(write(tmp_path / "m", ("onnx", "program", "onnx"))) as session:

        def work(seed: int) -> None:
            for index in range(30):
                x = item(seed * 1000 + index)
                if not np.array_equal(session.run(None, {"x": x})[0], expected(x, 3)):
                    wrong.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert not wrong


def test_forgotten_session_closes_its_devices(tmp_path: Path) -> None:
    path = write(tmp_path / "m", ("onnx", "program"))
    trivet.Session(path).run(None, {"x": item()})
    assert FakeBoard.made[0]._closed
    assert not [t for t in threading.enumerate() if t.name.startswith("trivet-stage")]


def test_device_that_cannot_prepare_closes_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FakeBoard, stage: Stage) -> None:
        raise trivet.DeviceError("device 'fpga0': another bitstream")

    monkeypatch.setattr(FakeBoard, "_load", refuse)
    with pytest.raises(trivet.DeviceError, match="another bitstream"):
        trivet.Session(write(tmp_path / "m", ("onnx", "program")))
    assert FakeBoard.made[0]._closed


def test_close_during_a_run_ends_it(tmp_path: Path) -> None:
    path = write(tmp_path / "m", ("onnx", "program"))
    session = trivet.Session(path)
    threading.Timer(0.1, session.close).start()
    feeds = ({"x": item()} for _ in itertools.count())
    with pytest.raises(trivet.DeviceError, match="closed"):
        deque(session.stream(feeds), maxlen=0)


def test_closed_session_says_so(tmp_path: Path) -> None:
    session = trivet.Session(write(tmp_path / "m"))
    session.close()
    session.close()
    with pytest.raises(trivet.DeviceError, match="the session is closed"):
        session.run(None, {"x": item()})


def test_image_tensors_travel_as_nhwc(tmp_path: Path) -> None:
    """A model input that an FPGA stage reads has NHWC bytes inside; its user sees NCHW."""
    shape, inside = [1, 2, 3, 4], [1, 3, 4, 2]
    made = BundleWriter(
        trivet="0.1.0",
        model=ModelInfo(
            "a" * 64, [PortInfo("x", "float32", shape)], [PortInfo("y", "float32", shape)]
        ),
        plan=b'{"version": 1, "stages": [{"index": 0, "device": "fpga0"}]}',
        rig=Rig({"fpga0": RigDevice("fpga", attach="cpu")}),
    )
    made.add_onnx_stage(["x"], ["y"], model("Add", 1.0, "x", "y", inside))
    for name in "xy":
        made.add_tensor(name, TensorInfo("float32", inside, "NHWC"))
    made.write(tmp_path / "m")
    x = item(0, (1, 2, 3, 4))
    with trivet.Session(tmp_path / "m") as session:
        (y,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, x + 1, strict=True)
    assert y.flags.c_contiguous


def test_tensor_that_skips_a_stage(tmp_path: Path) -> None:
    ports = [PortInfo(name, "float32", list(SHAPE)) for name in "xy"]
    stages = [{"index": i, "device": "cpu0"} for i in range(3)]
    made = BundleWriter(
        trivet="0.1.0",
        model=ModelInfo("a" * 64, ports[:1], ports[1:]),
        plan=json.dumps({"version": 1, "stages": stages}).encode(),
        rig=Rig({"cpu0": RigDevice("cpu")}),
    )
    for op, value, source, sink in (
        ("Add", 1.0, "x", "t"),
        ("Mul", 2.0, "t", "u"),
        ("Mul", 5.0, "t", "y"),
    ):
        made.add_onnx_stage([source], [sink], model(op, value, source, sink))
    for name in "xtuy":
        made.add_tensor(name, TensorInfo("float32", list(SHAPE)))
    made.write(tmp_path / "m")
    with trivet.Session(tmp_path / "m") as session:
        (y,) = session.run(None, {"x": item()})
    np.testing.assert_array_equal(y, (item() + np.float32(1)) * np.float32(5), strict=True)


def test_neither_simulator_nor_compiler_is_imported(tmp_path: Path) -> None:
    path = write(tmp_path / "m")
    code = (
        "import sys, numpy, trivet\n"
        f"s = trivet.Session({str(path)!r}); s.run(None, {{'x': numpy.zeros((1, 4), 'float32')}})\n"
        "s.close()\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('amaranth', 'onnx', 'onnx_ir')\n"
        "       or m.startswith(('trivet.sim', 'trivet.hdl', 'trivet.compiler'))]\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_public_names() -> None:
    assert set(trivet.__all__) <= set(dir(trivet))
    assert issubclass(trivet.CompileError, Exception)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = trivet.nothing  # type: ignore[attr-defined]


def test_a_future_is_done_though_a_warning_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Warnings are errors in these tests: raised on the session's thread they lose nothing."""
    monkeypatch.setattr(FakeBoard, "fail_at", 2)
    with trivet.Session(write(tmp_path / "m", ("onnx", "program"))) as session:
        futures = [session.submit({"x": item(k)}) for k in range(8)]
        for k, future in enumerate(futures):
            (y,) = future.result(timeout=30.0)
            np.testing.assert_array_equal(y, expected(item(k), 2), strict=True)
    assert "'fpga0' (fake) failed at stage 1" in caplog.text
