"""Netlists of boards behind their UART pins, bit by bit; pyserial opens what is in front.

All of the bitstream but PLL and pins. iCE40: with yosys's own models of SB_MAC16, SPRAM and block
RAMs; Gowin: with those of gowin_blocks.py.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden_graph
import numpy as np
import pty_board
import pytest
from layerwise import nhwc
from random_graphs import random_graph, random_inputs
from synth.ecp5 import need_tools

from trivet import boards
from trivet.compiler.lower import lower
from trivet.hdl.config import EngineConfig
from trivet.hdl.isa import predicted_total
from trivet.runtime.device import Buffer, Stage, TensorSpec
from trivet.runtime.devices import uart
from trivet.runtime.devices.uart import SerialTransport, UartDevice
from trivet.runtime.link.client import BoardClient

pytest.importorskip("serial", reason="pyserial is not installed; pip install 'trivet[uart]'")
pytestmark = [pytest.mark.synth, pytest.mark.slow]

BUILD = bytes(range(32))
# What differs from the board's own engine: one that is simulated in minutes.
ENGINES: dict[str, dict[str, int]] = {"icebreaker": {}, "tang-nano-20k": {"lanes": 1}}


@pytest.fixture(scope="module", params=ENGINES)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str, EngineConfig]]:
    """A board's name, its serial port and its engine."""
    need_tools("g++")
    board = boards.get(request.param)
    assert board.engine is not None
    config = EngineConfig(**{**board.engine, **ENGINES[board.name]})
    folder: Path = tmp_path_factory.mktemp("netlist")
    simulator = pty_board.compile_netlist(folder, config, board, BUILD)
    with pty_board.running(simulator) as (_, port):
        yield board.name, port, config


def test_hello_is_answered(running: Any) -> None:
    name, port, config = running
    transport = SerialTransport("fpga0", port, 115_200)
    try:
        hello = BoardClient(transport, "fpga0", timeout=30).hello()
    finally:
        transport.close()
    assert (hello.board, hello.build_sha256) == (name, BUILD.hex())
    assert hello.config_sha256 == config.sha256


def test_a_small_network_gives_goldens_bytes(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uart, "_TIMEOUT", 60.0)  # seconds of a board that is simulated slowly
    name, port, config = running
    graph = random_graph(9, 2, channels=3, side=5, kinds=("conv", "add"))
    program = lower(graph, [u.name for u in graph.units], config, expand=False)
    image = program.to_bytes()

    def specs(ports):
        return tuple(TensorSpec(p.tensor, p.dtype, (1, *p.hwc), "NHWC") for p in ports)

    stage = Stage(
        0, "program", image, hashlib.sha256(image).hexdigest(), specs(program.inputs),
        specs(program.outputs), engine=program.config_sha256,
        builds={name: BUILD.hex()})  # fmt: skip
    device = UartDevice("fpga0", {"address": port, "baud": "115200"})
    try:
        device.prepare(stage)
        for ticket, inputs in enumerate(random_inputs(graph, 3, 3)):
            values = golden_graph.run(graph, inputs)
            device.submit(
                ticket,
                [Buffer.of(nhwc(values[p.tensor]).reshape(1, *p.hwc)) for p in program.inputs],
            )
            done = device.result(120.0)
            assert done.error is None
            for p, buffer in zip(program.outputs, done.outputs, strict=True):
                assert np.array_equal(buffer.array, nhwc(values[p.tensor]).reshape(1, *p.hwc))
            assert done.counters["cycles"] == predicted_total(config, program.instructions)
    finally:
        device.close()
