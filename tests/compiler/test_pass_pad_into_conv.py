"""PadIntoConv: padding moves into the convolution, bytes stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq import Builder, plain_session

from trivet.compiler.load import load
from trivet.compiler.map import map_units
from trivet.compiler.normalise import normalise
from trivet.compiler.units import ConvSpec, Graph


def padded(path: Path, by: list[int], case: str = "", **attrs: Any) -> Graph:
    b = Builder()
    x = b.dq(b.input("x", [1, 4, 6, 5]), 0.05, 3)
    value = [b.constant(np.float32(1 if case == "one" else 0))]
    y = b.op("Pad", x, b.constant(np.array(by)), *value, name="pad")
    outputs = []
    if case != "float":
        q = b.q(y, 0.07 if case == "scale" else 0.05, 3)
        outputs = [q] if case == "read" else []
        y = b.dq(q, 0.07 if case == "scale" else 0.05, 3)
    shape = (6, 4 + by[1] + by[5], 3, 3)
    w = b.constant(np.random.default_rng(3).integers(-127, 128, shape).astype(np.int8))
    conv = b.op("Conv", y, b.dq(w, 0.01), name="conv", **attrs)
    b.save(path, b.q(conv, 0.3, -2), *outputs)
    return map_units(normalise(load(path, {})))


@pytest.mark.parametrize("case", ["", "float"])
@pytest.mark.parametrize("attrs", [{}, {"pads": [1, 0, 0, 1]}, {"auto_pad": "VALID"}])
def test_pads_move_into_the_convolution(tmp_path: Path, case: str, attrs: dict[str, Any]) -> None:
    path = tmp_path / "m.onnx"
    graph = padded(path, [0, 0, 1, 2, 0, 0, 0, 1], case, **attrs)
    (unit,) = graph.units
    assert isinstance(unit.spec, ConvSpec)
    own = attrs.get("pads", [0, 0, 0, 0])
    assert unit.spec.pads == tuple(a + b for a, b in zip(own, (1, 2, 0, 1), strict=True))
    assert unit.name == "conv"
    x = np.random.default_rng(1).integers(-128, 128, (1, 4, 6, 5)).astype(np.int8)
    after = plain_session(onnx.load_from_string(_model(graph))).run(None, {"x": x})
    for left, right in zip(plain_session(path).run(None, {"x": x}), after, strict=True):
        assert np.array_equal(left, right)


@pytest.mark.parametrize("case", ["one", "scale", "read", "auto_pad", "channels"])
def test_left_alone(tmp_path: Path, case: str) -> None:
    pads = [0, 1, 0, 0, 0, 3, 0, 0] if case == "channels" else [0, 0, 1, 2, 0, 0, 0, 1]
    attrs = {"auto_pad": "SAME_UPPER"} if case == "auto_pad" else {}
    graph = padded(tmp_path / "m.onnx", pads, case, **attrs)
    assert [u.name for u in graph.units] == ["pad", "conv"]


def _model(graph: Graph) -> bytes:
    proto: bytes = ir.to_proto(graph.model).SerializeToString()
    return proto
