"""Quantise: float models with real calibration data, and data that does not fit."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import golden_graph
import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from qdq import Builder, conv_model, plain_session

from trivet.compiler.errors import CompileError
from trivet.compiler.load import Loaded, load
from trivet.compiler.map import map_units
from trivet.compiler.normalise import normalise
from trivet.compiler.quantise import quantise

SHARED = Path(os.environ.get("TRIVET_SHARED", Path(__file__).resolve().parents[3] / "shared"))
RNG = np.random.default_rng(10)


def residual_net(path: Path) -> Path:
    """Float: two convolutions with a skip, Relu6, pools, a table, a Gemm."""
    b = Builder()

    def conv(x: str, i: int, o: int, name: str) -> str:
        w = b.constant(RNG.normal(0, 0.3, (o, i, 3, 3)).astype(np.float32))
        bias = b.constant(RNG.normal(0, 0.3, o).astype(np.float32))
        return b.op("Conv", x, w, bias, name=name, pads=[1, 1, 1, 1])

    x = b.input("x", ["n", 3, 8, 8], np.float32)
    low, high = b.constant(np.float32(0)), b.constant(np.float32(6))
    y = b.op("Clip", conv(x, 3, 8, "first"), low, high)
    y = b.op("Relu", b.op("Add", conv(y, 8, 8, "second"), y, name="add"))
    y = b.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2], name="pool")
    y = b.op("HardSwish", y, name="table")
    y = b.op("Flatten", b.op("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2], name="mean"))
    w = b.constant(RNG.normal(size=(32, 5)).astype(np.float32))
    y = b.op("Add", b.op("MatMul", y, w, name="mm"), b.constant(RNG.normal(size=5).astype("f")))
    return b.save(path, b.op("Softmax", y, out="y"), dtype=np.float32)


def prepared(tmp_path: Path) -> Loaded:
    return normalise(load(residual_net(tmp_path / "m.onnx"), {}))


def test_residual_net(tmp_path: Path) -> None:
    loaded = prepared(tmp_path)
    data = RNG.normal(size=(64, 3, 8, 8)).astype(np.float32)
    result = quantise(loaded, {"x": data})
    assert result.sha256 == loaded.sha256
    assert any("64 calibration samples" in note for note in result.notes)
    graph = map_units(result)
    kinds = Counter(u.kind for u in graph.units)
    assert kinds == {"conv": 3, "add": 1, "pool": 2, "table": 1, "view": 1, "other": 2}
    assert {"first", "second", "add", "pool", "table", "mean", "mm"} <= {
        u.name for u in graph.units
    }
    assert [u.name for u in graph.units if "fpga" in u.refusals] == [
        graph.units[0].name, graph.units[-1].name,
    ]  # fmt: skip
    assert (graph.inputs, graph.outputs) == (("x",), ("y",))
    assert graph.tensors["x"].dtype == graph.tensors["y"].dtype == "float32"
    exact, quantised = plain_session(tmp_path / "m.onnx"), plain_session(ir.to_proto(result.model))
    for sample in data[:8, None]:
        y = golden_graph.run(graph, {"x": sample})["y"]
        (float_y,) = exact.run(None, {"x": sample})
        (quantised_y,) = quantised.run(None, {"x": sample})
        assert np.abs(y - quantised_y).max() < 0.1
        assert np.abs(y - float_y).max() < 0.25


def test_joined_activation_becomes_one_table(tmp_path: Path) -> None:
    """x * Sigmoid(x) between two convolutions: no int8 tensor inside, no float unit."""
    b = Builder()
    w = [b.constant(RNG.normal(0, 0.5, (4, 4, 1, 1)).astype(np.float32)) for _ in range(2)]
    x = b.op("Conv", b.input("x", [1, 4, 5, 5], np.float32), w[0], name="first")
    y = b.op("Conv", b.op("Mul", x, b.op("Sigmoid", x), name="silu"), w[1], name="second")
    path = b.save(tmp_path / "m.onnx", y, dtype=np.float32)
    data = RNG.normal(size=(16, 4, 5, 5)).astype(np.float32)
    graph = map_units(quantise(normalise(load(path, {})), {"x": data}))
    names = [(u.kind, u.name) for u in graph.units]
    assert names[1:4] == [("conv", "first"), ("table", "silu"), ("conv", "second")]


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        (
            "mlperf_tiny_ic_resnet8_fp32",
            {"conv": 10, "add": 3, "pool": 1, "view": 2, "other": 2},
        ),
        ("mlperf_tiny_kws_dscnn_fp32", {"conv": 10, "pool": 1, "view": 2, "other": 2}),
    ],
)
def test_mlperf_float_models_keep_their_accuracy(name: str, kinds: dict[str, int]) -> None:
    path = SHARED / "models" / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path.name} is not in $TRIVET_SHARED/models")
    if "resnet8" in name:
        data = np.load(path.parent / "cifar10_500_uint8.npz")
        x = data["input"].astype(np.float32)
    else:
        data = np.load(path.parent / "kws_1000_int8.npz")
        # The float model takes what the int8 model's input stands for (scale, zero point).
        x = (data["input"].astype(np.float32) - 83) * np.float32(0.5847029089927673)
    label = data["label"]
    loaded = normalise(load(path, {}))
    result = quantise(loaded, {loaded.model.graph.inputs[0].name or "": x[:100]})
    graph = map_units(result)
    assert Counter(u.kind for u in graph.units) == kinds
    (entry,), (out,) = graph.inputs, graph.outputs
    count = 40
    right = sum(
        int(golden_graph.run(graph, {entry: v[None]})[out].argmax() == k)
        for v, k in zip(x[100 : 100 + count], label[100:], strict=False)
    )
    session = plain_session(path)
    float_right = sum(
        int(session.run(None, {entry: v[None]})[0].argmax() == k)
        for v, k in zip(x[100 : 100 + count], label[100:], strict=False)
    )
    assert right >= float_right - 2


def test_quantised_model_is_taken_as_it_is(tmp_path: Path) -> None:
    b, value = conv_model(RNG)
    loaded = normalise(load(b.save(tmp_path / "m.onnx", b.q(value, 0.1)), {}))
    assert quantise(loaded, None) is loaded
    assert any("not used" in n for n in quantise(loaded, {"x": np.zeros(1)}).notes)


def test_model_without_products_is_taken_as_it_is(tmp_path: Path) -> None:
    b = Builder()
    y = b.op("Softmax", b.input("x", [1, 4], np.float32))
    loaded = normalise(load(b.save(tmp_path / "m.onnx", y, dtype=np.float32), {}))
    assert quantise(loaded, None) is loaded


GOOD = np.zeros((5, 3, 8, 8), np.float32)
BAD: list[tuple[dict[str, Any] | None, str]] = [
    (None, "no calibration data; pass --calibrate DATA.npz"),
    ({}, "model input 'x' has no array"),
    ({"x": GOOD, "z": GOOD}, "no model input 'z'; name the arrays 'x'"),
    ({"x": GOOD[:, :, :7]}, r"shape \[5, 3, 7, 8\], must be \[samples, 3, 8, 8\]"),
    ({"x": GOOD[0]}, r"shape \[3, 8, 8\]"),
    ({"x": GOOD.astype(np.uint8)}, "dtype uint8, the model takes float32"),
    ({"x": GOOD[:0]}, "must be one number above 0"),
    ({"x": np.full_like(GOOD, np.nan)}, "infinite or undefined"),
]


@pytest.mark.parametrize(("data", "text"), BAD)
def test_data_that_does_not_fit(tmp_path: Path, data: dict[str, Any] | None, text: str) -> None:
    with pytest.raises(CompileError, match=text) as caught:
        quantise(prepared(tmp_path), data)
    assert "\n" not in str(caught.value)


def test_samples_may_carry_the_batch_axis(tmp_path: Path) -> None:
    loaded = prepared(tmp_path)
    data = RNG.normal(size=(4, 3, 8, 8)).astype(np.float32)
    models = [quantise(loaded, {"x": d}).model for d in (data, data[:, None])]
    first, second = (ir.to_proto(m).SerializeToString() for m in models)
    assert first == second


def test_weights_in_a_file_beside_the_model(tmp_path: Path) -> None:
    """The quantiser works in a folder of its own: the weights must come along."""
    path = residual_net(tmp_path / "m.onnx")
    x = np.random.default_rng(3).normal(size=(8, 3, 8, 8)).astype(np.float32)
    inside = quantise(prepared(tmp_path), {"x": x})
    ir.save(ir.load(path), tmp_path / "outside.onnx", external_data="w.data")
    outside = quantise(normalise(load(tmp_path / "outside.onnx", {})), {"x": x})
    kinds = [[u.kind for u in map_units(loaded).units] for loaded in (inside, outside)]
    assert kinds[0] == kinds[1]
    assert "conv" in kinds[1]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers(tmp_path: Path, value: float) -> None:
    b = Builder()
    w = np.ones((8, 8), np.float32)
    w[2, 3] = value
    y = b.op("MatMul", b.input("x", [1, 8], np.float32), b.constant(w, "w"))
    loaded = normalise(load(b.save(tmp_path / "m.onnx", y, dtype=np.float32), {}))
    with pytest.raises(CompileError, match="have infinite or undefined values"):
        quantise(loaded, {"x": np.ones((4, 8), np.float32)})


def test_value_that_is_seen_before_its_relu_keeps_its_negative_part(tmp_path: Path) -> None:
    b = Builder()
    rng = np.random.default_rng(4)
    w = rng.normal(size=(8, 8)).astype(np.float32)
    seen = b.op("MatMul", b.input("x", [1, 8], np.float32), b.constant(w, "w"), out="seen")
    model = b.model(b.op("Relu", seen, out="y"), dtype=np.float32)
    model.graph.output.append(helper.make_tensor_value_info("seen", TensorProto.FLOAT, [1, 8]))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    x = rng.normal(size=(32, 8)).astype(np.float32)
    graph = map_units(quantise(normalise(load(path, {})), {"x": x}))
    least = min(golden_graph.run(graph, {"x": x[k : k + 1]})["seen"].min() for k in range(32))
    assert least < 0.9 * (x @ w).min()


def test_clip_with_its_bounds_the_wrong_way_round_stays_float(tmp_path: Path) -> None:
    b = Builder()
    w = np.random.default_rng(4).normal(size=(8, 8)).astype(np.float32)
    y = b.op("MatMul", b.input("x", [1, 8], np.float32), b.constant(w, "w"))
    low, high = b.constant(np.float32(0.0)), b.constant(np.float32(-0.5))
    path = b.save(tmp_path / "m.onnx", b.op("Clip", y, low, high, out="y"), dtype=np.float32)
    x = np.random.default_rng(5).normal(size=(16, 8)).astype(np.float32)
    graph = map_units(quantise(normalise(load(path, {})), {"x": x}))
    assert (golden_graph.run(graph, {"x": x[:1]})["y"] == np.float32(-0.5)).all()
