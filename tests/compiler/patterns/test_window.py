"""Pads and output sizes, against onnx's own shape inference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from qdq import Builder

from trivet.compiler.patterns.quant import Refused
from trivet.compiler.patterns.window import window


@pytest.mark.parametrize("seed", range(60))
def test_output_size_is_onnx_s(seed: int) -> None:
    rng = np.random.default_rng(seed)
    image, kernel = rng.integers(6, 20, 2), rng.integers(1, 4, 2)
    mode = ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"][seed % 4]
    attrs: dict[str, Any] = {"strides": rng.integers(1, 4, 2).tolist(), "auto_pad": mode}
    if mode == "NOTSET":
        attrs["pads"] = rng.integers(0, 3, 4).tolist()
        attrs["dilations"] = rng.integers(1, 3, 2).tolist()
    b = Builder()
    x = b.input("x", [1, 1, *image.tolist()], np.float32)
    w = b.constant(np.ones((1, 1, *kernel), np.float32))
    model = ir.from_proto(b.model(b.op("Conv", x, w, **attrs), dtype=np.float32))
    shape = model.graph.outputs[0].shape
    assert shape is not None
    found = window(
        model.graph.node(0), (int(image[0]), int(image[1])), (int(kernel[0]), int(kernel[1]))
    )
    assert found.output == tuple(shape.numpy()[2:])
    if mode.startswith("SAME"):
        assert found.output == tuple(-(-i // s) for i, s in zip(image, found.stride, strict=True))


@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        ({"pads": [-1, 0, 0, 0]}, "negative padding"),
        ({"pads": [0, 0]}, "1 spatial dimensions"),
        ({"strides": [1, 1, 1]}, "3 spatial dimensions"),
        ({"dilations": [9, 9]}, "a kernel of 19 on 6"),
    ],
)
def test_refused(attrs: dict[str, Any], text: str) -> None:
    node = ir.node("Conv", [None, None], attrs)
    with pytest.raises(Refused, match=text):
        window(node, (6, 6), (3, 3))
