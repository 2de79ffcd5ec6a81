"""QOperator form to QDQ form: a QLinearConv becomes dequantise, Conv, quantise."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from .graph import bypass, constant, initializer, unique_name

__all__ = ["ExpandQOperator"]

_MICROSOFT = "com.microsoft"
_Operands = Sequence[ir.Value | None]


class ExpandQOperator(ir.passes.InPlacePass):
    """Write the operators of onnxruntime's QOperator format out in QDQ form.

    Covers QLinearConv and QLinearMatMul of the standard, and com.microsoft's QLinearAdd,
    QLinearConcat, QGemm, QLinearAveragePool, QLinearGlobalAveragePool, QLinearSigmoid,
    QLinearLeakyRelu and QLinearSoftmax. Requires: constants folded. Ensures: the same integers up
    to ties, where the arithmetic contract says QLinear's anyway; the float operator keeps the
    node's name. Left alone: every other operator, a QLinearConv whose bias has no constant scale,
    channels_last.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in list(model.graph):
            expand = _EXPANSIONS.get((node.domain, node.op_type))
            if expand is None:
                continue
            writer = _Writer(model.graph, node)
            if expand(writer, node):
                writer.finish()
                modified = True
        return ir.passes.PassResult(model, modified)


class _Writer:
    """Collects the nodes that replace one node."""

    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self.graph = graph
        self.node = node
        self.new: list[ir.Node] = []

    def add(
        self, op_type: str, inputs: _Operands, suffix: str, attributes: Sequence[ir.Attr] = ()
    ) -> ir.Value:
        """Append a node; ``suffix`` "" gives it the old node's name."""
        name = f"{self.node.name}{suffix}"
        made = ir.Node("", op_type, list(inputs), list(attributes),
                       name=unique_name(self.graph, name) if suffix else name)  # fmt: skip
        made.outputs[0].name = unique_name(self.graph, f"{self.node.outputs[0].name}{suffix}_float")
        self.new.append(made)
        return made.outputs[0]

    def dequantise(self, operands: _Operands, suffix: str, axis: int = 1) -> ir.Value:
        return self.add("DequantizeLinear", operands, suffix, [ir.AttrInt64("axis", axis)])

    def quantise(self, value: ir.Value, scale: ir.Value | None, zero: ir.Value | None) -> bool:
        result = self.add("QuantizeLinear", [value, scale, zero], "_quantize")
        result.type, result.shape = self.node.outputs[0].type, self.node.outputs[0].shape
        return True

    def kept(self, *names: str) -> list[ir.Attr]:
        return [a for a in self.node.attributes.values() if a.name in names]

    def finish(self) -> None:
        self.graph.insert_after(self.node, self.new)
        old, result = self.node.outputs[0], self.new[-1].outputs[0]
        name, is_output = old.name, old.is_graph_output()
        bypass(self.graph, old, result)
        self.graph.remove(self.node, safe=True)
        if not is_output:
            result.name = name

    def bias(
        self, value: ir.Value | None, x_scale: ir.Value | None, w_scale: ir.Value | None
    ) -> ir.Value | None:
        """int32 bias with its implied scale s_x * s_w; None where that is no constant."""
        left, right = constant(x_scale), constant(w_scale)
        if left is None or right is None:
            return None
        product = (left.reshape(-1) * right.reshape(-1)).astype(np.float32)
        product = product if product.size > 1 else product.reshape(())
        scale = initializer(self.graph, f"{self.node.name}_bias_scale", product)
        return self.dequantise([value, scale], "_bias_dequant", 0)


def _conv(w: _Writer, node: ir.Node) -> bool:
    x, xs, xz, k, ks, kz, ys, yz = node.inputs[:8]
    bias = node.inputs[8] if len(node.inputs) > 8 else None
    operands: list[ir.Value | None] = [
        w.dequantise([x, xs, xz], "_x_dequant"),
        w.dequantise([k, ks, kz], "_w_dequant", 0),
    ]
    if bias is not None:
        scaled = w.bias(bias, xs, ks)
        if scaled is None:
            return False
        operands.append(scaled)
    attributes = w.kept("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    return w.quantise(w.add("Conv", operands, "", attributes), ys, yz)


def _matmul(w: _Writer, node: ir.Node) -> bool:
    a, sa, za, b, sb, zb, ys, yz = node.inputs
    left = w.dequantise([a, sa, za], "_a_dequant")
    right = w.dequantise([b, sb, zb], "_b_dequant")
    return w.quantise(w.add("MatMul", [left, right], ""), ys, yz)


def _gemm(w: _Writer, node: ir.Node) -> bool:
    a, sa, za, b, sb, zb = node.inputs[:6]
    bias, ys, yz = (*node.inputs[6:9], None, None, None)[:3]
    if ys is None:
        return False
    trans = node.attributes.get("transB")
    axis = 0 if trans is not None and trans.as_int() else 1
    operands: list[ir.Value | None] = [
        w.dequantise([a, sa, za], "_a_dequant"),
        w.dequantise([b, sb, zb], "_b_dequant", axis),
    ]
    if bias is not None:
        scaled = w.bias(bias, sa, sb)
        if scaled is None:
            return False
        operands.append(scaled)
    result = w.add("Gemm", operands, "", w.kept("alpha", "transA", "transB"))
    return w.quantise(result, ys, yz)


def _add(w: _Writer, node: ir.Node) -> bool:
    a, sa, za, b, sb, zb, ys, yz = node.inputs
    left = w.dequantise([a, sa, za], "_a_dequant")
    right = w.dequantise([b, sb, zb], "_b_dequant")
    return w.quantise(w.add("Add", [left, right], ""), ys, yz)


def _concat(w: _Writer, node: ir.Node) -> bool:
    ys, yz, *rest = node.inputs
    parts = [w.dequantise(rest[k : k + 3], f"_x{k // 3}_dequant") for k in range(0, len(rest), 3)]
    return w.quantise(w.add("Concat", parts, "", w.kept("axis")), ys, yz)


def _unary(op_type: str, *attributes: str) -> Callable[[_Writer, ir.Node], bool]:
    def expand(w: _Writer, node: ir.Node) -> bool:
        last = node.attributes.get("channels_last")
        if last is not None and last.as_int():
            return False
        x, xs, xz, ys, yz = node.inputs
        value = w.dequantise([x, xs, xz], "_x_dequant")
        return w.quantise(w.add(op_type, [value], "", w.kept(*attributes)), ys, yz)

    return expand


_EXPANSIONS: dict[tuple[str, str], Callable[[_Writer, ir.Node], bool]] = {
    ("", "QLinearConv"): _conv,
    ("", "QLinearMatMul"): _matmul,
    (_MICROSOFT, "QGemm"): _gemm,
    (_MICROSOFT, "QLinearAdd"): _add,
    (_MICROSOFT, "QLinearGlobalAveragePool"): _unary("GlobalAveragePool"),
    (_MICROSOFT, "QLinearAveragePool"): _unary(
        "AveragePool",
        "auto_pad",
        "ceil_mode",
        "count_include_pad",
        "kernel_shape",
        "pads",
        "strides",
    ),
    (_MICROSOFT, "QLinearConcat"): _concat,
    (_MICROSOFT, "QLinearSigmoid"): _unary("Sigmoid"),
    (_MICROSOFT, "QLinearSoftmax"): _unary("Softmax", "axis"),
    (_MICROSOFT, "QLinearLeakyRelu"): _unary("LeakyRelu", "alpha"),
}
