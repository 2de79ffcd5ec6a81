"""Normalise: the list of passes as a whole keeps outputs, names and the caller's model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from qdq import Builder, plain_session

from trivet.compiler import normalise as module
from trivet.compiler.errors import CompileError
from trivet.compiler.load import load
from trivet.compiler.normalise import normalise


def float_net(path: Path) -> Path:
    rng = np.random.default_rng(9)
    b = Builder()
    x = b.input("x", ["n", 3, 8, 8], np.float32)
    conv = b.op(
        "Conv", x, b.constant(rng.normal(size=(4, 3, 3, 3)).astype(np.float32)), name="conv"
    )
    ones = [b.constant(np.ones(4, np.float32)) for _ in range(4)]
    y = b.op("Relu", b.op("BatchNormalization", conv, *ones))
    y = b.op("ReduceMean", y, axes=[2, 3], keepdims=0, name="mean")
    w = b.constant(rng.normal(size=(4, 2)).astype(np.float32))
    y = b.op("Add", b.op("MatMul", y, w, name="mm"), b.constant(np.float32([1, 2])))
    return b.save(path, b.op("Softmax", y, out="y"), dtype=np.float32)


def test_float_net_in_normal_form(tmp_path: Path) -> None:
    path = float_net(tmp_path / "m.onnx")
    loaded = load(path, {})
    before = ir.to_proto(loaded.model).SerializeToString()
    result = normalise(loaded)
    ops = [n.op_type for n in result.model.graph]
    assert ops == ["Conv", "Relu", "GlobalAveragePool", "Reshape", "Gemm", "Softmax"]
    assert {"conv", "mean", "mm"} <= {n.name for n in result.model.graph}
    assert ir.to_proto(loaded.model).SerializeToString() == before
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    (a,), (b,) = (plain_session(m).run(None, {"x": x}) for m in (path, ir.to_proto(result.model)))
    assert np.abs(a - b).max() < 1e-5


def test_twice_is_once(tmp_path: Path) -> None:
    once = normalise(load(float_net(tmp_path / "m.onnx"), {}))
    twice = normalise(once)
    graphs = [[(n.op_type, n.name) for n in m.model.graph] for m in (once, twice)]
    assert graphs[0] == graphs[1]


def test_every_shape_is_known(tmp_path: Path) -> None:
    result = normalise(load(float_net(tmp_path / "m.onnx"), {}))
    for node in result.model.graph:
        for value in node.outputs:
            assert value.shape is not None
            assert value.shape.is_static()


def test_failing_pass_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(ir.passes.InPlacePass):
        def call(self, model: ir.Model) -> ir.passes.PassResult:
            raise KeyError("lost")

    monkeypatch.setattr(module, "PASSES", (Broken(),))
    with pytest.raises(CompileError, match=r"pass Broken failed .*lost"):
        normalise(load(float_net(tmp_path / "m.onnx"), {}))
