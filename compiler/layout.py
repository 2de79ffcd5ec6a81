"""How tensors lie in the engine's activation memory, and which views move no byte there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trivet.hdl.config import EngineConfig

from .units import Array, Graph, Unit

__all__ = ["hwc_of", "is_direct", "nhwc_index", "view_index", "words_of"]

# Ops that keep the ONNX order of elements. The quantisation around a view is the same on both
# sides (the front end checks that), so QuantizeLinear and DequantizeLinear change no byte.
_RESHAPES = frozenset(
    ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "QuantizeLinear", "DequantizeLinear")
)


def hwc_of(shape: Sequence[int]) -> tuple[int, int, int]:
    """Height, width and channels under which a tensor of ONNX ``shape`` lies in memory.

    ``[1, C, H, W]`` is an image; in every other rank the last axis is the channels and the axes
    before it are pixels of one row. ValueError for more than one image.
    """
    if len(shape) == 4:
        if shape[0] != 1:
            raise ValueError(
                f"holds {shape[0]} images, the engine takes 1 at a time; fix the batch axis to 1"
            )
        return shape[2], shape[3], shape[1]
    if not shape:
        return 1, 1, 1
    return 1, math.prod(shape[:-1]), shape[-1]


def words_of(hwc: tuple[int, int, int], config: EngineConfig) -> int:
    """Activation words of a tensor: each pixel's channels are padded to whole words."""
    return hwc[0] * hwc[1] * -(-hwc[2] // config.word_bytes)


def nhwc_index(shape: Sequence[int]) -> Array:
    """For each element (array of ONNX ``shape``) its place in the tensor's NHWC order."""
    h, w, c = hwc_of(shape)
    places = np.arange(h * w * c, dtype=np.int64)
    if len(shape) == 4:
        return places.reshape(1, h, w, c).transpose(0, 3, 1, 2)
    return places.reshape(tuple(shape))


def is_direct(index: Array, root_hwc: tuple[int, int, int]) -> bool:
    """Whether a view with this index lies in memory exactly as the tensor that it views."""
    try:
        h, w, c = hwc_of(index.shape)
    except ValueError:
        return False
    if (h * w, c) != (root_hwc[0] * root_hwc[1], root_hwc[2]):
        return False
    order = index.transpose(0, 2, 3, 1) if index.ndim == 4 else index
    return bool((order.reshape(-1) == np.arange(index.size)).all())


def view_index(graph: Graph, unit: Unit, index: Array) -> Array:
    """Push an element index (array of the input's ONNX shape) through a view.

    The view's own nodes are looked up in ``graph.model``; without a model a view is a reshape.
    ValueError when a node is not a view.
    """
    shape = graph.tensors[unit.outputs[0]].shape
    for node in _nodes(graph, unit):
        if node.op_type == "Transpose":
            perm = node.attributes.get("perm")
            axes = tuple(perm.as_ints()) if perm is not None else tuple(reversed(range(index.ndim)))
            between = node.inputs[0].shape
            if len(unit.nodes) > 1 and between is not None and between.is_static():
                index = index.reshape(tuple(int(d) for d in between))
            if len(axes) != index.ndim:
                raise ValueError(
                    f"permutes {len(axes)} axes of a tensor whose shape is not known here"
                )
            index = index.transpose(axes)
        elif node.op_type not in _RESHAPES:
            raise ValueError(f"contains a {node.op_type}, which is not a view")
    return index.reshape(shape)


def _nodes(graph: Graph, unit: Unit) -> list[Any]:
    if graph.model is None:
        return []
    wanted = set(unit.nodes)
    return [node for node in graph.model.graph if node.name in wanted]
