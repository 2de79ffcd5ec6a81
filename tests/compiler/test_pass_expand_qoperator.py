"""ExpandQOperator: QLinear operators written out, with the same integers but for ties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import golden_graph
import numpy as np
import pytest
from qdq import Builder, plain_session

from trivet.compiler.load import load
from trivet.compiler.map import map_units
from trivet.compiler.normalise import normalise
from trivet.compiler.units import ConvSpec

RNG = np.random.default_rng(8)
MICROSOFT: dict[str, Any] = {"domain": "com.microsoft"}


def quant(b: Builder, scale: Any, zero: Any) -> tuple[str, str]:
    return b.constant(np.float32(scale)), b.constant(np.asarray(zero, np.int8))


def make(b: Builder, case: str) -> str:
    shape = [1, 4] if case in ("QLinearMatMul", "QGemm") else [1, 4, 6, 5]
    x, xq, yq = b.input("x", shape), quant(b, 0.0517, 3), quant(b, 0.4037, -7)
    if case == "QLinearConv":
        scales = RNG.uniform(0.01, 0.02, 3).astype(np.float32)
        w = b.constant(RNG.integers(-127, 128, (3, 4, 3, 3)).astype(np.int8))
        bias = b.constant(RNG.integers(-999, 999, 3).astype(np.int32))
        wq = quant(b, scales, np.zeros(3))
        return b.op(case, x, *xq, w, *wq, *yq, bias, name="n", pads=[1, 1, 1, 1])
    if case in ("QLinearMatMul", "QGemm"):
        w = b.constant(RNG.integers(-127, 128, (4, 3)).astype(np.int8))
        wq = quant(b, 0.01, 0)
        if case == "QLinearMatMul":
            return b.op(case, x, *xq, w, *wq, *yq, name="n")
        bias = b.constant(RNG.integers(-999, 999, 3).astype(np.int32))
        return b.op(case, x, *xq, w, *wq, bias, *yq, name="n", **MICROSOFT)
    if case == "QLinearAdd":
        other = b.input("x2", shape)
        return b.op(case, x, *xq, other, *quant(b, 0.0713, -2), *yq, name="n", **MICROSOFT)
    if case == "QLinearConcat":
        parts = (x, *xq, b.input("x2", shape), *quant(b, 0.4037, -7))
        return b.op(case, *yq, *parts, name="n", axis=1, **MICROSOFT)
    extra: dict[str, Any] = {"channels_last": 0} if "Pool" in case else {}
    if case == "QLinearAveragePool":
        extra |= {"kernel_shape": [3, 2], "strides": [2, 2]}
    return b.op(case, x, *xq, *yq, name="n", **MICROSOFT, **extra)


KINDS = {
    "QLinearConv": "conv",
    "QLinearMatMul": "conv",
    "QGemm": "conv",
    "QLinearAdd": "add",
    "QLinearConcat": "concat",
    "QLinearGlobalAveragePool": "pool",
    "QLinearAveragePool": "pool",
    "QLinearSigmoid": "table",
    "QLinearLeakyRelu": "table",
}


@pytest.mark.parametrize("case", KINDS)
def test_operator_becomes_a_unit_of_its_name(tmp_path: Path, case: str) -> None:
    b = Builder()
    path = b.save(tmp_path / "m.onnx", make(b, case))
    graph = map_units(normalise(load(path, {})))
    (unit,) = graph.units
    assert (unit.kind, unit.name, unit.refusals) == (KINDS[case], "n", {})
    session = plain_session(path)
    for _ in range(5):
        feeds = {
            n: RNG.integers(-128, 128, graph.tensors[n].shape).astype(np.int8) for n in graph.inputs
        }
        (expected,) = session.run(None, feeds)
        found = golden_graph.run(graph, feeds)[graph.outputs[0]]
        gap = np.abs(found.astype(int) - expected.astype(int))
        # The contract is QLinearConv's and QLinearMatMul's own arithmetic: no byte differs.
        limit = 0 if isinstance(unit.spec, ConvSpec) or unit.kind == "pool" else 1
        assert gap.max() <= limit
        assert (gap > 0).mean() < 0.02


def test_left_alone(tmp_path: Path) -> None:
    b = Builder()
    x = b.input("x", [1, 6, 5, 4])
    y = b.op("QLinearGlobalAveragePool", x, *quant(b, 0.1, 0), *quant(b, 0.1, 0), name="n",
             channels_last=1, **MICROSOFT)  # fmt: skip
    graph = map_units(normalise(load(b.save(tmp_path / "m.onnx", y), {})))
    assert [u.kind for u in graph.units] == ["other"]
    assert "com.microsoft.QLinearGlobalAveragePool" in graph.units[0].refusals["fpga"]
