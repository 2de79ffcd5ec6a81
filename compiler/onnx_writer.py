"""Collects nodes and constants of an ONNX model under names that do not clash."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .errors import CompileError
from .units import Array

__all__ = ["OnnxWriter"]

_BYTES_LIMIT = 2**31 - 2**20  # protobuf's message limit, with room for the nodes


class OnnxWriter:
    """A graph under construction; nothing in it depends on time, place or hash seeds."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self._taken = set(taken)

    def fresh(self, base: str) -> str:
        """A value name that nothing else has: ``base``, or ``base_2`` and so on."""
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name

    def constant(self, base: str, value: Array) -> str:
        """A new initialiser; returns its name."""
        name = self.fresh(base)
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def scalar(self, value: float, dtype: str) -> str:
        """A 0-D initialiser, one for all uses of the same value."""
        name = f"trivet/{dtype}/{value!r}"
        if name not in self.constants:
            self._taken.add(name)
            self.constants[name] = numpy_helper.from_array(np.asarray(value, dtype), name)
        return name

    def node(
        self,
        op: str,
        inputs: list[str],
        output: str,
        name: str,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Append a node with one output; returns the output's name."""
        made = helper.make_node(op, inputs, [output], name=name, domain=domain, **attributes)
        self.nodes.append(made)
        return output

    def model(
        self,
        name: str,
        inputs: list[onnx.ValueInfoProto],
        outputs: list[onnx.ValueInfoProto],
        *,
        opsets: dict[str, int],
        ir_version: int,
        properties: dict[str, str],
        functions: list[onnx.FunctionProto],
    ) -> onnx.ModelProto:
        """The model. ``opsets`` not used by a node are left out; CompileError above 2 GiB."""
        size = sum(tensor.ByteSize() for tensor in self.constants.values())
        if size > _BYTES_LIMIT:
            raise CompileError(
                f"stage of {name!r}: {size} bytes of weights in one ONNX file, above the limit "
                f"{_BYTES_LIMIT}; split the stage"
            )
        graph = helper.make_graph(self.nodes, name, inputs, outputs, list(self.constants.values()))
        used = {""} | _domains(self.nodes)
        used |= {opset.domain for function in functions for opset in function.opset_import}
        made = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(d, opsets.get(d, 1)) for d in sorted(used)],
            functions=functions,
            ir_version=ir_version,
            producer_name="trivet",
        )
        helper.set_model_props(made, properties)
        return made


def _domains(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    found = set()
    for node in nodes:
        found.add(node.domain)
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                found |= _domains(graph.node)
    return found
