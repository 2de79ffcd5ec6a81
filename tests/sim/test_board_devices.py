"""Devices with the RTL behind them: the contract, over a pipe and over a serial port."""

from __future__ import annotations

import hashlib
import os
import pty
import select
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager

import golden_graph
import numpy as np
import pytest
from device_contract import check_device
from layerwise import nhwc
from random_graphs import random_graph, random_inputs

from trivet.compiler.lower import lower
from trivet.hdl.config import SMALL
from trivet.runtime.device import Buffer, DeviceError, Stage, TensorSpec
from trivet.runtime.devices.uart import UartDevice
from trivet.sim.build import build, build_sha256
from trivet.sim.virtual_device import BoardProcess, VirtualDevice

pytestmark = pytest.mark.rtl
pytest.importorskip("serial", reason="pyserial is not installed; pip install 'trivet[uart]'")

GRAPH = random_graph(37, 3, channels=9, side=13)
PROGRAM = lower(GRAPH, [u.name for u in GRAPH.units], SMALL, overlap=True)
IMAGE = PROGRAM.to_bytes()
STAGE = Stage(
    0,
    "program",
    IMAGE,
    hashlib.sha256(IMAGE).hexdigest(),
    tuple(TensorSpec(p.tensor, p.dtype, (1, *p.hwc), "NHWC") for p in PROGRAM.inputs),
    tuple(TensorSpec(p.tensor, p.dtype, (1, *p.hwc), "NHWC") for p in PROGRAM.outputs),
    engine=PROGRAM.config_sha256,
    builds={"virtual": build_sha256(SMALL)},
)


def items(count: int) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
    """Inputs, and what golden says of them."""
    found = []
    for inputs in random_inputs(GRAPH, 1, count):
        values = golden_graph.run(GRAPH, inputs)
        found.append(tuple(
            [nhwc(values[p.tensor]).reshape(1, *p.hwc) for p in ports]
            for ports in (PROGRAM.inputs, PROGRAM.outputs)
        ))  # fmt: skip
    return found


class SerialBoard:
    """A virtual board at the other end of a pty, byte for byte."""

    def __init__(self) -> None:
        self._board = BoardProcess(build(SMALL), "board")
        self._host, self._tty = pty.openpty()
        tty.setraw(self._host)
        self.port = os.ttyname(self._tty)
        self._over = threading.Event()
        self._threads = [threading.Thread(target=t) for t in (self._to_board, self._to_host)]
        for thread in self._threads:
            thread.start()

    def _to_board(self) -> None:
        while not self._over.is_set():
            if select.select([self._host], [], [], 0.05)[0]:
                self._board.write(os.read(self._host, 4096))

    def _to_host(self) -> None:
        while not self._over.is_set():
            left = self._board.read(0.05)
            while left and not self._over.is_set():
                if select.select([], [self._host], [], 0.05)[1]:
                    left = left[os.write(self._host, left) :]

    def close(self) -> None:
        """Pull the plug; idempotent."""
        if self._over.is_set():
            return
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._board.close()
        os.close(self._host)
        os.close(self._tty)


@contextmanager
def serial_board() -> Iterator[SerialBoard]:
    board = SerialBoard()
    try:
        yield board
    finally:
        board.close()


def test_the_virtual_board_keeps_the_contract() -> None:
    ((inputs, outputs),) = items(1)
    check_device(lambda: VirtualDevice("fpga0", {}), STAGE, inputs, outputs)


def test_a_serial_board_keeps_the_contract() -> None:
    ((inputs, outputs),) = items(1)
    with serial_board() as board:
        options = {"address": board.port, "board": "virtual"}
        check_device(lambda: UartDevice("fpga0", options), STAGE, inputs, outputs)


def test_items_overlap_on_a_serial_board() -> None:
    assert len(PROGRAM.forms) == 2
    expected = items(5)
    with serial_board() as board:
        device = UartDevice("fpga0", {"address": board.port, "credits": "5"})
        device.prepare(STAGE)
        for ticket, (inputs, _) in enumerate(expected):
            device.submit(ticket, [Buffer.of(a) for a in inputs])
        for ticket, (_, outputs) in enumerate(expected):
            done = device.result(60.0)
            assert done.ticket == ticket
            assert done.error is None
            for have, want in zip(done.outputs, outputs, strict=True):
                assert np.array_equal(have.array, want)
        device.close()


def test_an_unplugged_board_is_an_error_for_all_that_is_inside() -> None:
    ((inputs, _),) = items(1)
    with serial_board() as board:
        device = UartDevice("fpga0", {"address": board.port, "credits": "3"})
        device.prepare(STAGE)
        board.close()
        for ticket in range(3):
            device.submit(ticket, [Buffer.of(a) for a in inputs])
        answers = [device.result(30.0) for _ in range(3)]
        assert [a.ticket for a in answers] == [0, 1, 2]
        for answer in answers:
            assert isinstance(answer.error, DeviceError)
            assert "device 'fpga0': the serial port failed" in str(answer.error)
        device.close()
