"""FoldConstants: what is known becomes an initializer, quantised weights stay quantised."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from qdq import Builder, plain_session

from trivet.compiler.passes.fold_constants import FoldConstants
from trivet.compiler.passes.shapes import InferShapes


def folded(model: onnx.ModelProto) -> ir.Model:
    result = ir.from_proto(model)
    InferShapes()(result)
    FoldConstants()(result)
    return result


def ops(model: ir.Model) -> list[str]:
    return [n.op_type for n in model.graph]


def same(model: onnx.ModelProto, other: ir.Model, feeds: dict[str, Any]) -> None:
    (a,), (b,) = (plain_session(m).run(None, feeds) for m in (model, ir.to_proto(other)))
    assert np.array_equal(a, b)


def test_shape_arithmetic_disappears() -> None:
    b = Builder()
    x = b.input("x", [2, 3, 4], np.float32)
    first = b.op("Gather", b.op("Shape", x), b.constant(np.int64([0])), axis=0)
    target = b.op("Concat", first, b.op("Constant", value_ints=[-1]), axis=0)
    model = b.model(b.op("Identity", b.op("Reshape", x, target)), dtype=np.float32)
    result = folded(model)
    assert ops(result) == ["Reshape"]
    same(model, result, {"x": np.arange(24, dtype=np.float32).reshape(2, 3, 4)})


def test_float_weights_that_are_quantised_in_the_graph_become_integers() -> None:
    b = Builder()
    x = b.input("x", [1, 4], np.float32)
    w = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    model = b.model(b.op("MatMul", x, b.dq(b.q(b.constant(w), 0.02), 0.02)), dtype=np.float32)
    result = folded(model)
    assert ops(result) == ["DequantizeLinear", "MatMul"]
    same(model, result, {"x": np.ones((1, 4), np.float32)})


def test_left_alone() -> None:
    """Weights' DequantizeLinear, random numbers, and what makes a graph output."""
    b = Builder()
    x = b.input("x", [4], np.float32)
    weights = b.dq(b.constant(np.int8([1, 2, 3, 4])), 0.5)
    noise = b.op("RandomNormalLike", b.constant(np.zeros(4, np.float32)))
    y = b.op("Add", b.op("Add", x, weights), noise)
    z = b.op("Neg", b.constant(np.ones(4, np.float32)))
    result = folded(b.model(y, z, dtype=np.float32))
    assert sorted(ops(result)) == ["Add", "Add", "DequantizeLinear", "Neg", "RandomNormalLike"]
