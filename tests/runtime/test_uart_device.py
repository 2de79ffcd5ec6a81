"""The serial device's refusals; its bytes are tested behind simulated pins (tests/hdl/board)."""

import os
import pty

import pytest

from trivet.runtime.device import DeviceError, Stage
from trivet.runtime.devices.uart import SerialTransport, UartDevice
from trivet.runtime.link.frame import Hello

pytest.importorskip("serial", reason="pyserial is not installed; pip install 'trivet[uart]'")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "which serial port"),
        ({"address": "a", "stall": "1"}, "a UART knows no option 'stall'"),
        ({"address": "a", "baud": "fast"}, "baud is 'fast', not a whole number from 1 up"),
    ],
)
def test_options_that_are_not_understood(options: dict[str, str], text: str) -> None:
    with pytest.raises(DeviceError, match=f"device 'fpga0': .*{text}"):
        UartDevice("fpga0", options)


def test_a_port_that_is_not_there() -> None:
    with pytest.raises(DeviceError, match="device 'fpga0': cannot open no-such-port"):
        SerialTransport("fpga0", "no-such-port", 115_200)


def test_models_are_refused() -> None:
    device = UartDevice("fpga0", {"address": "a"})
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    with pytest.raises(DeviceError, match="is an ONNX model, a board runs programs only"):
        device.prepare(Stage(0, "onnx", b"", empty, (), ()))
    device.close()


def hello(board: str = "ulx3s-25f") -> Hello:
    return Hello("ab" * 32, "cd" * 32, board, 1, 1, 2, 0)


def stage(builds: dict[str, str]) -> Stage:
    return Stage(0, "program", b"", "", (), (), builds=builds)


def test_which_board_and_build_answer() -> None:
    device = UartDevice("fpga0", {"address": "a", "board": "ulx3s-25f"})
    other = {"ulx3s-25f": "ef" * 32}
    device._check_build(stage({"ulx3s-25f": "ab" * 32}), hello())
    with pytest.raises(DeviceError, match=r"board on a is 'icebreaker', the rig says 'ulx3s-25f'"):
        device._check_build(stage(other), hello("icebreaker"))
    with pytest.raises(DeviceError, match=r"holds build abababababab\.\., the bundle has efefef"):
        device._check_build(stage(other), hello())
    with pytest.warns(RuntimeWarning, match="no bitstream of 'ulx3s-25f' to compare"):
        device._check_build(stage({"ulx3s-85f": "ab" * 32}), hello())
    device.close()


def test_bytes_pass_and_silence_is_empty() -> None:
    host, board = pty.openpty()
    transport = SerialTransport("fpga0", os.ttyname(board), 115_200)
    try:
        assert transport.read(0.01) == b""
        os.write(host, b"abc\n")
        found = b""
        while len(found) < 4:
            found += transport.read(1.0)
        assert found == b"abc\n"
        transport.write(b"\x00\xff\r")
        assert os.read(host, 3) == b"\x00\xff\r"
    finally:
        transport.close()
        os.close(host)
        os.close(board)


def test_a_port_has_one_owner() -> None:
    host, board = pty.openpty()
    first = SerialTransport("fpga0", os.ttyname(board), 115_200)
    try:
        with pytest.raises(DeviceError, match=r"'other': cannot open .* who may use the port"):
            SerialTransport("other", os.ttyname(board), 115_200)
    finally:
        first.close()
        os.close(host)
        os.close(board)
