"""InferShapes: open shapes are closed, by onnx or, for its own operators, by onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from qdq import Builder

from trivet.compiler.passes.shapes import InferShapes


def shapes(model: ir.Model) -> list[list[int] | None]:
    found = []
    for node in model.graph:
        shape = node.outputs[0].shape
        static = shape is not None and shape.is_static()
        found.append(list(shape.numpy()) if shape is not None and static else None)
    return found


def test_symbol_of_an_output_gives_way() -> None:
    b = Builder()
    model = ir.from_proto(b.model(b.op("Relu", b.input("x", [1, 4], np.float32)), dtype=np.float32))
    model.graph.outputs[0].shape = ir.Shape(["other", 4])
    InferShapes()(model)
    assert shapes(model) == [[1, 4]]


def test_operator_of_onnxruntime() -> None:
    b = Builder()
    x = b.input("x", [1, 4, 6, 6], np.int8)
    s, z = b.constant(np.float32(0.1)), b.constant(np.int8(0))
    y = b.op("QLinearAveragePool", x, s, z, s, z, domain="com.microsoft", kernel_shape=[3, 3])
    model = ir.from_proto(b.model(b.op("DequantizeLinear", y, s, z), dtype=np.float32))
    model.graph.outputs[0].shape = None
    InferShapes()(model)
    assert shapes(model) == [[1, 4, 4, 4], [1, 4, 4, 4]]


def test_unknown_operator_stays_open() -> None:
    b = Builder()
    x = b.input("x", [1, 4], np.float32)
    model = ir.from_proto(b.model(b.op("Secret", x, domain="com.microsoft"), dtype=np.float32))
    model.graph.outputs[0].shape = None
    InferShapes()(model)
    assert shapes(model) == [None]


def test_shape_that_depends_on_data_stays_open() -> None:
    b = Builder()
    x = b.input("x", [4], np.float32)
    model = ir.from_proto(b.model(b.op("NonZero", x), dtype=np.int64))
    InferShapes()(model)
    assert shapes(model) == [None]
