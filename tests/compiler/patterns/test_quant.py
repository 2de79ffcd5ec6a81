"""Bounds of Relu and Clip before a QuantizeLinear, against onnxruntime on many floats."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from qdq import Builder, plain_session

from trivet.compiler.patterns.quant import Refused, quant_of, tail


@pytest.mark.parametrize("seed", range(20))
def test_clamping_bytes_equals_clamping_floats(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scale = np.float32(10 ** rng.uniform(-4, 1))
    dtype = np.int8 if seed % 2 else np.uint8
    zero = int(rng.integers(-128, 128)) + (0 if seed % 2 else 128)
    low, high = np.sort(rng.uniform(-150, 150, 2).astype(np.float32) * scale)
    if seed % 5 == 4:
        low, high = high, low  # ONNX: the upper limit wins
    b = Builder()
    x = b.input("x", [4096], np.float32)
    value = b.op("Clip", b.op("Relu", b.op("Neg", x)), b.constant(low), b.constant(high))
    proto = b.model(b.q(value, float(scale), zero, dtype, out="y"), dtype=dtype)
    end = tail(ir.from_proto(proto).graph.node(0).outputs[0], "Neg")
    # Floats over the whole range, ties of the quantiser and the limits themselves.
    data = rng.uniform(-300, 300, 4096).astype(np.float32) * scale
    data[:1024] = (rng.integers(-300, 300, 1024) + 0.5).astype(np.float32) * scale
    data[1024:1026] = -low, -high
    (found,) = plain_session(proto).run(None, {"x": data})
    info = np.iinfo(dtype)
    levels = np.clip(np.rint(-data / scale) + zero, info.min, info.max)
    assert np.array_equal(found, np.clip(levels, end.lo, end.hi).astype(dtype))


@pytest.mark.parametrize(
    ("scale", "zero", "text"),
    [
        (np.float32(0), np.int8(0), "must be above 0"),
        (np.float32(np.inf), np.int8(0), "must be above 0"),
        (np.ones(4, np.float32), np.zeros(4, np.int8), "a scale for each channel"),
        (np.float32(1), np.int16(0), "int16 activations"),
    ],
)
def test_parameters_the_engine_cannot_take(scale: np.ndarray, zero: np.ndarray, text: str) -> None:
    b = Builder(21)
    x = b.input("x", [2, 4], np.asarray(zero).dtype)
    y = b.op("DequantizeLinear", x, b.constant(scale), b.constant(zero))
    model = ir.from_proto(b.model(y, dtype=np.float32))
    with pytest.raises(Refused, match=text):
        quant_of(model.graph.node(0))
