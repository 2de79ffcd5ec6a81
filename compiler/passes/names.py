"""Stable, unique node names: what pins, plans and waveforms refer to."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["NameNodes"]


class NameNodes(ir.passes.InPlacePass):
    """Name every unnamed node ``op_index``, index being its topological position.

    Requires: nothing. Ensures: topological order and names that are unique and depend on the
    graph only. Left alone: names that are unique already; of equal ones the first keeps it.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        model.graph.sort()
        taken = {node.name for node in model.graph if node.name}
        seen: set[str] = set()
        modified = False
        for index, node in enumerate(model.graph):
            name = node.name or f"{node.op_type}_{index}"
            while name in seen or (name != node.name and name in taken):
                name = f"{name}_{index}"
            modified |= name != node.name
            node.name = name
            seen.add(name)
        return ir.passes.PassResult(model, modified)
