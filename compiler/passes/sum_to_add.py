"""Sum of two tensors, as older exporters write a residual connection, is an Add."""

from __future__ import annotations

import onnx_ir as ir

from .graph import is_op, shape_of

__all__ = ["SumToAdd"]


class SumToAdd(ir.passes.InPlacePass):
    """Turn ``Sum(a, b)`` of one shape into ``Add(a, b)``.

    Requires: shapes inferred. Ensures: the same outputs; the Add is the same node, renamed in type
    only. Left alone: a Sum of one or of more than two tensors, and one that broadcasts.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in model.graph:
            if not is_op(node, "Sum") or len(node.inputs) != 2:
                continue
            shapes = [shape_of(v) for v in node.inputs if v is not None]
            if len(shapes) == 2 and shapes[0] is not None and shapes[0] == shapes[1]:
                node.op_type = "Add"
                modified = True
        return ir.passes.PassResult(model, modified)
