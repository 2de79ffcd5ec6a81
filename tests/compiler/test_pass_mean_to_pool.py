"""MeanToPool: a mean over height and width becomes a global pool, other means stay."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from qdq import Builder, plain_session

from trivet.compiler.passes.mean_to_pool import MeanToPool
from trivet.compiler.passes.shapes import InferShapes


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[2, 3], [-1, -2], [1, 2], [2]])
def test_mean(keepdims: int, axes: list[int]) -> None:
    b = Builder()
    x = b.input("x", [1, 3, 4, 5], np.float32)
    proto = b.model(
        b.op("ReduceMean", x, axes=axes, keepdims=keepdims, name="mean"), dtype=np.float32
    )
    result = ir.from_proto(proto)
    InferShapes()(result)
    modified = MeanToPool()(result).modified
    image = sorted(a % 4 for a in axes) == [2, 3]
    assert modified == image
    if image:
        assert [n.op_type for n in result.graph] == ["GlobalAveragePool", "Reshape"][: 2 - keepdims]
        assert next(iter(result.graph)).name == "mean"
    feeds = {"x": np.random.default_rng(6).normal(size=(1, 3, 4, 5)).astype(np.float32)}
    (a,), (c,) = (plain_session(m).run(None, feeds) for m in (proto, ir.to_proto(result)))
    assert a.shape == c.shape
    assert np.abs(a - c).max() < 1e-6
