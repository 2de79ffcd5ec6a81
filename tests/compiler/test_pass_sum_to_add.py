"""SumToAdd: only a Sum of two tensors of one shape."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from qdq import Builder, plain_session

from trivet.compiler.passes.shapes import InferShapes
from trivet.compiler.passes.sum_to_add import SumToAdd


@pytest.mark.parametrize(
    ("shapes", "op_type"),
    [([(2, 3)] * 2, "Add"), ([(2, 3)], "Sum"), ([(2, 3)] * 3, "Sum"), ([(2, 3), (1, 3)], "Sum")],
)
def test_sum(shapes: list[tuple[int, ...]], op_type: str) -> None:
    b = Builder()
    names = [b.input(f"x{k}", list(shape), np.float32) for k, shape in enumerate(shapes)]
    proto = b.model(b.op("Sum", *names, name="sum"), dtype=np.float32)
    result = ir.from_proto(proto)
    InferShapes()(result)
    assert SumToAdd()(result).modified == (op_type == "Add")
    assert [(n.op_type, n.name) for n in result.graph] == [(op_type, "sum")]
    feeds = {
        n: np.full(s, k + 0.5, np.float32)
        for k, (n, s) in enumerate(zip(names, shapes, strict=True))
    }
    (a,), (c,) = (plain_session(m).run(None, feeds) for m in (proto, ir.to_proto(result)))
    assert np.array_equal(a, c)
