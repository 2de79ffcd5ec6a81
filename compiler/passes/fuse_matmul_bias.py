"""A float MatMul and the Add of its bias become one Gemm, as quantisers expect."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .graph import bypass, constant, is_op, only_consumer, shape_of

__all__ = ["FuseMatMulBias"]


class FuseMatMulBias(ir.passes.InPlacePass):
    """Turn ``Add(MatMul(x, w), b)`` into ``Gemm(x, w, b)`` for x [M, K], constant w and b [N].

    onnxruntime's quantiser gives a Gemm's bias int32 with the scale of the sum; the bias of an Add
    would become an int8 tensor of its own. Requires: shapes inferred. Ensures: the same outputs;
    the Gemm has the MatMul's name. Left alone: a product with another reader or that is a graph
    output, other ranks, operands that are not float32 constants (so quantised models too).
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in list(model.graph):
            if is_op(node, "MatMul"):
                modified |= self._fuse(model.graph, node)
        return ir.passes.PassResult(model, modified)

    def _fuse(self, graph: ir.Graph, matmul: ir.Node) -> bool:
        x, product = matmul.inputs[0], matmul.outputs[0]
        weight = constant(matmul.inputs[1])
        add = only_consumer(product)
        if x is None or weight is None or add is None or not is_op(add, "Add"):
            return False
        operand = add.inputs[1] if add.inputs[0] is product else add.inputs[0]
        bias, shape = constant(operand), shape_of(x)
        if bias is None or shape is None or len(shape) != 2 or weight.ndim != 2:
            return False
        if weight.dtype != np.float32 or bias.dtype != np.float32:
            return False
        if bias.shape not in ((weight.shape[1],), (1, weight.shape[1])):
            return False
        gemm = ir.Node("", "Gemm", [x, matmul.inputs[1], operand], name=matmul.name)
        gemm.outputs[0].type, gemm.outputs[0].shape = product.type, product.shape
        gemm.outputs[0].name = f"{product.name}_biased"
        graph.insert_after(matmul, gemm)
        name = add.outputs[0].name
        is_output = add.outputs[0].is_graph_output()
        bypass(graph, add.outputs[0], gemm.outputs[0])
        graph.remove([add, matmul], safe=True)
        if not is_output:
            gemm.outputs[0].name = name
        return True
