"""A mean over height and width is a global average pool."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .graph import attribute, bypass, constant, initializer, is_op, shape_of, unique_name

__all__ = ["MeanToPool"]


class MeanToPool(ir.passes.InPlacePass):
    """Turn ``ReduceMean(x, axes=[2, 3])`` of an image into GlobalAveragePool (and a Reshape where
    the axes are dropped).

    Requires: shapes inferred, constants folded. Ensures: the same outputs; the pool keeps the
    node's name. Left alone: other axes, other ranks, axes known at run time only.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in list(model.graph):
            if is_op(node, "ReduceMean"):
                modified |= self._replace(model.graph, node)
        return ir.passes.PassResult(model, modified)

    def _replace(self, graph: ir.Graph, node: ir.Node) -> bool:
        x, result = node.inputs[0], node.outputs[0]
        shape = shape_of(x) if x is not None else None
        axes = attribute(node, "axes")
        if axes is None and len(node.inputs) > 1:
            axes = constant(node.inputs[1])
        if x is None or shape is None or len(shape) != 4 or axes is None:
            return False
        if sorted(int(a) % 4 for a in axes) != [2, 3]:
            return False
        pool = ir.Node("", "GlobalAveragePool", [x], name=node.name)
        value = pool.outputs[0]
        value.name = unique_name(graph, f"{result.name}_pooled")
        value.type, value.shape = result.type, ir.Shape([shape[0], shape[1], 1, 1])
        graph.insert_after(node, pool)
        if not attribute(node, "keepdims", 1):
            target = initializer(graph, f"{node.name}_shape", np.array(shape[:2], dtype=np.int64))
            view = ir.Node(
                "", "Reshape", [value, target], name=unique_name(graph, f"{node.name}_view")
            )
            view.outputs[0].name = unique_name(graph, f"{result.name}_flat")
            view.outputs[0].type, view.outputs[0].shape = result.type, result.shape
            graph.insert_after(pool, view)
            value = view.outputs[0]
        name, is_output = result.name, result.is_graph_output()
        bypass(graph, result, value)
        graph.remove(node, safe=True)
        if not is_output:
            value.name = name
        return True
