"""FoldBatchNorm: the same outputs without BatchNormalization, or nothing."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq import Builder, plain_session

from trivet.compiler.passes.fold_batch_norm import FoldBatchNorm

RNG = np.random.default_rng(4)


def model(case: str) -> onnx.ModelProto:
    b = Builder()
    x = b.input("x", [1, 3, 6, 6], np.float32)
    w = b.constant(RNG.normal(size=(5, 3, 3, 3)).astype(np.float32))
    operands = [x, w]
    if case != "no bias":
        operands.append(b.constant(RNG.normal(size=5).astype(np.float32)))
    y = b.op("Conv", *operands, name="conv")
    if case == "through relu":
        y = b.op("Relu", y)
    numbers = [RNG.normal(size=5).astype(np.float32) for _ in range(3)]
    numbers.append(RNG.uniform(0.5, 2, 5).astype(np.float32))
    out = b.op("BatchNormalization", y, *(b.constant(n) for n in numbers), epsilon=1e-3, out="y")
    extra = [b.op("Neg", y)] if case == "read twice" else []
    return b.model(out, *extra, dtype=np.float32)


@pytest.mark.parametrize("case", ["bias", "no bias"])
def test_folded(case: str) -> None:
    proto = model(case)
    result = ir.from_proto(proto)
    assert FoldBatchNorm()(result).modified
    assert [n.name for n in result.graph] == ["conv"]
    assert [v.name for v in result.graph.outputs] == ["y"]
    feeds = {"x": RNG.normal(size=(1, 3, 6, 6)).astype(np.float32)}
    (a,), (b,) = (plain_session(m).run(None, feeds) for m in (proto, ir.to_proto(result)))
    assert np.abs(a - b).max() < 1e-4


@pytest.mark.parametrize("case", ["through relu", "read twice"])
def test_left_alone(case: str) -> None:
    result = ir.from_proto(model(case))
    assert not FoldBatchNorm()(result).modified
    assert "BatchNormalization" in [n.op_type for n in result.graph]
