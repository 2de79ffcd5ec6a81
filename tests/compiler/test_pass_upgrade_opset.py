"""UpgradeOpset: old models are converted, new ones are not touched."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from qdq import Builder, plain_session

from trivet.compiler.errors import CompileError
from trivet.compiler.passes.upgrade_opset import UpgradeOpset


def test_old_model_is_converted() -> None:
    b = Builder(9)
    x = b.input("x", [1, 3, 4, 4], np.float32)
    proto = b.model(b.op("Clip", x, name="clip", min=-0.5, max=0.5), dtype=np.float32)
    result = UpgradeOpset()(ir.from_proto(proto))
    assert result.modified
    assert result.model.opset_imports[""] == 17
    feeds = {"x": np.linspace(-1, 1, 48, dtype=np.float32).reshape(1, 3, 4, 4)}
    (a,), (c,) = (plain_session(m).run(None, feeds) for m in (proto, ir.to_proto(result.model)))
    assert np.array_equal(a, c)


def test_new_model_is_left_alone() -> None:
    b = Builder(13)
    proto = b.model(b.op("Relu", b.input("x", [4], np.float32)), dtype=np.float32)
    result = UpgradeOpset()(ir.from_proto(proto))
    assert not result.modified
    assert result.model.opset_imports[""] == 13


def test_what_the_converter_does_not_know() -> None:
    b = Builder(8)
    x = b.input("x", [1, 1, 4, 4], np.float32)
    proto = b.model(
        b.op("Upsample", x, scales=[1.0, 1.0, 2.0, 2.0], mode="nearest"), dtype=np.float32
    )
    model = ir.from_proto(proto)
    for node in model.graph:
        node.op_type = "NoSuchOperator"
    with pytest.raises(CompileError, match=r"opset 8 is below 13.*export it with opset 17"):
        UpgradeOpset()(model)
