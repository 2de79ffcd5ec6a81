"""Nearest Resize of an int8 image by whole factors, as :class:`ResizeSpec`."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from trivet.compiler.passes.graph import attribute, constant, shape_of
from trivet.compiler.units import Array, Quant, ResizeSpec

from .quant import Match, Refused, source, tail

__all__ = ["match_resize"]


def match_resize(node: ir.Node, quant: Quant | None = None) -> Match:
    """ResizeSpec of a Resize between int8 tensors; Refused says why there is none.

    ``quant``: parameters of the input of a Resize that works on int8 directly.

    The many coordinate modes are not reasoned about: onnxruntime resizes one row and one column of
    their own indices, which must come out repeated.
    """
    operand = node.inputs[0]
    direct = operand is not None and operand.dtype in (ir.DataType.INT8, ir.DataType.UINT8)
    x = None if direct else source(operand)
    tensor = operand if x is None else x.tensor
    quant = quant if x is None else x.quant
    if tensor is None or quant is None:
        raise Refused(f"the scale of '{tensor.name if tensor is not None else ''}' is unknown")
    mode = attribute(node, "mode", "nearest")
    if mode != "nearest":
        raise Refused(f"its mode is {mode}, the engine copies the nearest pixel only")
    before, after = shape_of(tensor), shape_of(node.outputs[0])
    if before is None or after is None or len(before) != 4:
        raise Refused(f"it turns shape {before} into {after}, the engine takes static images")
    sizes = list(zip(before, after, strict=True))
    if before[:2] != after[:2] or any(b % a for a, b in sizes):
        raise Refused(
            f"it turns {list(before)} into {list(after)}, the engine repeats rows and columns "
            "a whole number of times"
        )
    if any(v is not None and constant(v) is None for v in node.inputs[1:]):
        raise Refused("its sizes are computed at run time")
    factors = (after[2] // before[2], after[3] // before[3])
    for axis in (2, 3):
        shape = [1] * 4
        shape[axis] = before[axis]
        index = np.arange(before[axis], dtype=np.float32).reshape(shape)
        whole = np.broadcast_to(index, before)
        if not np.array_equal(
            _resized(node, whole), whole.repeat(factors[0], 2).repeat(factors[1], 3)
        ):
            raise Refused("its coordinates repeat no pixel a whole number of times")
    spec = ResizeSpec(quant, quant, factors)
    if x is None:
        return Match(node, (node,), "resize", (tensor,), node.outputs[0], spec)
    end = tail(node.outputs[0], node.op_type)
    if end.quant != quant or (end.lo, end.hi) != (quant.lo, quant.hi):
        raise Refused(
            f"it changes the scale from {quant.scale} to {end.quant.scale} or the zero point "
            f"from {quant.zero_point} to {end.quant.zero_point}, or clamps; copies keep bytes"
        )
    return Match(node, (x.node, node, *end.nodes), "resize", (tensor,), end.tensor, spec)


def _resized(node: ir.Node, image: Array) -> Array:
    """The node itself, run on a float image by onnxruntime."""
    entry = ir.Value(name="x", shape=ir.Shape(image.shape), type=ir.TensorType(ir.DataType.FLOAT))
    parent = node.graph
    assert isinstance(parent, ir.Graph)
    graph = ir.Graph([entry], [], nodes=[], opset_imports=dict(parent.opset_imports), name="resize")
    inputs: list[ir.Value | None] = [entry]
    for value in node.inputs[1:]:
        copy = None
        if value is not None:
            copy = ir.Value(name=value.name, shape=value.shape, type=value.type)
            copy.const_value = value.const_value
            graph.register_initializer(copy)
        inputs.append(copy)
    clone = ir.Node(
        node.domain, node.op_type, inputs, list(node.attributes.values()), name="resize"
    )
    (result,) = clone.outputs
    result.name, result.type = "y", ir.TensorType(ir.DataType.FLOAT)
    graph.append(clone)
    graph.outputs.append(result)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    proto = ir.to_proto(ir.Model(graph, ir_version=10))
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: Array = session.run(None, {"x": np.ascontiguousarray(image)})[0]
    return found
