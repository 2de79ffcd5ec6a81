"""Stages put together again are the model, and a change of any of them shows."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from random_graphs import random_graph

from trivet.compiler.contract import edges, stage_model
from trivet.compiler.rejoin import rejoin
from trivet.compiler.units import Graph


def cut(graph: Graph, at: int) -> list[onnx.ModelProto]:
    """Two stages; every image between them and in the first one travels as NHWC."""
    names = [u.name for u in graph.units]
    found = []
    for part in (names[:at], names[at:]):
        touching = [n for e in edges(graph, part) for n in e]
        images = frozenset(n for n in touching if len(graph.tensors[n].shape) == 4)
        found.append(stage_model(graph, part, nhwc=images))
    return found


def whole(graph: Graph) -> onnx.ModelProto:
    return stage_model(graph, [u.name for u in graph.units])


@pytest.mark.parametrize("seed", range(6))
def test_any_cut_joins_again(seed: int) -> None:
    graph = random_graph(seed, 7)
    for at in range(1, len(graph.units)):
        found = rejoin(whole(graph), cut(graph, at))
        assert (found.structure, found.parameters) == (0, 0), at
        assert found.nodes >= len(graph.units)


def test_a_changed_weight_shows_in_the_parameters_only() -> None:
    graph = random_graph(3, 5, kinds=("conv",))
    stages = cut(graph, 2)
    tensor = next(t for t in stages[1].graph.initializer if t.name.endswith("/weight"))
    array = numpy_helper.to_array(tensor).copy()
    array.flat[7] ^= 1
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    found = rejoin(whole(graph), stages)
    assert found.structure == 0
    assert found.parameters > 0


def test_a_left_out_or_exchanged_stage_shows_in_the_structure() -> None:
    graph = random_graph(3, 5, kinds=("conv",))
    one, _ = cut(graph, 2)
    assert rejoin(whole(graph), [one]).structure > 0
    other = cut(random_graph(4, 5, kinds=("conv",)), 2)[1]
    assert rejoin(whole(graph), [one, other]).structure > 0


def test_a_changed_attribute_shows_in_the_structure() -> None:
    graph = random_graph(3, 5, kinds=("conv",))
    stages = cut(graph, 2)
    node = next(n for n in stages[0].graph.node if n.op_type == "QLinearConv")
    pads = next(a for a in node.attribute if a.name == "pads")
    pads.ints[:] = list(np.array(pads.ints) + 1)
    assert rejoin(whole(graph), stages).structure > 0
