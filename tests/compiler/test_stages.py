"""Stages: edges, NHWC layouts, and which views must stay off an FPGA's border."""

import numpy as np
from random_graphs import random_graph

from trivet.compiler.planner.problem import Run
from trivet.compiler.rig import default_rig
from trivet.compiler.stages import cut, moves_bytes, travels
from trivet.compiler.units import Graph, Quant, Tensor, Unit

Q = Quant(np.float32(0.1), 0, "int8")


def view_graph(before: tuple[int, ...], after: tuple[int, ...]) -> Graph:
    unit = Unit("v", "view", ("v",), ("x",), ("y",), None)
    tensors = {"x": Tensor("x", "int8", before, Q), "y": Tensor("y", "int8", after, Q)}
    return Graph("g", "0" * 64, (unit,), tensors, ("x",), ("y",), None)


def test_a_flatten_moves_bytes_only_when_space_and_channels_mix() -> None:
    for before, after, moved in (
        ((1, 8, 4, 4), (1, 128), True),
        ((1, 8, 1, 1), (1, 8), False),
        ((1, 1, 4, 4), (1, 16), False),
        ((1, 16), (1, 16, 1, 1), False),
        ((1, 32), (1, 2, 4, 4), True),
    ):
        graph = view_graph(before, after)
        assert moves_bytes(graph, graph.units[0]) == moved, (before, after)


def test_only_quantised_bytes_travel_to_an_fpga() -> None:
    graph = view_graph((1, 8, 4, 4), (1, 128))
    graph.tensors["f"] = Tensor("f", "float32", (1, 8))
    graph.tensors["b"] = Tensor("b", "int8", (1, 8))
    graph.tensors["two"] = Tensor("two", "int8", (2, 8, 4, 4), Q)
    assert travels(graph, "x") is None
    assert "float32" in str(travels(graph, "f"))
    assert "no scale" in str(travels(graph, "b"))
    assert "2 images" in str(travels(graph, "two"))


def test_edges_of_an_fpga_stage_are_nhwc_on_both_sides() -> None:
    graph = random_graph(4, 6, kinds=("conv",))
    runs = [Run("cpu0", (0, 1)), Run("fpga0", (2, 3)), Run("cpu0", tuple(range(4, 6)))]
    assert len(graph.units) >= 6
    runs[-1] = Run("cpu0", tuple(range(4, len(graph.units))))
    first, board, last = cut(graph, default_rig(), runs)
    assert [s.kind for s in (first, board, last)] == ["cpu", "fpga", "cpu"]
    images = {n for n in (*board.inputs, *board.outputs) if len(graph.tensors[n].shape) == 4}
    assert board.nhwc == images
    assert first.nhwc == images & {*first.inputs, *first.outputs}
    assert last.nhwc == images & {*last.inputs, *last.outputs}
    assert set(board.inputs) <= {*first.outputs, *graph.inputs}
