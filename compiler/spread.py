"""Concats whose parts do not fill memory words: joined with gaps, then closed up by a DOT.

A word is written by one layer, so two parts cannot meet inside one. The parts go into a *spread*
tensor instead, each from a whole word on (``compiler/joint.py`` places them there as in any
Concat), and a 1 x 1 convolution whose weights are the unit matrix, with zeros for the gaps, copies
that into the Concat's result: ``rint(f32(x - zp) * 1) + zp`` is x.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from trivet.hdl.config import EngineConfig

from .layout import hwc_of
from .units import ConcatSpec, ConvSpec, Graph, Unit

__all__ = ["is_spread", "spread", "spread_concats"]


def is_spread(graph: Graph, unit: Unit, config: EngineConfig) -> bool:
    """Whether a part of the Concat, other than the last, ends inside a memory word."""
    return isinstance(unit.spec, ConcatSpec) and any(
        hwc_of(graph.tensors[name].shape)[2] % config.word_bytes for name in unit.inputs[:-1]
    )


def spread_concats(
    graph: Graph, chosen: Collection[str], config: EngineConfig
) -> tuple[Graph, dict[str, str]]:
    """The graph with two units for each such Concat, and the result of each spread tensor."""
    units: list[Unit] = []
    results: dict[str, str] = {}
    for unit in graph.units:
        if unit.name not in chosen or not is_spread(graph, unit, config):
            units.append(unit)
            continue
        graph, (join, close) = spread(graph, unit, config)
        units += [join, close]
        results[join.outputs[0]] = close.outputs[0]
    return replace(graph, units=tuple(units)), results


def spread(graph: Graph, unit: Unit, config: EngineConfig) -> tuple[Graph, tuple[Unit, Unit]]:
    """The Concat into a spread tensor and the convolution; the graph knows that tensor."""
    spec, (out,), word = unit.spec, unit.outputs, config.word_bytes
    assert isinstance(spec, ConcatSpec)
    counts = [hwc_of(graph.tensors[name].shape)[2] for name in unit.inputs]
    places: list[int] = []  # channel in the spread tensor of each channel of the result
    end = 0
    for count in counts:
        first = -(-end // word) * word
        end = first + count
        places += range(first, end)
    weight = np.zeros((len(places), end, 1, 1), np.int8)
    weight[np.arange(len(places)), places] = 1
    ones = np.ones(len(places), np.float32)
    tensor = graph.tensors[out]
    shape = list(tensor.shape)
    image = len(shape) == 4
    shape[1 if image else -1] = end
    name = f"{out}\0spread"  # no ONNX name has a NUL
    tensors = graph.tensors | {name: replace(tensor, name=name, shape=tuple(shape))}
    y, bias = spec.y, np.zeros(len(places), np.int32)
    copy = ConvSpec(y, y, weight, bias, ones, ones, y.lo, y.hi, matrix=not image)
    join = replace(unit, nodes=(), outputs=(name,))
    close = replace(unit, kind="conv", inputs=(name,), spec=copy)
    return replace(graph, tensors=tensors), (join, close)
