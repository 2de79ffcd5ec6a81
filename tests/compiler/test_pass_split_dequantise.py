"""SplitDequantise: one DequantizeLinear for each reader."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from qdq import Builder, plain_session

from trivet.compiler.passes.split_dequantise import SplitDequantise


def test_each_use_has_its_own() -> None:
    b = Builder()
    x = b.dq(b.input("x", [1, 4]), 0.1, 3, name="dq", out="f")
    y = b.op("Mul", b.op("Neg", x), x)
    proto = b.model(x, b.op("Add", x, y), dtype=np.float32)
    result = ir.from_proto(proto)
    assert SplitDequantise()(result).modified
    for node in result.graph:
        if node.op_type == "DequantizeLinear":
            value = node.outputs[0]
            assert len(list(value.uses())) + value.is_graph_output() == 1
    names = [n.name for n in result.graph if n.op_type == "DequantizeLinear"]
    assert sorted(names) == ["dq", "dq_1", "dq_2", "dq_3"]
    assert result.graph.outputs[0].name == "f"
    feeds = {"x": np.int8([[1, -128, 127, 0]])}
    for a, c in zip(*(plain_session(m).run(None, feeds) for m in (proto, ir.to_proto(result))),
                    strict=True):  # fmt: skip
        assert np.array_equal(a, c)
    assert not SplitDequantise()(result).modified
