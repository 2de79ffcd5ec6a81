"""A board's pins, bit by bit, behind a pseudo-terminal that pyserial opens: HELLO and a network."""

import hashlib

import golden_graph
import numpy as np
import pty_board
import pytest
from layerwise import nhwc
from random_graphs import random_graph, random_inputs

from trivet.compiler.lower import lower
from trivet.hdl.config import SMALL
from trivet.hdl.isa import predicted_total
from trivet.runtime.device import Buffer, DeviceError, Stage, TensorSpec
from trivet.runtime.devices.uart import SerialTransport, UartDevice
from trivet.runtime.link.client import BoardClient

pytest.importorskip("serial", reason="pyserial is not installed; pip install 'trivet[uart]'")
pytestmark = [pytest.mark.rtl, pytest.mark.slow]

BUILD = bytes(range(32))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return pty_board.compile_board(tmp_path_factory.mktemp("board"), SMALL, "pty", BUILD)


@pytest.fixture(params=["1.0", "0.98", "1.02"])
def port(program, request):
    """Name of the serial port; the host's bits are as long as they should be, or 2 % off."""
    with pty_board.running(program, request.param) as (_, name):
        yield name


def test_hello_is_answered(port):
    transport = SerialTransport("fpga0", port, 115_200)
    try:
        hello = BoardClient(transport, "fpga0", timeout=30).hello()
    finally:
        transport.close()
    assert hello.board == "pty"
    assert hello.build_sha256 == BUILD.hex()
    assert hello.config_sha256 == SMALL.sha256


def network(build):
    """A small network, its program, and the stage of a bundle with that build."""
    graph = random_graph(9, 3, channels=3, side=9, kinds=("conv",))
    program = lower(graph, [u.name for u in graph.units], SMALL)
    image = program.to_bytes()

    def specs(ports):
        return tuple(TensorSpec(p.tensor, p.dtype, (1, *p.hwc), "NHWC") for p in ports)

    return graph, program, Stage(
        0, "program", image, hashlib.sha256(image).hexdigest(), specs(program.inputs),
        specs(program.outputs), engine=program.config_sha256, builds={"pty": build.hex()})


def test_a_network_gives_goldens_bytes(port):
    graph, program, stage = network(BUILD)
    device = UartDevice("fpga0", {"address": port, "baud": "115200"})
    try:
        device.prepare(stage)
        for ticket, inputs in enumerate(random_inputs(graph, 3, 3)):
            values = golden_graph.run(graph, inputs)
            device.submit(ticket, [
                Buffer.of(nhwc(values[p.tensor]).reshape(1, *p.hwc)) for p in program.inputs])
            done = device.result(120.0)
            assert done.error is None
            for p, buffer in zip(program.outputs, done.outputs, strict=True):
                assert np.array_equal(
                    buffer.array, nhwc(values[p.tensor]).reshape(1, *p.hwc))
            assert done.counters["cycles"] == predicted_total(SMALL, program.instructions)
    finally:
        device.close()


def test_the_bitstream_must_be_the_bundles(port):
    _, _, stage = network(bytes(32))
    device = UartDevice("fpga0", {"address": port, "baud": "115200"})
    try:
        with pytest.raises(DeviceError, match="run trivet program BUNDLE --board pty --yes"):
            device.prepare(stage)
    finally:
        device.close()
