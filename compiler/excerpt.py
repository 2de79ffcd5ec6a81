"""Excerpts of the model: the nodes between some tensors, with the constants they read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import onnx
import onnx_ir

from .errors import CompileError

__all__ = ["Excerpt", "rename"]


class Excerpt:
    """Copies parts of one model into protobuf, each node and constant once.

    Parameters
    ----------
    model : onnx_ir.Model
        Stays as it is; external weights are read only when something copied needs them.

    Members
    -------
    values : dict of str to onnx_ir.Value
        The main graph's values by name.
    names : frozenset of str
        All names of values, those inside subgraphs included.
    constants : dict of str to onnx.TensorProto
        Initialisers that the copied nodes read, without external data.
    functions : list of onnx.FunctionProto
        Model functions that the copied nodes call.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        mapping = onnx_ir.convenience.create_value_mapping
        self.values: dict[str, Any] = mapping(model.graph, include_subgraphs=False)
        self.names = frozenset(mapping(model.graph))
        self.constants: dict[str, onnx.TensorProto] = {}
        self.functions: list[onnx.FunctionProto] = []
        self._order = {id(node): index for index, node in enumerate(model.graph)}
        self._copied: set[int] = set()
        self._called: set[Any] = set()

    def take(
        self, where: str, inputs: Collection[str], outputs: Collection[str]
    ) -> list[onnx.NodeProto]:
        """The nodes that make ``outputs`` from ``inputs``, in the model's order.

        Nodes that an earlier call returned are left out. Raises CompileError, beginning with
        ``where``, when a tensor is unknown or is neither an input nor a constant.
        """
        wanted: list[Any] = []
        stack = [self._value(where, name) for name in outputs]
        while stack:
            value = stack.pop()
            if value.name in inputs:
                continue
            node = value.producer()
            if node is None:
                self._take_constant(where, value)
            elif id(node) not in self._copied:
                self._copied.add(id(node))
                wanted.append(node)
                stack.extend(self._reads(node))
        wanted.sort(key=lambda node: self._order[id(node)])
        for node in wanted:
            self._take_functions(node)
        return [onnx_ir.to_proto(node) for node in wanted]

    def _value(self, where: str, name: str) -> Any:
        if name not in self.values:
            raise CompileError(
                f"{where}: tensor {name!r} is not in the model it should be copied from; "
                "map the model again"
            )
        return self.values[name]

    def _reads(self, node: Any) -> Iterator[Any]:
        """Values of the main graph that a node reads, those that its subgraphs capture included."""
        pending = [node]
        while pending:
            here = pending.pop()
            read = list(here.inputs)
            for attribute in here.attributes.values():
                graphs: list[Any] = []
                if attribute.type == onnx_ir.AttributeType.GRAPH:
                    graphs = [attribute.as_graph()]
                elif attribute.type == onnx_ir.AttributeType.GRAPHS:
                    graphs = list(attribute.as_graphs())
                for graph in graphs:
                    pending.extend(graph)
                    read.extend(graph.outputs)
            # A subgraph's own values are other objects, even where a name occurs twice.
            yield from (v for v in read if v is not None and self.values.get(v.name) is v)

    def _take_constant(self, where: str, value: Any) -> None:
        if value.const_value is None:
            raise CompileError(
                f"{where}: reads {value.name!r}, which is neither an input of the unit nor "
                "constant; map the model again"
            )
        if value.name not in self.constants:
            held = value.const_value
            if isinstance(held, onnx_ir.ExternalTensor):
                (held,) = onnx_ir.external_data.convert_tensors_from_external([held])
            self.constants[value.name] = onnx_ir.to_proto(held)
            self.constants[value.name].name = value.name

    def _take_functions(self, node: Any) -> None:
        key = node.op_identifier()
        function = self.model.functions.get(key)
        if function is not None and key not in self._called:
            self._called.add(key)
            for inner in function:
                self._take_functions(inner)
            self.functions.append(onnx_ir.to_proto(function))


def rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Rename values that a node touches, inside its subgraphs too (ONNX forbids shadowing)."""
    if not names:
        return
    node.input[:] = [names.get(n, n) for n in node.input]
    node.output[:] = [names.get(n, n) for n in node.output]
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for output in graph.output:
                output.name = names.get(output.name, output.name)
            for inner in graph.node:
                rename(inner, names)
