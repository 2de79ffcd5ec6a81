"""Small bundles built by hand, for tests of the runtime: ``y = (x + 1) * 2 ...`` in stages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trivet.runtime.bundle import (
    BundleWriter,
    EngineInfo,
    ModelInfo,
    PortInfo,
    Rig,
    RigDevice,
    TensorInfo,
)

ENGINE = "e" * 64
SHAPE = (1, 4)


def model(
    op: str,
    value: float,
    x: str,
    y: str,
    shape: Sequence[int] = SHAPE,
    metadata: dict[str, str] | None = None,
    cut: tuple[int, int, int] | None = None,
) -> bytes:
    """ONNX bytes of ``y = op(x, value)`` in float32; ``op`` "Add" or "Mul".

    ``cut``: axis, start and end of the piece of it that is wanted.
    """
    constants = [numpy_helper.from_array(np.float32([value]), "c")]
    nodes = [helper.make_node(op, [x, "c"], ["whole" if cut else y])]
    after = list(shape)
    if cut is not None:
        axis, start, end = cut
        after[axis] = end - start
        for name, number in (("start", start), ("end", end), ("axis", axis)):
            constants.append(numpy_helper.from_array(np.int64([number]), name))
        nodes.append(helper.make_node("Slice", ["whole", "start", "end", "axis"], [y]))
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, dims)
        for n, dims in ((x, list(shape)), (y, after))
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for key, text in (metadata or {}).items():
        proto.metadata_props.append(onnx.StringStringEntryProto(key=key, value=text))
    return proto.SerializeToString()


def writer(
    kinds: Sequence[str] = ("onnx", "onnx"),
    *,
    batch: str | None = None,
    shape: tuple[int, ...] = SHAPE,
    attach: str = "fake",
    devices: Sequence[str] | None = None,
    seconds: float | None = 0.001,
    members: Mapping[int, Sequence[str]] | None = None,
) -> BundleWriter:
    """A bundle of stages ``x -> t0 -> t1 ... -> y``: even ones add 1, odd ones multiply by 2.

    Stage kinds are "onnx" (on cpu0) and "program" (on fpga0, attached to ``attach``; its payload is
    JSON for :class:`FakeBoard`-like devices: ``["Add", 1.0]``). ``members``: the replicas of some
    stages, by index; the rig has fpga0 to fpga3.
    """
    names = ["x", *(f"t{i}" for i in range(len(kinds) - 1)), "y"]
    placed = devices or ["cpu0" if kind == "onnx" else "fpga0" for kind in kinds]
    plan = {
        "version": 1,
        "stages": [
            {"index": i, "device": d, "compute": seconds, "nodes": []} for i, d in enumerate(placed)
        ],
    }
    outer: list[int | str] = [batch or shape[0], *shape[1:]]
    made = BundleWriter(
        trivet="0.1.0",
        model=ModelInfo(
            "a" * 64, [PortInfo("x", "float32", outer)], [PortInfo("y", "float32", outer)]
        ),
        plan=json.dumps(plan).encode(),
        rig=Rig(
            {
                "cpu0": RigDevice("cpu", threads=1),
                **{
                    f"fpga{k}": RigDevice("fpga", attach=attach, board="ulx3s-85f", clock_hz=1e8)
                    for k in range(4)
                },
            }
        ),
        tools={"onnxruntime": "1.0"},
    )
    for index, kind in enumerate(kinds):
        op, value = ("Add", 1.0) if index % 2 == 0 else ("Mul", 2.0)
        x, y = names[index], names[index + 1]
        code = model(op, value, x, y, shape)
        on = (members or {}).get(index, ())
        if kind == "onnx":
            made.add_onnx_stage([x], [y], code, members=on)
        else:
            payload = json.dumps([op, value]).encode()
            made.add_program_stage([x], [y], payload, engine=ENGINE, fallback=code, members=on)
            made.add_engine(ENGINE, EngineInfo({"lanes": 4, "simd": 4}))
    for name in names:
        made.add_tensor(name, TensorInfo("float32", list(shape)))
    return made


def expected(x: np.ndarray[Any, Any], stages: int) -> np.ndarray[Any, Any]:
    """What :func:`writer`'s bundle gives for ``x``."""
    for index in range(stages):
        x = x + np.float32(1) if index % 2 == 0 else x * np.float32(2)
    return x


def write(path: Path, *args: Any, **options: Any) -> Path:
    """Write :func:`writer`'s bundle to ``path``."""
    writer(*args, **options).write(path)
    return path
