"""Devices are found by entry point, and what cannot be found is said with the way out."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from trivet.runtime import registry
from trivet.runtime.device import DeviceError
from trivet.runtime.devices.null import NullDevice


def test_installed_devices_are_known() -> None:
    assert {"cpu", "null", "recorded", "model", "virtual"} <= set(registry.names())
    device = registry.create("null", "n0", {})
    assert isinstance(device, NullDevice)
    assert device.describe().name == "n0"


def test_registered_devices_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(NullDevice):
        pass

    monkeypatch.setattr(registry, "_registered", {})
    registry.register("null", Mine)
    assert isinstance(registry.create("null", "n0", {}), Mine)


def test_unknown_device() -> None:
    with pytest.raises(DeviceError, match=r"'fpga0': nothing is called 'smoke'; known are .*null"):
        registry.create("smoke", "fpga0", {})


def test_device_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("ghost", "trivet.nowhere:Ghost", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda **_: (point,))
    with pytest.raises(DeviceError, match=r"'ghost' cannot be loaded .*--device fpga0=cpu"):
        registry.create("ghost", "fpga0", {})
