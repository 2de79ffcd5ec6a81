"""Every node of the user's model belongs to a unit, so that it can be pinned by its own name."""

from importlib.resources import files
from pathlib import Path

import numpy as np

from trivet.compiler.load import load
from trivet.compiler.map import map_units
from trivet.compiler.normalise import normalise
from trivet.compiler.quantise import quantise
from trivet.compiler.trace import trace_nodes


def test_nodes_that_the_quantiser_removed_join_what_they_read() -> None:
    loaded = load(Path(str(files("trivet").joinpath("digits.onnx"))), {})
    samples = np.random.default_rng(1).random((16, 1, 8, 8), np.float32)
    graph = map_units(quantise(normalise(loaded), {"image": samples}))
    owner = {node: unit.name for unit in graph.units for node in unit.nodes}
    assert "relu1" not in owner
    traced = trace_nodes(graph, loaded.model)
    owner = {node: unit.name for unit in traced.units for node in unit.nodes}
    assert owner["relu1"] == "conv1"
    assert owner["relu2"] == "residual"
    assert {str(n.name) for n in loaded.model.graph} <= set(owner)
    assert [u.name for u in traced.units] == [u.name for u in graph.units]


def test_a_graph_that_lacks_nothing_is_returned_as_it_is() -> None:
    loaded = load(Path(str(files("trivet").joinpath("digits.onnx"))), {})
    graph = map_units(normalise(loaded))
    assert trace_nodes(graph, loaded.model) is graph
