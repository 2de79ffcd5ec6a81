"""A bundle with one program stage on boards of the small engine, and items as golden has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import golden_graph
import numpy as np
from random_graphs import random_graph, random_inputs

from trivet.compiler.contract import stage_model
from trivet.compiler.lower import lower
from trivet.hdl.config import SMALL
from trivet.hdl.isa import Program
from trivet.runtime.bundle import (
    BundleWriter,
    EngineInfo,
    ModelInfo,
    PortInfo,
    Rig,
    RigDevice,
    TensorInfo,
)

__all__ = ["Item", "write_board_bundle"]

Item = tuple[dict[str, np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]  # feed, outputs


def write_board_bundle(
    path: Path, *, members: Sequence[str] = (), items: int = 12, seconds: float = 0.001
) -> tuple[Program, list[Item]]:
    """Write the bundle; its program, whose items overlap, and feeds with the right outputs.

    The rig has fpga0 and fpga1, virtual boards; ``members``: the stage's replicas.
    """
    graph = random_graph(37, 3, channels=9, side=13)
    names = [u.name for u in graph.units]
    program = lower(graph, names, SMALL, overlap=True)
    ports = {p.tensor: p for p in (*program.inputs, *program.outputs)}
    shapes = {name: graph.tensors[name].shape for name in ports}
    images = frozenset(name for name, shape in shapes.items() if len(shape) == 4)
    model = stage_model(graph, names, nhwc=images)
    outer = {name: PortInfo(name, port.dtype, list(shapes[name])) for name, port in ports.items()}
    inputs, outputs = [[p.tensor for p in side] for side in (program.inputs, program.outputs)]
    plan = {"version": 1, "stages": [
        {"index": 0, "device": (members or ("fpga0",))[0], "compute": seconds, "nodes": []}
    ]}  # fmt: skip
    made = BundleWriter(
        trivet="0.1.0",
        model=ModelInfo("a" * 64, [outer[n] for n in inputs], [outer[n] for n in outputs]),
        plan=json.dumps(plan).encode(),
        rig=Rig({
            "cpu0": RigDevice("cpu", threads=1),
            **{f"fpga{k}": RigDevice("fpga", attach="virtual", board="ulx3s-85f", clock_hz=1e8)
               for k in range(2)},
        }),
    )  # fmt: skip
    made.add_program_stage(
        inputs, outputs, program.to_bytes(), engine=SMALL.sha256,
        fallback=model.SerializeToString(deterministic=True), members=members,
    )  # fmt: skip
    made.add_engine(SMALL.sha256, EngineInfo(asdict(SMALL)))
    for name, port in ports.items():
        if name in images:
            made.add_tensor(name, TensorInfo(port.dtype, [1, *port.hwc], layout="NHWC"))
        else:
            made.add_tensor(name, TensorInfo(port.dtype, list(shapes[name])))
    made.write(path)
    found: list[Item] = []
    for feed in random_inputs(graph, 4, items):
        values = golden_graph.run(graph, feed)
        found.append(({n: values[n] for n in inputs}, [values[n] for n in outputs]))
    return program, found
