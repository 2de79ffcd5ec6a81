"""Trace: every node of the user's model belongs to a unit, also those that passes did away with.

Pins, plans and reports speak of the names in the user's file; quantising and folding may merge a
node (a Relu, a BatchNorm) into the one before it.
"""

from __future__ import annotations

import dataclasses

import onnx_ir

from .units import Graph

__all__ = ["trace_nodes"]


def trace_nodes(graph: Graph, original: onnx_ir.Model) -> Graph:
    """The graph with every node of ``original`` named in a unit, where one can be found.

    A node that no unit names joins the unit of what it reads; without such, of what reads it.
    Nodes on constants alone stay unnamed.
    """
    owner = {node: unit.name for unit in graph.units for node in unit.nodes}
    added: dict[str, list[str]] = {}
    nodes = list(original.graph)

    def join(node: onnx_ir.Node, neighbours: list[str]) -> None:
        unit = next((owner[n] for n in neighbours if n in owner), None)
        if unit is not None and node.name:
            owner[node.name] = unit
            added.setdefault(unit, []).append(node.name)

    for node in nodes:
        if node.name not in owner:
            producers = (v.producer() for v in node.inputs if v is not None)
            join(node, [str(p.name) for p in producers if p is not None])
    for node in reversed(nodes):
        if node.name not in owner and not _constant(node):
            join(node, [str(use.node.name) for v in node.outputs for use in v.uses()])
    if not added:
        return graph
    units = tuple(
        dataclasses.replace(u, nodes=(*u.nodes, *added.get(u.name, ()))) for u in graph.units
    )
    return dataclasses.replace(graph, units=units)


def _constant(node: onnx_ir.Node) -> bool:
    return all(v is None or v.is_initializer() for v in node.inputs)
