"""FuseMatMulBias: MatMul and Add become one Gemm of the MatMul's name, or nothing."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq import Builder, plain_session

from trivet.compiler.passes.fuse_matmul_bias import FuseMatMulBias
from trivet.compiler.passes.shapes import InferShapes

RNG = np.random.default_rng(5)


def model(case: str) -> onnx.ModelProto:
    b = Builder()
    shape = [2, 3, 4] if case == "three dimensions" else [3, 4]
    x = b.input("x", shape, np.float32)
    product = b.op("MatMul", x, b.constant(RNG.normal(size=(4, 5)).astype(np.float32)), name="mm")
    bias_shape = {"row of one": (1, 5), "matrix": (3, 5)}.get(case, (5,))
    bias = b.constant(RNG.normal(size=bias_shape).astype(np.float32))
    order = (bias, product) if case == "bias first" else (product, bias)
    y = b.op("Add", *order, out="y")
    if case == "inner":
        return b.model(b.op("Relu", y), dtype=np.float32)
    extra = [b.op("Neg", product)] if case == "read twice" else []
    return b.model(y, *extra, dtype=np.float32)


def apply(proto: onnx.ModelProto) -> tuple[ir.Model, bool]:
    result = ir.from_proto(proto)
    InferShapes()(result)
    return result, FuseMatMulBias()(result).modified


@pytest.mark.parametrize("case", ["bias", "bias first", "row of one", "inner"])
def test_fused(case: str) -> None:
    proto = model(case)
    result, modified = apply(proto)
    assert modified
    first = next(iter(result.graph))
    assert (first.op_type, first.name, first.outputs[0].name) == ("Gemm", "mm", "y")
    feeds = {"x": RNG.normal(size=(3, 4)).astype(np.float32)}
    (a,), (b,) = (plain_session(m).run(None, feeds) for m in (proto, ir.to_proto(result)))
    assert np.abs(a - b).max() < 1e-5


@pytest.mark.parametrize("case", ["three dimensions", "matrix", "read twice"])
def test_left_alone(case: str) -> None:
    result, modified = apply(model(case))
    assert not modified
    assert "MatMul" in [n.op_type for n in result.graph]
