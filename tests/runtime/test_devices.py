"""The host's devices keep the contract of devices, and say what they cannot do."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from typing import Any

import numpy as np
import pytest
from bundles import SHAPE, model
from device_contract import check_device

from trivet.runtime.device import Buffer, DeviceError, Stage, TensorSpec
from trivet.runtime.devices.cpu import LEVEL_KEY, CpuDevice
from trivet.runtime.devices.null import NullDevice
from trivet.runtime.devices.recorded import RecordedDevice
from trivet.runtime.devices.worker import WorkerDevice

X = np.float32([[1, 2, 3, 4]])


def stage(payload: bytes | None = None, **options: Any) -> Stage:
    payload = model("Add", 1.0, "x", "y") if payload is None else payload
    values: dict[str, Any] = {
        "index": 0,
        "kind": "onnx",
        "payload": payload,
        "sha256": hashlib.sha256(payload).hexdigest(),
        "inputs": (TensorSpec("x", "float32", SHAPE),),
        "outputs": (TensorSpec("y", "float32", SHAPE),),
        "predicted_seconds": 0.002,
    }
    return Stage(**(values | options))


def program() -> Stage:
    return stage(b"opaque", kind="program", fallback=model("Add", 1.0, "x", "y"))


@pytest.mark.parametrize("made", [stage(), program()], ids=["onnx", "program"])
def test_cpu_keeps_the_contract(made: Stage) -> None:
    check_device(lambda: CpuDevice("cpu0", {"threads": "1"}), made, [X], [X + 1])


def test_null_keeps_the_contract() -> None:
    check_device(lambda: NullDevice("n", {"credits": "3"}), program(), [X], [np.zeros_like(X)])


@pytest.mark.parametrize("made", [stage(), program()], ids=["onnx", "program"])
def test_recorded_keeps_the_contract(made: Stage) -> None:
    check_device(lambda: RecordedDevice("fpga0", {"threads": "1"}), made, [X], [X + 1])


def test_recorded_is_paced() -> None:
    device = RecordedDevice("fpga0", {"threads": "1", "seconds": "0.03"})
    try:
        device.prepare(stage())
        recorded = []
        began = time.perf_counter()
        for ticket in range(5):
            device.submit(ticket, [Buffer.of(X)])
            recorded.append(device.result(10.0).counters["recorded"])
        assert time.perf_counter() - began >= 5 * 0.03
        assert recorded == [1, 0, 0, 0, 0]
    finally:
        device.close()


def test_recorded_without_a_time() -> None:
    with pytest.raises(DeviceError, match="not in the plan, must be 0 to 3600 seconds"):
        RecordedDevice("fpga0", {}).prepare(stage(predicted_seconds=None))
    with pytest.raises(DeviceError, match="is soon, must be"):
        RecordedDevice("fpga0", {"seconds": "soon"}).prepare(stage())


def test_program_without_fallback_is_refused() -> None:
    with pytest.raises(DeviceError, match="without a CPU fallback"):
        CpuDevice("cpu0", {}).prepare(dataclasses.replace(program(), fallback=None))


def test_not_a_model() -> None:
    with pytest.raises(DeviceError, match="cannot load stage 0"):
        CpuDevice("cpu0", {}).prepare(stage(b"nonsense"))


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"])
def test_optimisation_level_of_the_model(level: str) -> None:
    made = stage(model("Add", 1.0, "x", "y", metadata={LEVEL_KEY: level}))
    check_device(lambda: CpuDevice("cpu0", {"threads": "1"}), made, [X], [X + 1])


def test_unknown_optimisation_level() -> None:
    made = stage(model("Add", 1.0, "x", "y", metadata={LEVEL_KEY: "magic"}))
    with pytest.raises(DeviceError, match="level 'magic', known are ORT_DISABLE_ALL"):
        CpuDevice("cpu0", {}).prepare(made)


def test_other_edges_than_the_model() -> None:
    made = stage(inputs=(TensorSpec("z", "float32", SHAPE),))
    with pytest.raises(DeviceError, match=r"has inputs \['x'\], the bundle says \['z'\]"):
        CpuDevice("cpu0", {}).prepare(made)


def test_failing_item_does_not_stop_the_next() -> None:
    device = CpuDevice("cpu0", {"threads": "1"})
    try:
        device.prepare(stage())
        device.submit(0, [Buffer.of(np.zeros((1, 9), np.int8))])
        error = device.result(10.0).error
        assert error is not None
        assert "stage 0 failed" in str(error)
        assert "\n" not in str(error)
        device.submit(1, [Buffer.of(X)])
        assert device.result(10.0).error is None
    finally:
        device.close()


def test_second_stage_needs_a_second_device() -> None:
    device = CpuDevice("cpu0", {})
    try:
        device.prepare(stage())
        with pytest.raises(DeviceError, match="holds stage 0, asked for stage 1"):
            device.prepare(stage(index=1))
        with pytest.raises(DeviceError, match="was given 2 inputs, it has 1"):
            device.submit(0, [Buffer.of(X), Buffer.of(X)])
    finally:
        device.close()


@pytest.mark.parametrize(("key", "text"), [("credits", "0"), ("credits", "x"), ("threads", "-1")])
def test_bad_options(key: str, text: str) -> None:
    with pytest.raises(DeviceError, match=f"{key} is '{text}', not a whole number"):
        CpuDevice("cpu0", {key: text})


def test_views_of_a_devices_memory_are_copied() -> None:
    class Reusing(WorkerDevice):
        memory = np.zeros(SHAPE, np.float32)

        def _load(self, stage: Stage) -> None:
            pass

        def _execute(self, stage: Stage, inputs: Any) -> Any:
            self.memory[:] = inputs[0] + 1
            return [self.memory[:]], {}

    check_device(lambda: Reusing("r", {}), stage(), [X], [X + 1])


def test_submit_before_prepare() -> None:
    with pytest.raises(DeviceError, match="call prepare first"):
        NullDevice("n", {}).submit(0, [Buffer.of(X)])
