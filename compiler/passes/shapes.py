"""Shapes and dtypes of all values, from those of the inputs."""

from __future__ import annotations

import onnx_ir as ir
import onnxruntime as ort
from onnx_ir.passes.common import ShapeInferencePass

__all__ = ["InferShapes"]

# Above this size the model is not handed to onnxruntime for a second opinion.
_SECOND_OPINION_BYTES = 1 << 28


class InferShapes(ir.passes.InPlacePass):
    """Infer every value's dtype and shape again from the graph's inputs.

    onnx infers its own operators; where values of other domains stay open, onnxruntime is asked,
    which knows its own. Requires: static input shapes. Ensures: no symbol of the file is left in a
    shape that inference can work out. Left alone: values whose shape depends on data.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        for node in model.graph:
            for value in node.outputs:
                # A file may state an output's batch under another symbol than the input's.
                if value.shape is not None and value.shape.is_dynamic():
                    value.shape = (
                        ir.Shape([None] * value.shape.rank()) if value.is_graph_output() else None
                    )
        infer = ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)
        modified = infer(model).modified
        if any(node.domain not in ("", "ai.onnx") for node in model.graph) and _ask(model):
            modified = True
            infer(model)
        return ir.passes.PassResult(model, modified)


def _ask(model: ir.Model) -> bool:
    """Fill in open shapes from a session whose outputs are the open values."""
    unknown = {
        str(value.name): value
        for node in model.graph
        for value in node.outputs
        if value.name and (value.shape is None or value.shape.is_dynamic() or value.dtype is None)
    }
    tensors = (v.const_value for v in model.graph.initializers.values())
    size = sum(t.nbytes for t in tensors if t is not None)
    if not unknown or size > _SECOND_OPINION_BYTES:
        return False
    copy = model.clone()
    present = {v.name for v in copy.graph.outputs}
    for node in copy.graph:
        copy.graph.outputs.extend(
            v for v in node.outputs if v.name in unknown and v.name not in present
        )
    ir.external_data.load_to_model(copy)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(
            ir.to_proto(copy).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # an operator that onnxruntime does not know either: the shapes stay open
        return False
    found = False
    for port in session.get_outputs():
        value = unknown.get(port.name)
        if value is None or not all(isinstance(d, int) for d in port.shape):
            continue
        kind = _DTYPES.get(port.type)
        if kind is None:
            continue
        value.shape, value.type = ir.Shape(port.shape), ir.TensorType(kind)
        found = True
    return found


_DTYPES = {
    "tensor(float)": ir.DataType.FLOAT,
    "tensor(double)": ir.DataType.DOUBLE,
    "tensor(float16)": ir.DataType.FLOAT16,
    "tensor(int8)": ir.DataType.INT8,
    "tensor(uint8)": ir.DataType.UINT8,
    "tensor(int16)": ir.DataType.INT16,
    "tensor(uint16)": ir.DataType.UINT16,
    "tensor(int32)": ir.DataType.INT32,
    "tensor(int64)": ir.DataType.INT64,
    "tensor(bool)": ir.DataType.BOOL,
}
