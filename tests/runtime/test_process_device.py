"""The CPU in a process of its own: the contract, and what happens when the process is gone."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bundles import SHAPE, expected, model, write
from device_contract import check_device

from trivet import Session
from trivet.runtime import registry
from trivet.runtime.device import Buffer, DeviceError, Stage, TensorSpec
from trivet.runtime.devices.process import ProcessDevice

CODE = model("Add", 1.0, "x", "y")
SPECS = tuple((TensorSpec(n, "float32", SHAPE),) for n in "xy")
STAGE = Stage(0, "onnx", CODE, hashlib.sha256(CODE).hexdigest(), *SPECS)


def item(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def test_a_process_keeps_the_contract() -> None:
    check_device(lambda: ProcessDevice("cpu1", {"threads": "1"}), STAGE, [item(1)], [item(1) + 1])


def test_a_model_that_cannot_be_loaded_is_an_error_here() -> None:
    device = ProcessDevice("cpu1", {})
    broken = Stage(0, "onnx", b"no", hashlib.sha256(b"no").hexdigest(), *SPECS)
    with pytest.raises(DeviceError, match=r"device 'cpu1': onnxruntime .* cannot load stage 0"):
        device.prepare(broken)
    assert device.pid is None
    device.close()


def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    device = ProcessDevice("cpu1", {})
    with pytest.raises(DeviceError, match=r"its process cannot be started .*--device cpu1=cpu"):
        device.prepare(STAGE)
    device.close()


def test_a_dead_process_is_an_error_for_each_item() -> None:
    device = ProcessDevice("cpu1", {})
    device.prepare(STAGE)
    assert device.pid is not None
    os.kill(device.pid, signal.SIGKILL)
    for ticket in range(2):
        device.submit(ticket, [Buffer(item(0))])
        error = str(device.result(10.0).error)
        assert re.search(r"device 'cpu1': its process ended \(exit code -9\)", error)
    device.close()


@pytest.mark.parametrize(
    ("blow", "text"),
    [(signal.SIGKILL, "ended"), (signal.SIGSTOP, "says nothing for 3 s")],
    ids=["killed", "stopped"],
)
def test_a_cpu_worker_under_a_stream_of_a_thousand(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    blow: signal.Signals,
    text: str,
) -> None:
    monkeypatch.setattr(registry, "_registered", {"process": ProcessDevice})
    path = write(tmp_path / "m", ("onnx", "onnx", "onnx"), devices=["cpu0", "fpga0", "cpu0"])
    with Session(path, {"fpga0": "process"}) as session:
        (device,) = (
            lane.device for lane in session._pipeline._flow.lanes if lane.attach == "process"
        )
        assert isinstance(device, ProcessDevice)
        assert device.pid is not None

        def feeds() -> Iterator[dict[str, np.ndarray]]:
            for k in range(1000):
                yield {"x": item(k)}

        found = []

        def stream() -> None:
            for k, (y,) in enumerate(session.stream(feeds())):
                found.append(y)
                if k == 300:
                    os.kill(device.pid, blow)

        with pytest.warns(RuntimeWarning, match=f"stage 1 .*its process {text}"):
            stream()
        (loss,) = session.losses
    assert len(found) == 1000
    for k, y in enumerate(found):
        np.testing.assert_array_equal(y, expected(item(k), 3), strict=True)
    assert loss.seconds < 5.0
    with capsys.disabled():
        print(f" recovered after {loss.seconds:.2f} s ", end="")
