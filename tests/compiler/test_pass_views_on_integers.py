"""ViewsOnIntegers: views move int8 bytes, requantising to itself disappears, bytes stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq import Builder, plain_session

from trivet.compiler.passes.shapes import InferShapes
from trivet.compiler.passes.views_on_integers import ViewsOnIntegers


def apply(proto: onnx.ModelProto) -> tuple[ir.Model, bool]:
    result = ir.from_proto(proto)
    InferShapes()(result)
    modified = ViewsOnIntegers()(result).modified
    InferShapes()(result)
    return result, modified


def same(proto: onnx.ModelProto, result: ir.Model, dtype: type = np.int8) -> None:
    rng = np.random.default_rng(7)
    x = rng.integers(-128, 128, (2, 3, 4)).astype(np.int8) if dtype is np.int8 else (
        rng.normal(size=(2, 3, 4)).astype(dtype)
    )  # fmt: skip
    (a,), (b,) = (plain_session(m).run(None, {"x": x}) for m in (proto, ir.to_proto(result)))
    assert np.array_equal(a, b)
    assert a.dtype == b.dtype


def test_quantised_views_shrink_to_the_view() -> None:
    b = Builder()
    x = b.dq(b.input("x", [2, 3, 4]), 0.1, 5)
    once = b.q(b.op("Transpose", x, perm=[0, 2, 1], name="t"), 0.1, 5, out="t_q")
    twice = b.q(b.op("Flatten", b.dq(once, 0.1, 5), name="f"), 0.1, 5, out="y")
    proto = b.model(twice)
    result, modified = apply(proto)
    assert modified
    assert [(n.op_type, n.name) for n in result.graph] == [("Transpose", "t"), ("Flatten", "f")]
    assert [n.outputs[0].name for n in result.graph] == ["t_q", "y"]
    same(proto, result)


def test_view_between_a_float_and_its_quantiser_sinks() -> None:
    b = Builder()
    b.input("x", [2, 3, 4], np.float32)
    proto = b.model(b.q(b.op("Flatten", "x"), 0.1, 5, out="y"))
    result, modified = apply(proto)
    assert modified
    assert [n.op_type for n in result.graph] == ["QuantizeLinear", "Flatten"]
    same(proto, result, np.float32)


def test_float_reader_behind_the_view_reads_floats() -> None:
    b = Builder()
    x = b.dq(b.input("x", [2, 3, 4]), 0.1, 5)
    proto = b.model(b.op("Relu", b.op("Flatten", x)), dtype=np.float32)
    result, modified = apply(proto)
    assert modified
    assert [n.op_type for n in result.graph] == ["Flatten", "DequantizeLinear", "Relu"]
    same(proto, result)


@pytest.mark.parametrize("case", ["other scale", "float output", "per channel"])
def test_left_alone(case: str) -> None:
    b = Builder()
    scale = np.full(3, 0.1) if case == "per channel" else 0.1
    x = b.dq(b.input("x", [2, 3, 4]), scale)
    if case == "other scale":
        proto = b.model(b.q(b.op("Relu", x), 0.2))
    elif case == "float output":
        proto = b.model(b.op("Flatten", x), dtype=np.float32)
    else:
        proto = b.model(b.op("Relu", b.op("Flatten", x)), dtype=np.float32)
    before = [n.op_type for n in ir.from_proto(proto).graph]
    result, modified = apply(proto)
    assert not modified
    assert [n.op_type for n in result.graph] == before
