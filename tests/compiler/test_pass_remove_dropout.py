"""RemoveDropout: inference only."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from qdq import Builder, plain_session

from trivet.compiler.passes.remove_dropout import RemoveDropout


@pytest.mark.parametrize("last", [False, True])
def test_removed(last: bool) -> None:
    b = Builder()
    y = b.op("Dropout", b.op("Relu", b.input("x", [2, 3], np.float32)), out="y")
    proto = b.model(y if last else b.op("Neg", y, out="z"), dtype=np.float32)
    result = ir.from_proto(proto)
    assert RemoveDropout()(result).modified
    assert [n.op_type for n in result.graph] == ["Relu"] + ["Neg"] * (not last)
    assert [v.name for v in result.graph.outputs] == ["y" if last else "z"]
    feeds = {"x": np.float32([[-1, 0, 1], [2, -3, 4]])}
    (a,), (c,) = (plain_session(m).run(None, feeds) for m in (proto, ir.to_proto(result)))
    assert np.array_equal(a, c)


@pytest.mark.parametrize("case", ["training", "mask", "nothing else"])
def test_left_alone(case: str) -> None:
    b = Builder()
    x = b.input("x", [2, 3], np.float32)
    operands = [x if case == "nothing else" else b.op("Relu", x)]
    if case == "training":
        operands += [b.constant(np.float32(0.5)), b.constant(np.array(True))]
    proto = b.model(b.op("Dropout", *operands, out="y"), dtype=np.float32)
    if case == "mask":
        proto.graph.node[-1].output.append("mask")
        proto.graph.output.add().name = "mask"
    result = ir.from_proto(proto)
    assert not RemoveDropout()(result).modified
