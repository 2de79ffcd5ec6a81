"""The virtual board as a device: golden's bytes, and an error instead of a hang when it dies."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import golden_graph
import numpy as np
import pytest
from layerwise import feeds, nhwc
from random_graphs import random_graph, random_inputs

from trivet.compiler.lower import lower
from trivet.hdl.config import SMALL
from trivet.hdl.isa import Port, predicted_total
from trivet.runtime.device import Buffer, DeviceError, Stage, TensorSpec
from trivet.sim import virtual_device
from trivet.sim.build import build_sha256
from trivet.sim.virtual_device import VirtualDevice

pytestmark = pytest.mark.rtl

GRAPH = random_graph(37, 3, channels=9, side=5)
PROGRAM = lower(GRAPH, [u.name for u in GRAPH.units], SMALL)


def spec(port: Port) -> TensorSpec:
    return TensorSpec(port.tensor, port.dtype, (1, *port.hwc), "NHWC")


def stage_of(image: bytes) -> Stage:
    return Stage(
        0,
        "program",
        image,
        hashlib.sha256(image).hexdigest(),
        tuple(spec(p) for p in PROGRAM.inputs),
        tuple(spec(p) for p in PROGRAM.outputs),
        engine=PROGRAM.config_sha256,
    )


STAGE = stage_of(PROGRAM.to_bytes())


def test_input_of_few_channels_is_expanded_by_the_board() -> None:
    """Also as one of the stage's tensors it stays what the model says: unpadded NHWC bytes."""
    graph = random_graph(9, 3, channels=3, side=9, kinds=("conv",))
    program = lower(graph, [u.name for u in graph.units], SMALL)
    (port,), (out,) = program.inputs, program.outputs
    assert port.expand is not None
    image = program.to_bytes()
    stage = replace(
        STAGE, payload=image, sha256=hashlib.sha256(image).hexdigest(),
        inputs=(spec(port),), outputs=(spec(out),),
    )  # fmt: skip
    device = VirtualDevice("fpga0", {"stall": "0.2"})
    try:
        device.prepare(stage)
        for ticket, inputs in enumerate(random_inputs(graph, 3, 4)):
            values = golden_graph.run(graph, inputs)
            device.submit(ticket, [Buffer.of(nhwc(values[port.tensor]).reshape(1, *port.hwc))])
            result = device.result(60.0)
            want = nhwc(values[out.tensor]).reshape(1, *out.hwc)
            assert np.array_equal(result.outputs[0].array, want)
            assert result.counters["cycles"] == predicted_total(SMALL, program.instructions)
    finally:
        device.close()


def items(count: int) -> list[tuple[list[Buffer], list[Any]]]:
    """Inputs, and what golden says of them."""
    found = []
    for inputs in random_inputs(GRAPH, 1, count):
        values = golden_graph.run(GRAPH, inputs)
        given = feeds(PROGRAM, values)
        found.append(
            (
                [Buffer.of(given[p.tensor].reshape(1, *p.hwc)) for p in PROGRAM.inputs],
                [nhwc(values[p.tensor]).reshape(1, *p.hwc) for p in PROGRAM.outputs],
            )
        )
    return found


@pytest.fixture
def device() -> Iterator[VirtualDevice]:
    device = VirtualDevice("fpga0", {})
    device.prepare(STAGE)
    yield device
    device.close()


def test_items_come_back_as_golden_says(device: VirtualDevice) -> None:
    for ticket, (inputs, want) in enumerate(items(4)):
        device.submit(ticket, inputs)
        done = device.result(30.0)
        assert done.error is None
        assert done.ticket == ticket
        for buffer, right in zip(done.outputs, want, strict=True):
            assert buffer.array.dtype == right.dtype
            assert np.array_equal(buffer.array, right)
        assert done.counters["cycles"] == predicted_total(SMALL, PROGRAM.instructions)
        assert done.counters["simulator_microseconds"] > 0
    found = device.layer_counters()
    assert [c.cycles for c in found] == [note.cycles for note in PROGRAM.layers]
    info = device.describe()
    assert (info.kind, info.attach, info.engine) == ("fpga", "virtual", SMALL.sha256)


@pytest.mark.parametrize("credits", [1, 2, 3])
def test_items_overlap_and_come_in_order(credits: int) -> None:
    graph = random_graph(37, 3, channels=9, side=13)
    program = lower(graph, [u.name for u in graph.units], SMALL, overlap=True)
    assert program.odd is not None
    image = program.to_bytes()
    stage = replace(
        STAGE, payload=image, sha256=hashlib.sha256(image).hexdigest(),
        inputs=tuple(map(spec, program.inputs)), outputs=tuple(map(spec, program.outputs)),
    )  # fmt: skip
    device = VirtualDevice("fpga0", {"credits": str(credits)})
    given = [golden_graph.run(graph, inputs) for inputs in random_inputs(graph, 2, 10)]
    try:
        device.prepare(stage)
        assert device.describe().credits == credits
        seen = []
        for ticket in range(len(given) + credits):
            if ticket >= credits:
                done = device.result(30.0)
                assert done.error is None
                assert done.ticket == ticket - credits
                for port, buffer in zip(program.outputs, done.outputs, strict=True):
                    want = nhwc(given[done.ticket][port.tensor]).reshape(1, *port.hwc)
                    assert np.array_equal(buffer.array, want)
                seen.append(done.counters["cycles"])
            if ticket < len(given):
                feed = feeds(program, given[ticket])
                device.submit(
                    ticket, [Buffer.of(feed[p.tensor].reshape(1, *p.hwc)) for p in program.inputs]
                )
        total = predicted_total(SMALL, program.forms[0])
        assert seen[0] == total
        assert all((program.interval or 0) - 40 <= c <= total + 40 for c in seen)
    finally:
        device.close()


def test_stalls_are_an_option() -> None:
    device = VirtualDevice("fpga0", {"stall": "0.6", "seed": "4"})
    device.prepare(STAGE)
    ((inputs, want),) = items(1)
    device.submit(0, inputs)
    assert np.array_equal(device.result(30.0).outputs[0].array, want[0])
    device.close()


def test_the_build_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit of the RTL while the board is built does not make a stranger of it."""
    keys = [build_sha256(SMALL)]
    monkeypatch.setattr(virtual_device, "build_sha256", lambda config: keys.pop())
    device = VirtualDevice("fpga0", {})
    device.prepare(STAGE)
    device.close()
    assert keys == []


def test_a_killed_board_is_an_error_and_not_a_hang(device: VirtualDevice) -> None:
    ((inputs, _),) = items(1)
    process = device._link
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    started = time.monotonic()
    for ticket in range(2):
        device.submit(ticket, inputs)
        error = device.result(30.0).error
        assert "device 'fpga0': the process of the virtual board ended (exit code -9)" in str(error)
        assert "fpga0=model" in str(error)
    assert time.monotonic() - started < 5.0


def test_a_board_killed_with_two_items_in_flight_answers_both() -> None:
    graph = random_graph(37, 3, channels=9, side=13)
    program = lower(graph, [u.name for u in graph.units], SMALL, overlap=True)
    image = program.to_bytes()
    stage = replace(
        STAGE, payload=image, sha256=hashlib.sha256(image).hexdigest(),
        inputs=tuple(map(spec, program.inputs)), outputs=tuple(map(spec, program.outputs)),
    )  # fmt: skip
    device = VirtualDevice("fpga0", {"credits": "3"})
    device.prepare(stage)
    process = device._link
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)  # whatever is asked for now stays unanswered
    inputs = [Buffer.of(np.zeros((1, *p.hwc), p.dtype)) for p in program.inputs]
    for ticket in range(3):
        device.submit(ticket, inputs)
    time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    answers = [device.result(30.0) for _ in range(3)]
    assert [a.ticket for a in answers] == [0, 1, 2]
    assert all("of the virtual board ended" in str(a.error) for a in answers)
    device.close()


def test_closing_ends_the_process_and_wakes_nobody_late(device: VirtualDevice) -> None:
    process = device._link
    assert process is not None
    device.close()
    device.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    with pytest.raises(DeviceError, match="is closed"):
        device.result(1.0)


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        (replace(STAGE, kind="onnx"), "is an ONNX model, a board runs programs only"),
        (replace(STAGE, engine="ab" * 32), r"the stage says abababababab"),
        (stage_of(b"no program"), "no TRVP header"),
        (replace(STAGE, inputs=(TensorSpec("z", "int8", (1,)),)), r"the stage says \['z'\]"),
        (
            replace(STAGE, inputs=(replace(STAGE.inputs[0], shape=(1, 2, 2, 2)),)),
            r"the stage says int8 \[1, 2, 2, 2\]|the stage says uint8 \[1, 2, 2, 2\]",
        ),
    ],
)
def test_stages_that_do_not_fit_are_refused(stage: Stage, text: str) -> None:
    device = VirtualDevice("fpga0", {})
    with pytest.raises(DeviceError, match=text):
        device.prepare(stage)
    device.close()


@pytest.mark.parametrize("options", [{"stall": "2"}, {"seed": "x"}])
def test_wrong_options_are_refused(options: dict[str, str]) -> None:
    device = VirtualDevice("fpga0", options)
    with pytest.raises(DeviceError, match="seed is a whole number, stall a probability"):
        device.prepare(STAGE)
    device.close()
