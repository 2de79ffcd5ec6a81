"""Unary chains between two int8 tensors, as a table of all 256 answers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from trivet.compiler.passes.graph import constant, is_op
from trivet.compiler.units import Array, Quant, TableSpec

from .quant import Match, Refused, quant_of

__all__ = ["ELEMENTWISE", "match_table"]

# Operators that work on each element alone; a second operand must be one constant number.
ELEMENTWISE = (
    "Abs", "Add", "Ceil", "Celu", "Clip", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu",
    "HardSigmoid",
    "HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow",
    "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "Sub",
    "Swish", "Tanh", "ThresholdedRelu",
)  # fmt: skip


def match_table(quantise: ir.Node, model: ir.Model) -> Match:
    """TableSpec of everything between one int8 tensor and a QuantizeLinear.

    The chain may branch and join (x * HardSigmoid(x)) as long as all of it starts at one tensor
    and nothing inside is read from outside. Refused says why it is no unary chain.
    """
    y = quant_of(quantise)
    chain, heads = _cone(quantise)
    tensors = {id(n.inputs[0]): n.inputs[0] for n in heads}
    if len(tensors) != 1:
        raise Refused("it joins several tensors")
    (tensor,) = tensors.values()
    if tensor is None or tensor.is_initializer():
        raise Refused("it starts at a constant")
    x = quant_of(heads[0])
    for head in heads[1:]:
        if quant_of(head) != x:
            raise Refused(f"'{tensor.name}' is dequantised with two scales")
    table = _evaluate(chain, heads, quantise, x, y, model)
    producer = quantise.inputs[0].producer() if quantise.inputs[0] is not None else None
    anchor = producer if producer is not None and producer in chain else quantise
    nodes = (*heads, *chain, quantise)
    return Match(anchor, nodes, "table", (tensor,), quantise.outputs[0], TableSpec(x, y, table))


def _cone(quantise: ir.Node) -> tuple[list[ir.Node], list[ir.Node]]:
    """Nodes that compute the input of a QuantizeLinear, and the DequantizeLinear they start at."""
    chain: dict[int, ir.Node] = {}
    heads: dict[int, ir.Node] = {}
    inside = {id(quantise)}
    # Users are visited before the nodes they use, so every reader of a value is known by then.
    pending = [quantise.inputs[0]]
    while pending:
        value = pending.pop()
        if value is None:
            continue
        array = constant(value)
        if array is not None:
            if array.size != 1:
                raise Refused(f"its operand '{value.name}' has {array.size} numbers, must be 1")
            continue
        node = value.producer()
        if node is None:
            raise Refused(f"its input '{value.name}' is not quantised")
        if id(node) in inside:
            continue
        if is_op(node, "DequantizeLinear"):
            heads[id(node)] = node
        elif is_op(node, *ELEMENTWISE):
            chain[id(node)] = node
            pending += node.inputs
        else:
            raise Refused(f"{node.op_type} has no table, which maps each element alone")
        inside.add(id(node))
    for node in (*chain.values(), *heads.values()):
        for value in node.outputs:
            if value.is_graph_output() or any(id(u.node) not in inside for u in value.uses()):
                raise Refused(f"its float value '{value.name}' is also used elsewhere")
    if not heads:
        raise Refused("it starts at no quantised tensor")
    return list(chain.values()), list(heads.values())


def _evaluate(
    chain: list[ir.Node],
    heads: list[ir.Node],
    quantise: ir.Node,
    x: Quant,
    y: Quant,
    model: ir.Model,
) -> Array:
    """Run the chain on all 256 bytes with onnxruntime, optimisation disabled."""
    source = heads[0].inputs[0]
    assert source is not None
    dtype = ir.DataType.INT8 if x.dtype == "int8" else ir.DataType.UINT8
    entry = ir.Value(name="bytes", shape=ir.Shape([256]), type=ir.TensorType(dtype))
    values: dict[int, ir.Value] = {id(source): entry}
    graph = ir.Graph([entry], [], nodes=[], opset_imports=dict(model.opset_imports), name="table")
    wanted = {id(n) for n in (*chain, *heads, quantise)}
    parent = quantise.graph
    assert isinstance(parent, ir.Graph)
    for node in parent:
        if id(node) not in wanted:
            continue
        inputs: list[ir.Value | None] = []
        for value in node.inputs:
            if value is not None and id(value) not in values:
                copy = ir.Value(name=value.name, shape=value.shape, type=value.type)
                copy.const_value = value.const_value
                graph.register_initializer(copy)
                values[id(value)] = copy
            inputs.append(None if value is None else values[id(value)])
        clone = ir.Node(
            node.domain, node.op_type, inputs, list(node.attributes.values()), name=node.name,
            num_outputs=len(node.outputs),
        )  # fmt: skip
        for new, old in zip(clone.outputs, node.outputs, strict=True):
            new.name = old.name
            values[id(old)] = new
        graph.append(clone)
    result, last = quantise.outputs[0], quantise.inputs[0]
    assert last is not None
    for value, kind in ((result, result.dtype), (last, ir.DataType.FLOAT)):
        values[id(value)].type = ir.TensorType(kind or ir.DataType.FLOAT)
        graph.outputs.append(values[id(value)])
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    proto = ir.to_proto(ir.Model(graph, ir_version=model.ir_version))
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    data = np.arange(256, dtype=np.uint8).view(x.dtype)
    bytes_out, floats = session.run(None, {"bytes": data})
    if np.isnan(floats).any():
        raise Refused("the chain gives not-a-number for some of the 256 inputs")
    table: Array = np.ascontiguousarray(np.asarray(bytes_out).reshape(256)).view(np.uint8)
    if y.dtype != bytes_out.dtype.name:
        raise Refused(f"the chain gives {bytes_out.dtype}, expected {y.dtype}")
    return table
