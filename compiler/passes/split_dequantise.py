"""One DequantizeLinear for each reader, so that each belongs to one unit."""

from __future__ import annotations

import onnx_ir as ir

from .graph import is_op, unique_name

__all__ = ["SplitDequantise"]


class SplitDequantise(ir.passes.InPlacePass):
    """Copy a DequantizeLinear that several nodes read, once for each use.

    Requires: nothing. Ensures: the same outputs; the first use keeps the node, copies are named
    after it with a number. A graph output keeps the original. Left alone: uses inside subgraphs.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        graph = model.graph
        modified = False
        for node in list(graph):
            if not is_op(node, "DequantizeLinear"):
                continue
            uses = [u for u in node.outputs[0].uses() if u.node.graph is graph]
            kept = 0 if node.outputs[0].is_graph_output() else 1
            if len(uses) < len(list(node.outputs[0].uses())):
                kept = 0
            order = {id(n): i for i, n in enumerate(graph)}
            for use in sorted(uses, key=lambda u: (order[id(u.node)], u.idx))[kept:]:
                copy = ir.Node(
                    node.domain,
                    node.op_type,
                    list(node.inputs),
                    list(node.attributes.values()),
                    name=unique_name(graph, node.name or "DequantizeLinear"),
                )
                output = copy.outputs[0]
                output.name = unique_name(graph, node.outputs[0].name or "dequantised")
                output.type, output.shape = node.outputs[0].type, node.outputs[0].shape
                graph.insert_after(node, copy)
                use.node.replace_input_with(use.idx, output)
                modified = True
        return ir.passes.PassResult(model, modified)
