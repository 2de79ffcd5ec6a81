"""Units: the smallest things the planner places, in the terms of the arithmetic contract.

The front end turns the graph into a list of units in topological order; everything after it
(cost, plan, lower, contract models, verification) reads only these plain values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = [
    "AddSpec",
    "Array",
    "ConcatSpec",
    "ConvSpec",
    "Graph",
    "MulSpec",
    "PadSpec",
    "PoolSpec",
    "Quant",
    "ResizeSpec",
    "Spec",
    "TableSpec",
    "Tensor",
    "Unit",
]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Quant:
    """Affine quantisation of a whole tensor: ``real = (q - zero_point) * scale``."""

    scale: np.float32
    zero_point: int
    dtype: Literal["int8", "uint8"]

    @property
    def lo(self) -> int:
        return -128 if self.dtype == "int8" else 0

    @property
    def hi(self) -> int:
        return 127 if self.dtype == "int8" else 255


@dataclass(frozen=True)
class Tensor:
    """A value that flows between units. ``shape`` is in ONNX order (NCHW), batch first."""

    name: str
    dtype: str  # numpy name: "int8", "uint8", "float32", "int64", ...
    shape: tuple[int, ...]
    quant: Quant | None = None  # None: not quantised, never on an FPGA


@dataclass(frozen=True)
class ConvSpec:
    """Conv, Gemm and MatMul with what fuses into them.

    ``y = clamp(rint(f32(sum) * m) + y.zero_point, lo, hi)``, then ``table`` if there is one, with
    ``sum = bias + sum_k (x_k - x.zero_point) * w_k`` in int32; padding feeds ``x.zero_point``.
    Gemm and MatMul on ``[M, K]`` are 1 x 1 convolutions over M pixels: ``weight [N, K, 1, 1]``,
    ``matrix = True`` (the ONNX tensors stay two-dimensional).
    """

    x: Quant
    y: Quant
    weight: Array  # int8 [O, I / groups, KH, KW]
    bias: Array  # int32 [O], without the input's zero point folded in; zeros when absent
    w_scale: Array  # float32 [O]
    m: Array  # float32 [O], f32(f32(s_x * s_w) / s_y)
    lo: int
    hi: int
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, left, bottom, right
    groups: int = 1
    matrix: bool = False
    table: Array | None = None  # uint8 [256], index and value are the bytes' bit patterns


@dataclass(frozen=True)
class AddSpec:
    """Residual Add (or Sub) of two int8 tensors of one shape.

    ``y = clamp(rint(f32(f32(a - za) * sa +- f32(b - zb) * sb) / sy) + zy, lo, hi)`` in float32.
    """

    a: Quant
    b: Quant
    y: Quant
    lo: int
    hi: int
    subtract: bool = False
    table: Array | None = None


@dataclass(frozen=True)
class MulSpec:
    """Product of two int8 tensors of one shape, or of an image and a factor for each channel.

    ``y = clamp(rint(f32(f32(a - za) * sa * f32(b - zb) * sb) / sy) + zy, lo, hi)`` in float32, both
    operands first.
    """

    a: Quant
    b: Quant
    y: Quant
    lo: int
    hi: int
    table: Array | None = None


@dataclass(frozen=True)
class PoolSpec:
    """MaxPool or AveragePool over ``kernel``; a global pool has the input's size as its kernel.

    max: the maximum of the window's bytes (padding never wins), then clamp to lo..hi.
    average: ``y = clamp(rint(f32(sum (x - zx)) * m) + zy, lo, hi)``,
    ``m = f32(sx / f32(sy * count))`` with one ``count`` for all pixels.
    """

    op: Literal["max", "average"]
    x: Quant
    y: Quant
    kernel: tuple[int, int]
    m: np.float32  # 1.0 for max
    lo: int
    hi: int
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    table: Array | None = None


@dataclass(frozen=True)
class TableSpec:
    """A unary chain between two int8 tensors, run on all 256 inputs at compile time."""

    x: Quant
    y: Quant
    table: Array  # uint8 [256]


@dataclass(frozen=True)
class ConcatSpec:
    """Concat along the channels (axis 1 of an image, the last axis of other ranks).

    Each input's bytes pass through its table first, ``quantise(dequantise(x))`` of all 256 in
    float32; None where that changes no byte.
    """

    x: tuple[Quant, ...]
    y: Quant
    tables: tuple[Array | None, ...]  # uint8 [256] for each input


@dataclass(frozen=True)
class PadSpec:
    """Rows and columns of one byte around an image; ``y`` equals ``x``."""

    x: Quant
    y: Quant
    pads: tuple[int, int, int, int]  # top, left, bottom, right
    value: int  # quantised, within x.lo..x.hi; x.zero_point for zeros


@dataclass(frozen=True)
class ResizeSpec:
    """Nearest Resize: every row and column ``factors`` times; ``y`` equals ``x``."""

    x: Quant
    y: Quant
    factors: tuple[int, int]


Spec = ConvSpec | AddSpec | MulSpec | PoolSpec | TableSpec | ConcatSpec | PadSpec | ResizeSpec


@dataclass(frozen=True)
class Unit:
    """One op with what always fuses into it.

    ``kind`` "conv" also covers Gemm and MatMul; "view" is a Reshape, Flatten, Squeeze or Transpose
    that moves no byte of an NHWC tensor (or only reorders a later Gemm's weights); "other" runs on
    the CPU or GPU in ONNX as it stands.
    """

    name: str  # that of its anchor node: Conv, MatMul, Add, ...
    kind: Literal["conv", "add", "mul", "pool", "table", "concat", "pad", "resize", "view", "other"]
    nodes: tuple[str, ...]  # stable ONNX node names, as after load
    inputs: tuple[str, ...]  # activation tensors, not constants
    outputs: tuple[str, ...]
    spec: Spec | None  # None for "view" and "other"
    refusals: dict[str, str] = field(default_factory=dict)  # device kind -> why it cannot run there
    macs: int = 0  # useful multiplications for one item, counted


@dataclass(frozen=True)
class Graph:
    """The mapped model: units in topological order over named tensors."""

    name: str
    model_sha256: str
    units: tuple[Unit, ...]
    tensors: dict[str, Tensor]  # every input and output of a unit, and of the model
    inputs: tuple[str, ...]  # model inputs, with the model's names and dtypes
    outputs: tuple[str, ...]
    model: Any  # the normalised onnx_ir.Model: where "other" units are copied from
    batch_axis: str | None = None  # symbol of the leading axis that was fixed to 1, None if static

    def unit(self, name: str) -> Unit:
        for unit in self.units:
            if unit.name == name:
                return unit
        raise KeyError(name)
