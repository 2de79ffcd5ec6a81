"""The functional model keeps the contract of devices and refuses what it cannot run."""

from __future__ import annotations

import hashlib
from typing import Any

import golden_graph
import numpy as np
import pytest
from device_contract import check_device
from layerwise import nhwc
from random_graphs import random_graph, random_inputs

from trivet.compiler.lower import lower
from trivet.hdl.config import SMALL
from trivet.hdl.isa import Program, predicted_total
from trivet.runtime.device import Buffer, DeviceError, Stage, TensorSpec
from trivet.sim.model_device import ModelDevice

GRAPH = random_graph(12, 5, channels=8, side=6)
PROGRAM = lower(GRAPH, [u.name for u in GRAPH.units], SMALL)
ITEM = golden_graph.run(GRAPH, random_inputs(GRAPH, 12)[0])


def spec(name: str) -> TensorSpec:
    tensor = GRAPH.tensors[name]
    layout = "NHWC" if len(tensor.shape) == 4 else "ONNX"
    return TensorSpec(name, tensor.dtype, nhwc(ITEM[name]).shape, layout)


def stage(**options: Any) -> Stage:
    payload = options.pop("payload", PROGRAM.to_bytes())
    values: dict[str, Any] = {
        "index": 1,
        "kind": "program",
        "payload": payload,
        "sha256": hashlib.sha256(payload).hexdigest(),
        "inputs": tuple(spec(p.tensor) for p in PROGRAM.inputs),
        "outputs": tuple(spec(p.tensor) for p in PROGRAM.outputs),
        "engine": PROGRAM.config_sha256,
    }
    return Stage(**(values | options))


def tensors(names: tuple[TensorSpec, ...]) -> list[np.ndarray]:
    return [np.ascontiguousarray(nhwc(ITEM[s.name])) for s in names]


def test_keeps_the_contract() -> None:
    made = stage()
    inputs, outputs = tensors(made.inputs), tensors(made.outputs)
    check_device(lambda: ModelDevice("fpga0", {}), made, inputs, outputs)


def test_describes_itself_and_counts() -> None:
    device = ModelDevice("fpga0", {})
    try:
        made = stage()
        device.prepare(made)
        info = device.describe()
        assert (info.kind, info.attach, info.credits) == ("fpga", "model", 2)
        assert info.engine == SMALL.sha256
        device.submit(0, [Buffer.of(a) for a in tensors(made.inputs)])
        done = device.result(30.0)
        assert done.counters == {
            "cycles_predicted": predicted_total(PROGRAM.config, PROGRAM.instructions)
        }
    finally:
        device.close()


def test_a_failed_item_leaves_the_device_usable() -> None:
    device = ModelDevice("fpga0", {})
    try:
        made = stage()
        device.prepare(made)
        good = [Buffer.of(a) for a in tensors(made.inputs)]
        device.submit(0, [Buffer.of(b.array.reshape(-1)[:-1]) for b in good])
        device.submit(1, good)
        error = device.result(30.0).error
        assert error is not None
        assert "must be" in str(error)
        assert device.result(30.0).error is None
    finally:
        device.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kind": "onnx"}, "runs programs only; give the stage to a CPU or GPU"),
        ({"payload": b"TRVX" + bytes(60)}, "no TRVP header"),
        ({"payload": PROGRAM.to_bytes()[:-9]}, "truncated or damaged; compile the model again"),
        ({"engine": "0" * 64}, "program is for engine .*, the stage says 000000000000"),
        ({"outputs": ()}, r"program has outputs \['.*'\], the stage says \[\]"),
    ],
)
def test_what_it_cannot_run_is_refused(options: dict[str, Any], text: str) -> None:
    device = ModelDevice("fpga0", {})
    try:
        with pytest.raises(DeviceError, match=f"device 'fpga0': stage 1.*{text}"):
            device.prepare(stage(**options))
    finally:
        device.close()


def test_program_file_is_what_ran() -> None:
    assert Program.from_bytes(stage().payload) == PROGRAM
