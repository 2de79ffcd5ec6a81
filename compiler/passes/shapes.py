"""Shapes and dtypes of all values, from those of the inputs."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

__all__ = ["InferShapes"]


class InferShapes(ir.passes.InPlacePass):
    """Infer every value's dtype and shape again from the graph's inputs.

    Requires: static input shapes. Ensures: no symbol of the file is left in a shape that
    inference can work out. Left alone: values whose shape depends on data.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        for node in model.graph:
            for value in node.outputs:
                # A file may state an output's batch under another symbol than the input's.
                if value.shape is not None and value.shape.is_dynamic():
                    value.shape = (
                        ir.Shape([None] * value.shape.rank()) if value.is_graph_output() else None
                    )
        result = ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
        return ir.passes.PassResult(model, result.modified)
