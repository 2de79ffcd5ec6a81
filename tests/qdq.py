"""Small ONNX models for tests: a builder for QDQ graphs and onnxruntime without optimisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


class Builder:
    """Collects nodes and constants; every method returns the name of the value it makes."""

    def __init__(self, opset: int = OPSET) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.opset = opset

    def input(self, name: str, shape: list[Any], dtype: Any = np.int8) -> str:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, array: Any, name: str | None = None) -> str:
        name = name or f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def op(
        self, op_type: str, *inputs: str, out: str | None = None, name: str = "", **attrs: Any
    ) -> str:
        out = out or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [out], name=name, **attrs))
        return out

    def dq(self, x: str, scale: Any, zero: Any = 0, dtype: Any = np.int8, **attrs: Any) -> str:
        s, z = np.asarray(scale, np.float32), np.asarray(zero, dtype)
        if s.ndim and not z.ndim:
            z = np.full(s.shape, z, dtype)
        return self.op("DequantizeLinear", x, self.constant(s), self.constant(z), **attrs)

    def q(
        self, x: str, scale: float, zero: int = 0, dtype: Any = np.int8, out: str | None = None
    ) -> str:
        s, z = self.constant(np.float32(scale)), self.constant(np.array(zero, dtype))
        return self.op("QuantizeLinear", x, s, z, out=out)

    def model(self, *outputs: str, dtype: Any = np.int8) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        ends = [helper.make_tensor_value_info(o, kind, None) for o in outputs]
        graph = helper.make_graph(self.nodes, "test", self.inputs, ends, self.constants)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
        # The checker wants outputs with shapes.
        inferred = onnx.shape_inference.infer_shapes(proto)
        for value in inferred.graph.output:
            if not value.type.tensor_type.HasField("shape"):
                value.type.tensor_type.shape.Clear()
        return inferred

    def save(self, path: Path, *outputs: str, dtype: Any = np.int8) -> Path:
        onnx.save(self.model(*outputs, dtype=dtype), path)
        return path


def plain_session(model: onnx.ModelProto | Path) -> onnxruntime.InferenceSession:
    """A session that runs the graph as written."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def conv_model(rng: np.random.Generator, **attrs: Any) -> tuple[Builder, str]:
    """int8 [1, 4, 9, 7] -> Conv 3x3 to 6 channels with bias; returns the float result's name."""
    b = Builder()
    groups = attrs.get("group", 1)
    out_channels = 4 if groups == 4 else 6
    x = b.dq(b.input("x", [1, 4, 9, 7]), 0.05, 3)
    scales = rng.uniform(0.005, 0.02, out_channels).astype(np.float32)
    shape = (out_channels, 4 // groups, 3, 3)
    weights = rng.integers(-127, 128, shape).astype(np.int8)
    w = b.dq(b.constant(weights), scales, axis=0)
    bias_scale = np.float32(0.05) * scales
    bias = b.dq(b.constant(rng.integers(-4000, 4000, out_channels).astype(np.int32)), bias_scale,
                dtype=np.int32, axis=0)  # fmt: skip
    return b, b.op("Conv", x, w, bias, name="conv", kernel_shape=[3, 3], **attrs)


__all__ = ["Builder", "TensorProto", "conv_model", "plain_session"]
