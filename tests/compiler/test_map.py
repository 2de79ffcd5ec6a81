"""Units of small and real models: their integer form, judged by golden, or why there is none."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import golden_graph
import numpy as np
import onnx
import pytest
from qdq import Builder, conv_model, plain_session

from trivet.compiler.errors import CompileError
from trivet.compiler.load import load
from trivet.compiler.map import map_units
from trivet.compiler.normalise import normalise
from trivet.compiler.units import (
    AddSpec,
    ConcatSpec,
    ConvSpec,
    Graph,
    MulSpec,
    PadSpec,
    PoolSpec,
    ResizeSpec,
    TableSpec,
    Unit,
)

SHARED = Path(os.environ.get("TRIVET_SHARED", Path(__file__).resolve().parents[3] / "shared"))
MLPERF = {
    "mlperf_tiny_ic_resnet8_int8": (
        {"conv": 10, "add": 3, "view": 2, "pool": 1, "other": 1},
        12_501_632,
    ),
    "mlperf_tiny_kws_dscnn_int8": ({"conv": 10, "view": 2, "pool": 1, "other": 1}, 2_656_768),
    "mlperf_tiny_ad_autoencoder_int8": ({"conv": 10}, 264_192),
}


def mapped(path: Path) -> Graph:
    return map_units(normalise(load(path, {})))


def build(tmp_path: Path, b: Builder, *outputs: str, dtype: Any = np.int8) -> Graph:
    return mapped(b.save(tmp_path / "m.onnx", *outputs, dtype=dtype))


def check_whole(graph: Graph) -> None:
    """Every node in one unit, every tensor known, units in topological order."""
    initial = set(graph.model.graph.initializers)
    constant_nodes: set[str] = set()
    known: set[str | None] = set(initial)
    for node in graph.model.graph:
        if node.inputs and all(v is None or v.name in known for v in node.inputs):
            constant_nodes.add(node.name)
            known.update(v.name for v in node.outputs)
    counts = Counter(n for u in graph.units for n in u.nodes if n not in constant_nodes)
    assert set(counts) == {n.name for n in graph.model.graph} - constant_nodes
    assert set(counts.values()) == {1}
    assert len({u.name for u in graph.units}) == len(graph.units)
    available = set(graph.inputs)
    for unit in graph.units:
        assert set(unit.inputs) <= available, unit.name
        available |= set(unit.outputs)
        assert (unit.spec is None) == (unit.kind in ("view", "other"))
        if unit.kind == "other":
            assert unit.refusals["fpga"]
    assert set(graph.outputs) <= available
    assert available <= set(graph.tensors)


def against_onnxruntime(graph: Graph, path: Path, seed: int = 0, runs: int = 3) -> float:
    """Share of output bytes that differ from the plain model; none by more than 1."""
    rng = np.random.default_rng(seed)
    session = plain_session(path)
    different = total = 0
    for _ in range(runs):
        feeds: dict[str, Any] = {}
        for name in graph.inputs:
            t = graph.tensors[name]
            if t.dtype == "float32":
                feeds[name] = rng.normal(size=t.shape).astype(np.float32)
            else:
                info = np.iinfo(t.dtype)
                feeds[name] = rng.integers(info.min, info.max + 1, t.shape).astype(t.dtype)
        found = golden_graph.run(graph, feeds)
        for name, value in zip(graph.outputs, session.run(None, feeds), strict=True):
            gap = np.abs(found[name].astype(np.int64) - value.astype(np.int64))
            assert gap.max() <= 1, name
            different, total = different + int((gap > 0).sum()), total + gap.size
    return different / total


@pytest.mark.parametrize("name", MLPERF)
def test_mlperf_models_map_completely(name: str) -> None:
    path = SHARED / "models" / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path.name} is not in $TRIVET_SHARED/models")
    graph = mapped(path)
    kinds, macs = MLPERF[name]
    check_whole(graph)
    assert Counter(u.kind for u in graph.units) == kinds
    assert sum(u.macs for u in graph.units) == macs
    on_cpu = [u for u in graph.units if "fpga" in u.refusals]
    assert len(on_cpu) == kinds.get("other", 0) + (1 if "view" in kinds else 0)
    assert graph.batch_axis is not None
    assert against_onnxruntime(graph, path, runs=1) < 0.1


CONVS: list[dict[str, Any]] = [
    {},
    {"strides": [2, 1], "pads": [0, 1, 1, 2]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
    {"auto_pad": "VALID"},
    {"dilations": [2, 2], "pads": [2, 2, 2, 2]},
    {"group": 2},
    {"group": 4, "pads": [1, 1, 1, 1]},
]


@pytest.mark.parametrize("attrs", CONVS, ids=lambda a: "-".join(a) or "plain")
@pytest.mark.parametrize("activation", ["none", "relu", "clip"])
def test_conv(tmp_path: Path, attrs: dict[str, Any], activation: str) -> None:
    b, value = conv_model(np.random.default_rng(1), **attrs)
    if activation == "relu":
        value = b.op("Relu", value)
    elif activation == "clip":
        low, high = b.constant(np.float32(-1.03)), b.constant(np.float32(6.0))
        value = b.op("Clip", value, low, high)
    graph = build(tmp_path, b, b.q(value, 0.11, -20))
    check_whole(graph)
    (unit,) = graph.units
    spec = unit.spec
    assert isinstance(spec, ConvSpec)
    assert (unit.kind, unit.name, unit.refusals) == ("conv", "conv", {})
    lows = {"none": -128, "relu": -20, "clip": -29}
    assert spec.lo == lows[activation]
    assert spec.hi == (35 if activation == "clip" else 127)
    y = graph.tensors[unit.outputs[0]].shape
    assert unit.macs == int(np.prod(y)) * int(np.prod(spec.weight.shape[1:]))
    product = np.float32(0.05) * spec.w_scale
    assert spec.m.dtype == np.float32
    assert np.array_equal(spec.m, (product / np.float32(0.11)).astype(np.float32))
    assert against_onnxruntime(graph, tmp_path / "m.onnx") < 0.01


@pytest.mark.parametrize("form", ["matmul", "gemm", "gemm_transposed"])
def test_matrix_products(tmp_path: Path, form: str) -> None:
    rng = np.random.default_rng(2)
    b = Builder()
    x = b.dq(b.input("x", [3, 8]), 0.1, -5)
    weights = rng.integers(-127, 128, (8, 5)).astype(np.int8)
    transposed = form == "gemm_transposed"
    axis = 0 if transposed else 1
    scales = rng.uniform(0.01, 0.02, 5).astype(np.float32)
    w = b.dq(b.constant(weights.T.copy() if transposed else weights), scales, axis=axis)
    values = rng.integers(-999, 999, 5).astype(np.int32)
    bias = b.dq(b.constant(values), np.float32(0.1) * scales, dtype=np.int32, axis=0)
    if form == "matmul":
        y = b.op("Add", bias, b.op("MatMul", x, w, name="mm"))
    else:
        y = b.op("Gemm", x, w, bias, name="mm", transB=int(transposed))
    graph = build(tmp_path, b, b.q(y, 0.2, 7))
    (unit,) = graph.units
    assert isinstance(unit.spec, ConvSpec)
    assert unit.spec.matrix
    assert unit.macs == 3 * 8 * 5
    assert np.array_equal(unit.spec.weight[:, :, 0, 0], weights.T)
    assert np.array_equal(unit.spec.bias, values)
    assert against_onnxruntime(graph, tmp_path / "m.onnx") < 0.01


def test_unsigned_weights_around_128_are_int8(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    b = Builder()
    x = b.dq(b.input("x", [1, 8], np.uint8), 0.1, 120, np.uint8)
    weights = rng.integers(0, 256, (8, 5)).astype(np.uint8)
    w = b.dq(b.constant(weights), 0.02, 128, np.uint8)
    graph = build(tmp_path, b, b.q(b.op("MatMul", x, w), 0.3, 100, np.uint8), dtype=np.uint8)
    spec = graph.units[0].spec
    assert isinstance(spec, ConvSpec)
    assert np.array_equal(spec.weight[:, :, 0, 0].T, weights.astype(np.int16) - 128)
    assert against_onnxruntime(graph, tmp_path / "m.onnx") < 0.01


def test_residual_add_with_relu(tmp_path: Path) -> None:
    b = Builder()
    x, y = b.input("x", [1, 4, 3, 3]), b.input("y", [1, 4, 3, 3])
    total = b.op("Add", b.dq(x, 0.05, 3), b.dq(y, 0.08, -9), name="add")
    graph = build(tmp_path, b, b.q(b.op("Relu", total), 0.09, -100))
    (unit,) = graph.units
    assert isinstance(unit.spec, AddSpec)
    assert (unit.name, unit.inputs, unit.spec.lo, unit.spec.hi) == ("add", ("x", "y"), -100, 127)
    assert against_onnxruntime(graph, tmp_path / "m.onnx") == 0


def test_product_with_relu(tmp_path: Path) -> None:
    b = Builder()
    x, y = b.input("x", [1, 4, 3, 3]), b.input("y", [1, 4, 3, 3])
    product = b.op("Mul", b.dq(x, 0.05, 3), b.dq(y, 0.081, -9), name="mul")
    graph = build(tmp_path, b, b.q(b.op("Relu", product), 0.09, -100))
    (unit,) = graph.units
    assert isinstance(unit.spec, MulSpec)
    assert (unit.kind, unit.name, unit.inputs) == ("mul", "mul", ("x", "y"))
    assert (unit.spec.lo, unit.spec.hi) == (-100, 127)
    assert against_onnxruntime(graph, tmp_path / "m.onnx") == 0


@pytest.mark.parametrize("swap", [False, True])
def test_a_factor_for_each_channel(tmp_path: Path, swap: bool) -> None:
    b = Builder()
    ends = [b.dq(b.input("x", [1, 4, 3, 3]), 0.05, 3), b.dq(b.input("y", [1, 4, 1, 1]), 0.081, -9)]
    graph = build(tmp_path, b, b.q(b.op("Mul", *(ends[::-1] if swap else ends)), 0.09, -100))
    (unit,) = graph.units
    assert isinstance(unit.spec, MulSpec)
    assert unit.inputs == (("y", "x") if swap else ("x", "y"))
    assert against_onnxruntime(graph, tmp_path / "m.onnx") == 0


def pool(b: Builder, op_type: str, **attrs: Any) -> str:
    x = b.dq(b.input("x", [1, 4, 8, 6]), 0.05, 3)
    return b.q(b.op(op_type, x, name="pool", **attrs), 0.05, 3)


@pytest.mark.parametrize(
    ("op_type", "attrs"),
    [
        ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("MaxPool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("AveragePool", {"kernel_shape": [4, 3], "strides": [4, 3]}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        ("GlobalAveragePool", {}),
    ],
)
def test_pools(tmp_path: Path, op_type: str, attrs: dict[str, Any]) -> None:
    b = Builder()
    graph = build(tmp_path, b, pool(b, op_type, **attrs))
    (unit,) = graph.units
    assert isinstance(unit.spec, PoolSpec)
    share = against_onnxruntime(graph, tmp_path / "m.onnx")
    # Means often end in exactly one half; the contract and a float mean round it their own way.
    assert share == 0 if op_type == "MaxPool" else share < 0.2


def test_maxpool_on_bytes(tmp_path: Path) -> None:
    b = Builder()
    value = b.op("MaxPool", b.input("x", [1, 2, 4, 4]), kernel_shape=[2, 2], strides=[2, 2])
    graph = build(tmp_path, b, b.q(b.op("Relu", b.dq(value, 0.1, 2)), 0.1, 2))
    assert [u.kind for u in graph.units] == ["pool", "table"]
    assert graph.units[0].spec.x.zero_point == 2  # type: ignore[union-attr]
    assert against_onnxruntime(graph, tmp_path / "m.onnx") == 0


def hardswish_parts(b: Builder, x: str) -> str:
    return b.op("Mul", x, b.op("HardSigmoid", x, alpha=1 / 6))


CHAINS: dict[str, Callable[[Builder, str], str]] = {
    "Sigmoid": lambda b, x: b.op("Sigmoid", x),
    "Tanh": lambda b, x: b.op("Tanh", x),
    "HardSwish": lambda b, x: b.op("HardSwish", x),
    "LeakyRelu": lambda b, x: b.op("LeakyRelu", x, alpha=0.1),
    "rescale": lambda b, x: x,
    "two": lambda b, x: b.op("Mul", b.op("Tanh", x), b.constant(np.float32([[[[3.0]]]]))),
    "joined": hardswish_parts,
}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("chain", CHAINS)
def test_unary_chains_become_tables(tmp_path: Path, chain: str, dtype: Any) -> None:
    b = Builder()
    zero = 10 if dtype is np.int8 else 138
    x = b.dq(b.input("x", [1, 4, 8, 8], dtype), 0.05, zero, dtype)
    graph = build(tmp_path, b, b.q(CHAINS[chain](b, x), 0.03, zero - 6, dtype), dtype=dtype)
    check_whole(graph)
    (unit,) = graph.units
    assert isinstance(unit.spec, TableSpec)
    assert unit.spec.table.dtype == np.uint8
    assert against_onnxruntime(graph, tmp_path / "m.onnx") == 0


def test_chain_that_gives_no_number_is_refused(tmp_path: Path) -> None:
    b = Builder()
    x = b.dq(b.input("x", [1, 4]), 0.05)
    graph = build(tmp_path, b, b.q(b.op("Log", x), 0.03))
    assert [u.kind for u in graph.units] == ["other"]
    assert "not-a-number" in graph.units[0].refusals["fpga"]


def test_flatten_before_matmul_is_a_view_for_the_fpga(tmp_path: Path) -> None:
    """Also where the quantiser put the Reshape between floats."""
    b = Builder()
    x = b.dq(b.input("x", [1, 2, 3, 3]), 0.1)
    flat = b.dq(b.q(b.op("Flatten", x, name="flat"), 0.1), 0.1)
    w = b.dq(b.constant(np.ones((18, 4), np.int8)), 0.02)
    graph = build(tmp_path, b, b.q(b.op("MatMul", flat, w), 0.3))
    check_whole(graph)
    assert [(u.kind, u.refusals) for u in graph.units] == [("view", {}), ("conv", {})]
    assert graph.units[0].name == "flat"
    assert against_onnxruntime(graph, tmp_path / "m.onnx") == 0


def test_view_that_moves_bytes_is_refused(tmp_path: Path) -> None:
    b = Builder()
    x = b.op("Transpose", b.input("x", [1, 5, 5, 3]), perm=[0, 3, 1, 2])
    graph = build(tmp_path, b, b.q(b.op("Relu", b.dq(x, 0.1)), 0.2))
    assert "moves bytes" in graph.units[0].refusals["fpga"]


def test_float_ends_are_units_of_their_own(tmp_path: Path) -> None:
    b = Builder()
    b.input("x", [1, 8], np.float32)
    x = b.dq(b.q("x", 0.1, out="x_q"), 0.1)
    w = b.dq(b.constant(np.ones((8, 4), np.int8)), 0.02)
    y = b.dq(b.q(b.op("MatMul", x, w), 0.3, out="y_q"), 0.3)
    graph = build(tmp_path, b, y, dtype=np.float32)
    check_whole(graph)
    assert [u.kind for u in graph.units] == ["other", "conv", "other"]
    assert graph.units[1].inputs == ("x_q",)
    assert graph.units[1].outputs == ("y_q",)
    assert graph.tensors["x_q"].quant is not None
    assert graph.tensors["x"].quant is None


def _weights_at_run_time(b: Builder) -> str:
    x, w = b.dq(b.input("x", [2, 4]), 0.1), b.dq(b.input("w", [4, 4]), 0.1)
    return b.op("MatMul", x, w, name="n")


def _zero_point(b: Builder) -> str:
    x = b.dq(b.input("x", [2, 4]), 0.1)
    return b.op("MatMul", x, b.dq(b.constant(np.ones((4, 4), np.int8)), 0.1, 3), name="n")


def _float_bias(b: Builder) -> str:
    x = b.dq(b.input("x", [1, 4]), 0.1)
    w = b.dq(b.constant(np.ones((4, 2), np.int8)), 0.1)
    return b.op("Gemm", x, w, b.constant(np.float32([0.0153, 0.2])), name="n")


def _bias_scale(b: Builder) -> str:
    x = b.dq(b.input("x", [1, 4]), 0.1)
    w = b.dq(b.constant(np.ones((4, 2), np.int8)), 0.1)
    bias = b.dq(b.constant(np.int32([1, 2])), 0.0123, dtype=np.int32)
    return b.op("Gemm", x, w, bias, name="n")


def _one_dimension(b: Builder) -> str:
    x = b.dq(b.input("x", [1, 4, 5]), 0.1)
    w = b.dq(b.constant(np.ones((4, 4, 3), np.int8)), 0.1)
    return b.op("Conv", x, w, name="n")


def _batched(b: Builder) -> str:
    x = b.dq(b.input("x", [1, 2, 4]), 0.1)
    return b.op("MatMul", x, b.dq(b.constant(np.ones((4, 4), np.int8)), 0.1), name="n")


def _sigmoid_behind(b: Builder) -> str:
    x = b.dq(b.input("x", [2, 4]), 0.1)
    w = b.dq(b.constant(np.ones((4, 4), np.int8)), 0.1)
    return b.op("Sigmoid", b.op("MatMul", x, w, name="n"))


def _broadcast(b: Builder) -> str:
    x, y = b.dq(b.input("x", [1, 4, 3, 3]), 0.1), b.dq(b.input("y", [1, 4, 1, 1]), 0.1)
    return b.op("Add", x, y, name="n")


def _average_over_padding(b: Builder) -> str:
    x = b.dq(b.input("x", [1, 4, 5, 5]), 0.1)
    return b.op("AveragePool", x, name="n", kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def _dilated_pool(b: Builder) -> str:
    x = b.dq(b.input("x", [1, 4, 8, 8]), 0.1)
    return b.op("MaxPool", x, name="n", kernel_shape=[3, 3], dilations=[2, 2])


def _ceil_mode(b: Builder) -> str:
    x = b.dq(b.input("x", [1, 4, 8, 8]), 0.1)
    return b.op("MaxPool", x, name="n", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)


def _max_rescale(b: Builder) -> str:
    x = b.dq(b.input("x", [1, 4, 8, 8]), 0.3)
    return b.op("MaxPool", x, name="n", kernel_shape=[2, 2])


def _rows(b: Builder) -> str:
    x, y = b.dq(b.input("x", [1, 4, 3, 3]), 0.1), b.dq(b.input("y", [1, 4, 2, 3]), 0.1)
    return b.op("Concat", x, y, axis=2, name="n")


def _reflected(b: Builder) -> str:
    x, pads = b.dq(b.input("x", [1, 4, 3, 3]), 0.1), b.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    return b.op("Pad", x, pads, mode="reflect", name="n")


def _padded_with_nothing(b: Builder) -> str:
    x, pads = b.dq(b.input("x", [1, 4, 3, 3]), 0.1), b.constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    return b.op("Pad", x, pads, b.constant(np.float32(np.nan)), name="n")


def _padded_channels(b: Builder) -> str:
    x, pads = b.dq(b.input("x", [1, 4, 3, 3]), 0.1), b.constant(np.array([0, 2, 0, 0, 0, 0, 0, 0]))
    return b.op("Pad", x, pads, name="n")


def _linear(b: Builder) -> str:
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    return b.op(
        "Resize", b.dq(b.input("x", [1, 4, 3, 3]), 0.1), "", scales, mode="linear", name="n"
    )


def _half(b: Builder) -> str:
    scales = b.constant(np.array([1, 1, 0.5, 2], np.float32))
    return b.op("Resize", b.dq(b.input("x", [1, 4, 4, 3]), 0.1), "", scales, name="n")


def _ceiled(b: Builder) -> str:
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    x = b.dq(b.input("x", [1, 4, 3, 3]), 0.1)
    modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"}
    return b.op("Resize", x, "", scales, name="n", **modes)


def _quotient(b: Builder) -> str:
    x, y = b.dq(b.input("x", [1, 4, 3, 3]), 0.1), b.dq(b.input("y", [1, 4, 3, 3]), 0.1)
    return b.op("Div", x, y, name="n")


def _softmax(b: Builder) -> str:
    return b.op("Softmax", b.dq(b.input("x", [1, 10]), 0.1), name="n")


@pytest.mark.parametrize("clamp", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_concat_rescales_as_onnxruntime_does(tmp_path: Path, dtype: Any, clamp: bool) -> None:
    b = Builder()
    x = b.dq(b.input("x", [1, 4, 3, 3], dtype), 0.03, 7, dtype)
    y = b.dq(b.input("y", [1, 5, 3, 3]), 0.011, -9)
    z = b.dq(b.input("z", [1, 2, 3, 3]), 0.02, 3)
    value = b.op("Concat", x, y, z, axis=1, name="n")
    value = b.op("Relu", value) if clamp else value
    graph = build(tmp_path, b, b.q(value, 0.02, 3))
    check_whole(graph)
    (unit,) = graph.units
    assert (unit.kind, unit.inputs, unit.refusals) == ("concat", ("x", "y", "z"), {})
    assert isinstance(unit.spec, ConcatSpec)
    assert [t is None for t in unit.spec.tables] == [False, False, not clamp]
    assert against_onnxruntime(graph, tmp_path / "m.onnx", runs=20) == 0


RESIZES = [
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("asymmetric", "floor"),
    ("pytorch_half_pixel", "round_prefer_floor"),
]


@pytest.mark.parametrize("by_size", [False, True])
@pytest.mark.parametrize(("mode", "nearest"), RESIZES)
def test_resize(tmp_path: Path, mode: str, nearest: str, by_size: bool) -> None:
    b = Builder()
    x = b.dq(b.input("x", [1, 4, 5, 3]), 0.03, 7)
    more = [b.constant(np.array([1, 1, 2, 3], np.float32))]
    if by_size:
        more = ["", b.constant(np.array([1, 4, 10, 9]))]
    modes = {"coordinate_transformation_mode": mode, "nearest_mode": nearest}
    graph = build(tmp_path, b, b.q(b.op("Resize", x, "", *more, name="n", **modes), 0.03, 7))
    check_whole(graph)
    (unit,) = graph.units
    assert isinstance(unit.spec, ResizeSpec)
    assert (unit.kind, unit.spec.factors, unit.refusals) == ("resize", (2, 3), {})
    assert against_onnxruntime(graph, tmp_path / "m.onnx") == 0


def test_resize_of_bytes(tmp_path: Path) -> None:
    b = Builder()
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    y = b.op("Resize", b.q(b.input("x", [1, 4, 5, 3], np.float32), 0.03, 7), "", scales, name="n")
    path = b.save(tmp_path / "m.onnx", b.dq(y, 0.03, 7), dtype=np.float32)
    graph = mapped(path)
    check_whole(graph)
    unit = graph.unit("n")
    assert isinstance(unit.spec, ResizeSpec)
    assert graph.tensors[unit.outputs[0]].quant == unit.spec.x
    assert against_onnxruntime(graph, path) == 0


@pytest.mark.parametrize("axes", [False, True])
def test_pad(tmp_path: Path, axes: bool) -> None:
    b = Builder(18)
    x = b.dq(b.input("x", [1, 4, 3, 3]), 0.03, 7)
    pads = b.constant(np.array([1, 2, 3, 0] if axes else [0, 0, 1, 2, 0, 0, 3, 0]))
    more = ["", b.constant(np.array([2, -1]))] if axes else []
    graph = build(tmp_path, b, b.q(b.op("Pad", x, pads, *more, name="n"), 0.03, 7))
    check_whole(graph)
    (unit,) = graph.units
    assert isinstance(unit.spec, PadSpec)
    assert (unit.kind, unit.spec.pads) == ("pad", (1, 2, 3, 0))
    assert against_onnxruntime(graph, tmp_path / "m.onnx") == 0


@pytest.mark.parametrize(("real", "level"), [(0.5, 24), (-9.0, -128), (np.inf, 127), (0.0, 7)])
def test_pad_with_any_constant(tmp_path: Path, real: float, level: int) -> None:
    b = Builder(18)
    x = b.dq(b.input("x", [1, 4, 3, 3]), 0.03, 7)
    pads, value = b.constant(np.array([0, 0, 1, 2, 0, 0, 3, 0])), b.constant(np.float32(real))
    graph = build(tmp_path, b, b.q(b.op("Pad", x, pads, value, name="n"), 0.03, 7))
    (unit,) = graph.units
    assert isinstance(unit.spec, PadSpec)
    assert unit.spec.value == level
    assert against_onnxruntime(graph, tmp_path / "m.onnx") == 0


REFUSED: list[tuple[Callable[[Builder], str], str]] = [
    (_weights_at_run_time, "weights is computed at run time"),
    (_zero_point, "zero point of its weights is not 0"),
    (_float_bias, r"bias is no multiple .* channel 0 is 1\.530 steps"),
    (_bias_scale, "bias is no multiple"),
    (_one_dimension, "1 spatial dimensions"),
    (_batched, "MatMul of 3 dimensions"),
    (_sigmoid_behind, "Sigmoid stands between MatMul and its QuantizeLinear"),
    (_broadcast, "broadcasts shapes"),
    (_average_over_padding, "not counted"),
    (_dilated_pool, r"dilation \[2, 2\]"),
    (_ceil_mode, "ceil_mode"),
    (_max_rescale, "changes the scale"),
    (_rows, "joins along axis 2"),
    (_reflected, "pads in mode reflect"),
    (_padded_with_nothing, "pads with NaN"),
    (_padded_channels, "adds rows and columns only"),
    (_linear, "mode is linear"),
    (_half, "a whole number of times"),
    (_ceiled, "its coordinates repeat no pixel"),
    (_quotient, "Div: it takes two tensors; the engine divides none"),
    (_softmax, "Softmax: has no integer form"),
]


@pytest.mark.parametrize(("make", "text"), REFUSED, ids=lambda v: getattr(v, "__name__", ""))
def test_refused_with_a_reason_and_still_right(
    tmp_path: Path, make: Callable[[Builder], str], text: str
) -> None:
    b = Builder()
    graph = build(tmp_path, b, b.q(make(b), 0.1))
    check_whole(graph)
    unit = graph.unit("n")
    assert unit.kind == "other"
    assert re.search(text, unit.refusals["fpga"]), unit.refusals
    assert against_onnxruntime(graph, tmp_path / "m.onnx") == 0


def test_bias_of_another_scale_is_taken_where_exact(tmp_path: Path) -> None:
    b = Builder()
    x = b.dq(b.input("x", [1, 4]), 0.5)
    w = b.dq(b.constant(np.ones((4, 2), np.int8)), 0.25)
    graph = build(tmp_path, b, b.q(b.op("Gemm", x, w, b.constant(np.float32([0.5, -3]))), 0.3))
    spec = graph.units[0].spec
    assert isinstance(spec, ConvSpec)
    assert spec.bias.tolist() == [4, -24]


def test_nodes_with_subgraphs_take_what_they_capture(tmp_path: Path) -> None:
    helper = onnx.helper
    b = Builder()
    b.input("x", [1, 4])
    b.input("flag", [], np.bool_)
    f = b.dq("x", 0.1, out="f")
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 4]) for n in ("t", "e")]
    then = helper.make_graph([helper.make_node("Relu", [f], ["t"])], "then", [], ends[:1])
    other = helper.make_graph([helper.make_node("Neg", [f], ["e"])], "else", [], ends[1:])
    y = b.op("If", "flag", then_branch=then, else_branch=other, name="if")
    graph = build(tmp_path, b, b.q(y, 0.1))
    check_whole(graph)
    units = {u.name: u for u in graph.units}
    assert "x" in units["if"].inputs or "f" in units["if"].inputs


def test_back_end_adds_its_refusals(tmp_path: Path) -> None:
    b, value = conv_model(np.random.default_rng(1))
    b.save(tmp_path / "m.onnx", b.op("Softmax", b.dq(b.q(value, 0.1), 0.1)), dtype=np.float32)

    def refusal(graph: Graph, unit: Unit) -> str | None:
        return f"{unit.name}: too large" if graph.tensors[unit.outputs[0]] and unit.spec else None

    graph = map_units(normalise(load(tmp_path / "m.onnx", {})), refusal)
    assert graph.unit("conv").refusals == {"fpga": "conv: too large"}
    assert "float" in graph.units[-1].refusals["fpga"]


def test_a_tensor_of_more_than_two_gibibytes_is_refused() -> None:
    path = SHARED / "models" / "mlperf_tiny_ic_resnet8_int8.onnx"
    if not path.exists():
        pytest.skip(f"{path.name} is not in $TRIVET_SHARED/models")
    loaded = normalise(load(path, {"unk__259": 1_000_000}))
    with pytest.raises(CompileError, match=r"above the limit 2,147,483,648; fix smaller"):
        map_units(loaded)


def test_layer_whose_sums_may_leave_int32_stays_in_float(tmp_path: Path) -> None:
    b = Builder()
    x = b.dq(b.input("x", [1, 140_000], np.int8), np.float32(0.1), np.int8(0))
    w = b.dq(b.constant(np.full((140_000, 2), 127, np.int8)), np.float32(0.1), np.int8(0))
    y = b.q(b.op("MatMul", x, w, name="mm"), np.float32(1e6), np.int8(0))
    graph = map_units(normalise(load(b.save(tmp_path / "m.onnx", y), {})))
    unit = next(u for u in graph.units if "mm" in u.nodes)
    assert unit.kind == "other"
    assert "above int32" in unit.refusals["fpga"]
