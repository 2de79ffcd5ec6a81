"""Reshape, Transpose and the like move bytes: let them move int8 bytes, not floats."""

from __future__ import annotations

import onnx_ir as ir

from .graph import VIEWS, bypass, is_op, only_consumer, same_parameters, unique_name

__all__ = ["ViewsOnIntegers"]


class ViewsOnIntegers(ir.passes.InPlacePass):
    """Turn ``view(dequantise(q))`` into ``dequantise(view(q))``, ``quantise(view(x))`` into
    ``view(quantise(x))`` and drop requantising to itself.

    ``quantise(dequantise(q))`` with the same scale and zero point is ``q``, since the value that
    is rounded lies within float error of an integer. Requires: :class:`SplitDequantise`, shapes
    inferred. Ensures: the same bytes; the view keeps its name. Left alone: per-axis quantisation,
    views whose float result is a graph output and constants' DequantizeLinear.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in list(model.graph):
            if is_op(node, *VIEWS):
                modified |= self._swap(model.graph, node)
            elif is_op(node, "QuantizeLinear"):
                modified |= self._drop(model.graph, node) or self._sink(model.graph, node)
        return ir.passes.PassResult(model, modified)

    def _swap(self, graph: ir.Graph, view: ir.Node) -> bool:
        source = view.inputs[0]
        dequantise = source.producer() if source is not None else None
        if source is None or not is_op(dequantise, "DequantizeLinear"):
            return False
        assert dequantise is not None
        if only_consumer(source) is not view or not same_parameters(dequantise, dequantise):
            return False
        integer, result = dequantise.inputs[0], view.outputs[0]
        if integer is None or integer.is_initializer() or result.is_graph_output():
            return False
        # q, dequantise, source, view, result -> q, view, result, dequantise, source
        readers = list(result.uses())
        view.replace_input_with(0, integer)
        dequantise.replace_input_with(0, result)
        for use in readers:
            use.node.replace_input_with(use.idx, source)
        name = result.name
        result.name = unique_name(graph, f"{name}_integer")
        source.name = name
        source.shape = result.shape
        result.type = integer.type
        graph.remove(dequantise)
        graph.insert_after(view, dequantise)
        return True

    def _drop(self, graph: ir.Graph, quantise: ir.Node) -> bool:
        source = quantise.inputs[0]
        dequantise = source.producer() if source is not None else None
        if source is None or not is_op(dequantise, "DequantizeLinear"):
            return False
        assert dequantise is not None
        if only_consumer(source) is not quantise or not same_parameters(dequantise, quantise):
            return False
        integer, result = dequantise.inputs[0], quantise.outputs[0]
        view = integer.producer() if integer is not None else None
        if integer is None or not is_op(view, *VIEWS) or only_consumer(integer) is not dequantise:
            return False
        if integer.dtype != result.dtype:
            return False
        name = result.name
        output = result.is_graph_output()
        bypass(graph, result, integer)
        graph.remove([quantise, dequantise], safe=True)
        if not output:
            result.name = None
            integer.name = name
        return True

    def _sink(self, graph: ir.Graph, quantise: ir.Node) -> bool:
        source, result = quantise.inputs[0], quantise.outputs[0]
        view = source.producer() if source is not None else None
        if source is None or view is None or not is_op(view, *VIEWS):
            return False
        before = view.inputs[0]
        if before is None or only_consumer(before) is not view:
            return False
        if only_consumer(source) is not quantise or not same_parameters(quantise, quantise):
            return False
        # before, view, source, quantise, result -> before, quantise, result, view, source
        quantise.replace_input_with(0, before)
        name = result.name
        bypass(graph, result, source)
        source.name = name
        result.name = unique_name(graph, f"{name}_unshaped")
        view.replace_input_with(0, result)
        source.type, source.shape = result.type, result.shape
        result.shape = before.shape
        graph.remove(view)
        graph.insert_after(quantise, view)
        return True
