"""What the runtime costs: one CPU stage through a Session against plain onnxruntime.

Paired: both run the same model with the same options in one process, in alternating blocks, so that
a slow machine slows both. Prints medians per item and their ratio, for ``run`` and for ``stream``.

    python benchmarks/runtime.py [MODEL.onnx] [--threads N] [--items N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from trivet import Session
from trivet.runtime.bundle import BundleWriter, ModelInfo, PortInfo, Rig, RigDevice, TensorInfo

DTYPES = {"tensor(float)": "float32"}
BLOCKS = 15


def convolutions(layers: int = 8, channels: int = 32) -> bytes:
    """A float CNN of some 2.4 M MACs a layer; weights seeded."""
    values = np.random.default_rng(0).standard_normal((channels, channels, 3, 3))
    weights = numpy_helper.from_array((values / 17).astype(np.float32), "w")
    nodes = [
        helper.make_node("Conv", [f"t{i}", "w"], [f"t{i + 1}"], pads=[1, 1, 1, 1])
        for i in range(layers)
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, 16, 16])
        for name in ("t0", f"t{layers}")
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [weights])
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString())


def plain_session(model: bytes, threads: int) -> ort.InferenceSession:
    """As the runtime's CPU device makes it."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def ports_of(nodes: list[Any]) -> list[PortInfo]:
    return [
        PortInfo(
            node.name,
            DTYPES.get(node.type, node.type.removeprefix("tensor(").removesuffix(")")),
            [dim if isinstance(dim, int) else 1 for dim in node.shape],
        )
        for node in nodes
    ]


def bundle(model: bytes, plain: ort.InferenceSession, threads: int, path: Path) -> list[PortInfo]:
    """Write the model as a bundle of one CPU stage."""
    inputs, outputs = ports_of(plain.get_inputs()), ports_of(plain.get_outputs())
    plan = {"version": 1, "stages": [{"index": 0, "device": "cpu0"}]}
    writer = BundleWriter(
        trivet="benchmark",
        model=ModelInfo("0" * 64, inputs, outputs),
        plan=json.dumps(plan).encode(),
        rig=Rig({"cpu0": RigDevice("cpu", threads=threads)}),
    )
    writer.add_onnx_stage([p.name for p in inputs], [p.name for p in outputs], model)
    for port in (*inputs, *outputs):
        writer.add_tensor(port.name, TensorInfo(port.dtype, list(port.item_shape())))
    writer.write(path)
    return inputs


def random_feed(ports: list[PortInfo]) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return {port.name: rng.integers(0, 100, port.item_shape()).astype(port.dtype) for port in ports}


def seconds_per_item(work: Callable[[], object], items: int) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) / items


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", type=Path, help="default: a CNN made here")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--items", type=int, default=50, help="items in a block")
    given = parser.parse_args()

    name = given.model.name if given.model else "8 convolutions 32x32x3x3 on 16x16, float32"
    model = given.model.read_bytes() if given.model else convolutions()
    if given.model:  # a symbolic batch becomes 1, as in a compiled bundle
        proto = onnx.load_from_string(model)
        for value in (*proto.graph.input, *proto.graph.output):
            for dim in value.type.tensor_type.shape.dim[:1]:
                dim.dim_value = 1
        model = proto.SerializeToString()
    plain = plain_session(model, given.threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "benchmark.trivet"
        ports = bundle(model, plain, given.threads, path)
        feed = random_feed(ports)
        with Session(path) as session:
            for ours, theirs in zip(session.run(None, feed), plain.run(None, feed), strict=True):
                if ours.tobytes() != theirs.tobytes():
                    print("the outputs differ", file=sys.stderr)
                    return 1
            count = range(given.items)
            ways: dict[str, Callable[[], object]] = {
                "onnxruntime": lambda: [plain.run(None, feed) for _ in count],
                "Session.run": lambda: [session.run(None, feed) for _ in count],
                "Session.stream": lambda: list(session.stream(feed for _ in count)),
            }
            times: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(BLOCKS + 1):
                for way, work in ways.items():
                    times[way].append(seconds_per_item(work, given.items))
    print(f"{name}; {given.threads} threads; {BLOCKS} blocks of {given.items} items")
    middle = {way: statistics.median(values[1:]) for way, values in times.items()}
    for way, value in middle.items():
        ratios = [a / b for a, b in zip(times[way][1:], times["onnxruntime"][1:], strict=True)]
        print(
            f"{way:15s} {value * 1e6:9.1f} us an item, ratio {statistics.median(ratios):.3f}, "
            f"{(value - middle['onnxruntime']) * 1e6:+.1f} us"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
