"""Dropout does nothing at inference."""

from __future__ import annotations

import onnx_ir as ir

from .graph import bypass, constant, is_op

__all__ = ["RemoveDropout"]


class RemoveDropout(ir.passes.InPlacePass):
    """Remove Dropout nodes: outside training they hand their input on.

    Requires: nothing. Ensures: the same outputs. Left alone: a Dropout in training mode or whose
    mask is used, and one between a graph input or initializer and a graph output.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in list(model.graph):
            if is_op(node, "Dropout"):
                modified |= self._remove(model.graph, node)
        return ir.passes.PassResult(model, modified)

    def _remove(self, graph: ir.Graph, node: ir.Node) -> bool:
        x, y = node.inputs[0], node.outputs[0]
        if x is None or any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
            return False
        training = node.inputs[2] if len(node.inputs) > 2 else None
        if training is not None:
            mode = constant(training)
            if mode is None or mode.any():
                return False
        if y.is_graph_output() and (x.producer() is None or x.is_graph_output()):
            return False
        bypass(graph, y, x)
        graph.remove(node, safe=True)
        return True
