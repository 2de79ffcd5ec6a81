"""BatchNormalization behind a convolution becomes part of its weights."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .graph import attribute, bypass, constant, initializer, is_op, only_consumer

__all__ = ["FoldBatchNorm"]


class FoldBatchNorm(ir.passes.InPlacePass):
    """Turn ``BatchNormalization(Conv(x, w, b))`` into ``Conv(x, w * g, (b - mean) * g + beta)``
    with ``g = gamma / sqrt(var + epsilon)``, worked out in float64.

    Requires: constants folded. Ensures: the same outputs within float32 rounding; the Conv keeps
    its name. Left alone: a Conv whose result has another reader or is a graph output, weights or
    statistics that are not float32 constants, training mode, and every other operator.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        graph = model.graph
        modified = False
        for norm in list(graph):
            if is_op(norm, "BatchNormalization"):
                modified |= self._fold(graph, norm)
        return ir.passes.PassResult(model, modified)

    def _fold(self, graph: ir.Graph, norm: ir.Node) -> bool:
        source = norm.inputs[0]
        conv = source.producer() if source is not None else None
        if source is None or conv is None or not is_op(conv, "Conv"):
            return False
        if only_consumer(source) is not norm or attribute(norm, "training_mode", 0):
            return False
        if any(list(v.uses()) or v.is_graph_output() for v in norm.outputs[1:]):
            return False
        weight = constant(conv.inputs[1])
        statistics = [constant(v) for v in norm.inputs[1:5]]
        has_bias = len(conv.inputs) > 2 and conv.inputs[2] is not None
        bias = constant(conv.inputs[2]) if has_bias else np.zeros(1, dtype=np.float32)
        if weight is None or bias is None or any(s is None for s in statistics):
            return False
        if weight.dtype != np.float32:
            return False
        gamma, beta, mean, variance = (np.asarray(s, dtype=np.float64) for s in statistics)
        factor = gamma / np.sqrt(variance + float(attribute(norm, "epsilon", 1e-5)))
        column = factor.reshape(-1, *([1] * (weight.ndim - 1)))
        new_weight = (weight * column).astype(np.float32)
        new_bias = ((bias - mean) * factor + beta).astype(np.float32)
        conv.replace_input_with(1, initializer(graph, f"{conv.name}_weight", new_weight))
        if len(conv.inputs) < 3:
            conv.resize_inputs(3)
        conv.replace_input_with(2, initializer(graph, f"{conv.name}_bias", new_bias))
        bypass(graph, norm.outputs[0], source)
        graph.remove(norm, safe=True)
        return True
