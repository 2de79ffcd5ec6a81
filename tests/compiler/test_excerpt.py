"""Excerpts take the nodes a unit needs, what its subgraphs capture, and its constants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from trivet.compiler.errors import CompileError
from trivet.compiler.excerpt import Excerpt, rename

FLOAT = TensorProto.FLOAT


def info(name: str, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, [2])


def branching_model() -> onnx.ModelProto:
    """x -> Relu -> r; If(c) then Add(r, w) else r; the result times w."""
    then = helper.make_graph(
        [helper.make_node("Add", ["r", "w"], ["then_out"])], "then", [], [info("then_out")]
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["r"], ["else_out"])], "else", [], [info("else_out")]
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("If", ["c"], ["i"], name="if", then_branch=then, else_branch=other),
        helper.make_node("Mul", ["i", "w"], ["y"], name="mul"),
        helper.make_node("Neg", ["x"], ["unused"], name="neg"),
    ]
    weight = numpy_helper.from_array(np.ones(2, np.float32), "w")
    inputs = [info("x"), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [info("y")], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_captured_values_are_followed() -> None:
    excerpt = Excerpt(onnx_ir.from_proto(branching_model()))
    taken = excerpt.take("unit 'if'", ["x", "c"], ["i"])
    assert [node.name for node in taken] == ["relu", "if"]
    assert list(excerpt.constants) == ["w"]


def test_inputs_stop_the_walk_and_nothing_is_taken_twice() -> None:
    excerpt = Excerpt(onnx_ir.from_proto(branching_model()))
    assert [n.name for n in excerpt.take("unit", ["r", "c"], ["i"])] == ["if"]
    assert [n.name for n in excerpt.take("unit", ["i"], ["y"])] == ["mul"]
    assert excerpt.take("unit", ["i"], ["y"]) == []


def test_rename_reaches_into_subgraphs() -> None:
    excerpt = Excerpt(onnx_ir.from_proto(branching_model()))
    (node,) = excerpt.take("unit", ["r", "c"], ["i"])
    rename(node, {"r": "r/nchw", "i": "i/nchw"})
    assert list(node.output) == ["i/nchw"]
    branches = {a.name: a.g for a in node.attribute}
    assert list(branches["then_branch"].node[0].input) == ["r/nchw", "w"]
    assert list(branches["else_branch"].node[0].input) == ["r/nchw"]


def test_external_weights_come_in_by_value(tmp_path: Path) -> None:
    model = branching_model()
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    excerpt = Excerpt(onnx_ir.load(path))
    excerpt.take("unit", ["i"], ["y"])
    held = excerpt.constants["w"]
    assert held.data_location == TensorProto.DEFAULT
    np.testing.assert_array_equal(numpy_helper.to_array(held), np.ones(2, np.float32))


def test_functions_are_carried_along() -> None:
    model = branching_model()
    double = helper.make_function(
        "ours", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    model.functions.append(double)
    model.opset_import.append(helper.make_opsetid("ours", 1))
    model.graph.node.append(helper.make_node("Double", ["y"], ["z"], name="double", domain="ours"))
    excerpt = Excerpt(onnx_ir.from_proto(model))
    excerpt.take("unit", ["y"], ["z"])
    assert [function.name for function in excerpt.functions] == ["Double"]


def test_errors_begin_with_the_unit() -> None:
    excerpt = Excerpt(onnx_ir.from_proto(branching_model()))
    with pytest.raises(CompileError, match="unit 'a': tensor 'q' is not in the model"):
        excerpt.take("unit 'a'", ["x"], ["q"])
    with pytest.raises(CompileError, match="unit 'a': reads 'c', which is neither"):
        excerpt.take("unit 'a'", ["x"], ["i"])
