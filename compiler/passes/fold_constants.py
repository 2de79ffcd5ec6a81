"""Everything that is known at compile time becomes an initializer."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes.common import (
    IdentityEliminationPass,
    LiftConstantsToInitializersPass,
    RemoveUnusedNodesPass,
)

from .graph import STANDARD_DOMAINS, attribute, constant, initializer, is_op, shape_of

__all__ = ["FoldConstants"]

# Quantised weights keep their DequantizeLinear: it is where their scale is.
_KEPT = ("DequantizeLinear",)
_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial",
           "Bernoulli")  # fmt: skip


class FoldConstants(ir.passes.InPlacePass):
    """Evaluate nodes whose inputs are all constant, and Shape of static values.

    Requires: nodes in topological order, shapes inferred. Ensures: the same outputs; no Constant
    or Identity node and no unused node is left. Left alone: DequantizeLinear, random ops,
    nodes with subgraphs or of other domains, what onnx's
    reference implementation cannot evaluate, and nodes that make a graph output.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(
            model
        ).modified
        modified |= IdentityEliminationPass()(model).modified
        graph = model.graph
        for node in list(graph):
            arrays = self._evaluate(model, node)
            if arrays is None:
                continue
            for value, array in zip(node.outputs, arrays, strict=True):
                value.replace_all_uses_with(initializer(graph, f"{value.name}_folded", array))
            graph.remove(node, safe=True)
            modified = True
        modified |= RemoveUnusedNodesPass()(model).modified
        return ir.passes.PassResult(model, modified)

    def _evaluate(self, model: ir.Model, node: ir.Node) -> list[np.ndarray[Any, Any]] | None:
        if node.domain not in STANDARD_DOMAINS or node.op_type in (*_KEPT, *_RANDOM):
            return None
        if any(v.is_graph_output() for v in node.outputs):
            return None
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
               for a in node.attributes.values()):  # fmt: skip
            return None
        if is_op(node, "Shape") and node.inputs[0] is not None:
            shape = shape_of(node.inputs[0])
            if shape is None:
                return None
            dims = shape[attribute(node, "start", 0) : attribute(node, "end", None)]
            return [np.array(dims, dtype=np.int64)]
        present = {str(v.name): constant(v) for v in node.inputs if v is not None}
        if any(array is None for array in present.values()):
            return None
        inputs = [v for v in node.inputs if v is not None]
        unique = list({id(v): v for v in inputs}.values())
        # A model of this one node: the standard's own reference implementation evaluates it.
        clone = ir.Graph(
            [ir.Value(name=v.name, shape=v.shape, type=v.type) for v in unique],
            [],
            nodes=[],
            opset_imports=dict(model.opset_imports),
            name="fold",
        )
        by_name = {v.name: v for v in clone.inputs}
        copy = ir.Node(
            node.domain,
            node.op_type,
            [by_name[v.name] if v is not None else None for v in node.inputs],
            list(node.attributes.values()),
            num_outputs=len(node.outputs),
        )
        for new, old in zip(copy.outputs, node.outputs, strict=True):
            new.name = old.name
        clone.append(copy)
        clone.outputs.extend(copy.outputs)
        proto = ir.to_proto(ir.Model(clone, ir_version=model.ir_version))
        try:
            results = ReferenceEvaluator(proto).run(None, present)
        except Exception:  # it raises many kinds; the node then stays and runs where it did
            return None
        return [np.asarray(r) for r in results]
