"""The golden functions against onnxruntime's QLinear operators, and rounding against fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import golden
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

DTYPES = ("int8", "uint8")
ONNX_TYPES = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}


def onnxruntime_run(
    op: str, feeds: dict[str, Any], inputs: list[str], domain: str = "", **attributes: Any
) -> Any:
    """One node, optimisation disabled; ``feeds`` holds the activations and every constant."""
    acts = [name for name in ("x", "x2") if name in feeds]
    constants = [
        numpy_helper.from_array(np.asarray(v), k) for k, v in feeds.items() if k not in acts
    ]
    dtype = str(feeds["x"].dtype)
    nodes = [helper.make_node(op, inputs, ["y"], domain=domain, **attributes)]
    return session_run(nodes, feeds, acts, constants, dtype)


def session_run(
    nodes: list[Any], feeds: dict[str, Any], acts: list[str], constants: list[Any], dtype: str
) -> Any:
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info(n, ONNX_TYPES[dtype], feeds[n].shape) for n in acts],
        [helper.make_tensor_value_info("y", ONNX_TYPES[dtype], None)],
        constants,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {name: feeds[name] for name in acts})[0]


def full_range(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Uniform bytes; every third time only the two extremes."""
    info = np.iinfo(dtype)
    if rng.random() < 0.33:
        return rng.choice([info.min, info.max], shape).astype(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def zero_points(rng: np.random.Generator, dtype: str, count: int = 2) -> list[int]:
    info = np.iinfo(dtype)
    return [int(v) for v in rng.integers(info.min, info.max + 1, count)]


def as_stored(weight: Any, dtype: str) -> tuple[Any, int]:
    """int8 weights in the activations' signedness, with their zero point."""
    if dtype == "int8":
        return weight, 0
    return (weight.astype(np.int16) + 128).astype(np.uint8), 128


def scales(rng: np.random.Generator, outputs: int, depth: int, per_channel: bool) -> Any:
    """x, w, y scales that spread sums of ``depth`` products over some tens of steps."""
    x, y = (np.float32(2.0 ** rng.uniform(-8, 0)) for _ in range(2))
    base = float(y) / float(x) / (math.sqrt(depth) * 75 * 75) * 2.0 ** rng.uniform(3, 6)
    w = (base * rng.uniform(0.3, 3, outputs if per_channel else 1)).astype(np.float32)
    return x, w, y, np.broadcast_to((x * w / y).astype(np.float32), (outputs,))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_channel", [False, True])
def test_conv_equals_qlinearconv(dtype: str, per_channel: bool) -> None:
    rng = np.random.default_rng(1 + per_channel)
    moving = 0
    for _ in range(150):
        groups = int(rng.choice([1, 1, 1, 2, 5]))
        depth, outputs = (groups * int(v) for v in rng.integers(1, 1 + 40 // groups, 2))
        if rng.random() < 0.25:
            groups = outputs = depth
        kernel = tuple(int(v) for v in rng.integers(1, 6, 2))
        stride, dilation = (tuple(int(v) for v in rng.integers(1, 4, 2)) for _ in range(2))
        pads = tuple(int(v) for v in rng.integers(0, 3, 4))
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        size = [s + int(rng.integers(0, 8)) for s in spans]
        x = full_range(rng, (int(rng.integers(1, 3)), depth, *size), dtype)
        weight = full_range(rng, (outputs, depth // groups, *kernel), "int8")
        bias = rng.integers(-30000, 30000, outputs).astype(np.int32)
        zx, zy = zero_points(rng, dtype)
        scale_x, scale_w, scale_y, m = scales(rng, outputs, weight[0].size, per_channel)
        stored, weight_zero = as_stored(weight, dtype)
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        ours = golden.conv(x, weight, bias, m, zx, zy, low, high, stride, dilation, pads, groups)
        theirs = onnxruntime_run(
            "QLinearConv",
            {
                "x": x,
                "sx": scale_x,
                "zx": np.array(zx, dtype),
                "w": stored,
                "sw": scale_w if per_channel else scale_w[0],
                "zw": np.array(weight_zero, dtype),
                "sy": scale_y,
                "zy": np.array(zy, dtype),
                "b": bias,
            },
            ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"],
            kernel_shape=kernel,
            strides=stride,
            dilations=dilation,
            pads=pads,
            group=groups,
        )
        np.testing.assert_array_equal(ours, theirs, strict=True)
        moving += int((ours > low).any() and (ours < high).any())
    assert moving > 120  # the scales are such that bytes in the middle are compared


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_channel", [False, True])
def test_matmul_equals_qlinearmatmul(dtype: str, per_channel: bool) -> None:
    rng = np.random.default_rng(3 + per_channel)
    for _ in range(200):
        rows, depth, outputs = (int(v) for v in rng.integers(1, [9, 700, 60]))
        x = full_range(rng, (rows, depth), dtype)
        weight = full_range(rng, (outputs, depth), "int8")
        zx, zy = zero_points(rng, dtype)
        scale_x, scale_w, scale_y, m = scales(rng, outputs, depth, per_channel)
        stored, weight_zero = as_stored(weight, dtype)
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        ours = golden.matmul(x, weight, np.zeros(outputs, np.int32), m, zx, zy, low, high)
        theirs = onnxruntime_run(
            "QLinearMatMul",
            {
                "x": x,
                "sx": scale_x,
                "zx": np.array(zx, dtype),
                "w": stored.T,
                "sw": scale_w if per_channel else scale_w[0],
                "zw": np.full(outputs, weight_zero, dtype)
                if per_channel
                else np.array(weight_zero, dtype),
                "sy": scale_y,
                "zy": np.array(zy, dtype),
            },
            ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy"],
        )
        np.testing.assert_array_equal(ours, theirs, strict=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_matmul_with_bias_equals_qgemm(dtype: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        rows, depth, outputs = (int(v) for v in rng.integers(1, [9, 700, 60]))
        x = full_range(rng, (rows, depth), dtype)
        weight = full_range(rng, (outputs, depth), "int8")
        bias = rng.integers(-100000, 100000, outputs).astype(np.int32)
        zx, zy = zero_points(rng, dtype)
        scale_x, scale_w, scale_y, m = scales(rng, outputs, depth, True)
        stored, weight_zero = as_stored(weight, dtype)
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        ours = golden.matmul(x, weight, bias, m, zx, zy, low, high)
        theirs = onnxruntime_run(
            "QGemm",
            {
                "x": x,
                "sx": scale_x,
                "zx": np.array(zx, dtype),
                "w": stored,
                "sw": scale_w,
                "zw": np.full(outputs, weight_zero, dtype),
                "b": bias,
                "sy": scale_y,
                "zy": np.array(zy, dtype),
            },
            ["x", "sx", "zx", "w", "sw", "zw", "b", "sy", "zy"],
            "com.microsoft",
            transB=1,
        )
        np.testing.assert_array_equal(ours, theirs, strict=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["QLinearAveragePool", "QLinearGlobalAveragePool"])
def test_avgpool_equals_qlinear_pools(dtype: str, op: str) -> None:
    rng = np.random.default_rng(6)
    for _ in range(150):
        height, width, depth = (int(v) for v in rng.integers(1, [16, 16, 33]))
        x = full_range(rng, (1, depth, height, width), dtype)
        kernel, stride = (height, width), (1, 1)
        window: dict[str, Any] = {"channels_last": 0}
        if op == "QLinearAveragePool":
            kernel = tuple(int(rng.integers(1, 1 + min(n, 8))) for n in (height, width))
            stride = tuple(int(v) for v in rng.integers(1, 4, 2))
            window = {"kernel_shape": kernel, "strides": stride}
        zx, zy = zero_points(rng, dtype)
        scale_x = np.float32(2.0 ** rng.uniform(-8, 0))
        scale_y = np.float32(scale_x * rng.uniform(0.3, 2))
        count = np.float32(kernel[0] * kernel[1])
        m = np.float32(scale_x / np.float32(scale_y * count))
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        ours = golden.avgpool(x, kernel, stride, (0, 0, 0, 0), m, zx, zy, low, high)
        theirs = onnxruntime_run(
            op,
            {
                "x": x,
                "sx": scale_x,
                "zx": np.array(zx, dtype),
                "sy": scale_y,
                "zy": np.array(zy, dtype),
            },
            ["x", "sx", "zx", "sy", "zy"],
            "com.microsoft",
            **window,
        )
        np.testing.assert_array_equal(ours, theirs, strict=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("subtract", [False, True])
def test_add_equals_float_dequantise_add_quantise(dtype: str, subtract: bool) -> None:
    rng = np.random.default_rng(7)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    pairs = np.indices((256, 256)).reshape(2, 1, 65536).astype(np.uint8).view(dtype)
    for _ in range(60):
        za, zb, zy = zero_points(rng, dtype, 3)
        sa, sb = (np.float32(2.0 ** rng.uniform(-6, 0)) for _ in range(2))
        sy = np.float32((sa + sb) * rng.uniform(0.3, 1.5))
        feeds: dict[str, Any] = {"x": pairs[0], "x2": pairs[1]}
        constants = {"sa": sa, "sb": sb, "sy": sy}
        constants |= {n: np.array(z, dtype) for n, z in (("za", za), ("zb", zb), ("zy", zy))}
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "sa", "za"], ["a"]),
            helper.make_node("DequantizeLinear", ["x2", "sb", "zb"], ["b"]),
            helper.make_node("Sub" if subtract else "Add", ["a", "b"], ["c"]),
            helper.make_node("QuantizeLinear", ["c", "sy", "zy"], ["y"]),
        ]
        initialisers = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
        theirs = session_run(nodes, feeds, ["x", "x2"], initialisers, dtype)
        ours = golden.add(*pairs, sa, sb, sy, za, zb, zy, low, high, subtract)
        np.testing.assert_array_equal(ours, theirs, strict=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_maxpool_equals_onnxruntime(dtype: str) -> None:
    rng = np.random.default_rng(8)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    for _ in range(150):
        kernel, stride = (tuple(int(v) for v in rng.integers(1, n, 2)) for n in (6, 4))
        pads = tuple(int(rng.integers(0, kernel[i % 2])) for i in range(4))
        size = [k + int(rng.integers(0, 9)) for k in kernel]
        x = full_range(rng, (1, int(rng.integers(1, 20)), *size), dtype)
        theirs = onnxruntime_run(
            "MaxPool", {"x": x}, ["x"], kernel_shape=kernel, strides=stride, pads=pads
        )
        ours = golden.maxpool(x, kernel, stride, pads, low, high)
        np.testing.assert_array_equal(ours, theirs, strict=True)


def to_float32(value: Fraction) -> Fraction:
    """Round half to even to 24 significant bits (normal numbers), by integers alone."""
    if value == 0:
        return value
    magnitude = abs(value)
    exponent = math.floor(math.log2(magnitude))
    while Fraction(2) ** exponent > magnitude:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    unit = Fraction(2) ** (exponent - 23)
    return round(value / unit) * unit  # Fraction's round is half to even


def test_requant_equals_exact_rational_arithmetic() -> None:
    rng = np.random.default_rng(9)
    sums = np.concatenate(
        [
            rng.integers(-(2**31), 2**31, 1500),
            rng.integers(-(2**12), 2**12, 1500),
            np.array([-(2**31), 2**31 - 1, 2**24 + 1, -(2**24) - 1, 2**25 + 2, 0, 1, -1]),
        ]
    )
    multipliers = (2.0 ** rng.uniform(-31, 2, len(sums))).astype(np.float32)
    multipliers[::3] = (2.0 ** rng.integers(-12, 0, len(multipliers[::3]))).astype(np.float32)
    ours = golden.requant(sums, multipliers, 7, -128, 127)
    for total, m, y in zip(sums, multipliers, ours, strict=True):
        product = to_float32(to_float32(Fraction(int(total))) * Fraction(float(m)))
        assert y == min(127, max(-128, round(product) + 7)), (total, m)


def test_ties_go_to_even_before_the_zero_point() -> None:
    sums = np.array([1, 3, 5, -1, -3, -5])
    np.testing.assert_array_equal(golden.requant(sums, 0.5, 1, -128, 127), [1, 3, 3, 1, -1, -1])


def test_clamp_is_in_output_bytes() -> None:
    np.testing.assert_array_equal(
        golden.requant(np.array([-100, 0, 5, 100]), 1.0, -10, -10, 20), [-10, -10, -5, 20]
    )


def test_a_sum_beyond_int32_is_refused() -> None:
    with pytest.raises(OverflowError, match="does not fit int32"):
        golden.requant(np.array([2**31]), 1.0, 0, -128, 127)


@pytest.mark.parametrize("dtype", DTYPES)
def test_table_is_indexed_by_bit_pattern(dtype: str) -> None:
    entries = np.random.default_rng(10).permutation(256).astype(np.uint8)
    x = np.array([[-1, -128, 0, 127]], "int8").view(dtype)
    expected = entries[[255, 128, 0, 127]].view(dtype)
    np.testing.assert_array_equal(golden.table(x, entries), expected[None], strict=True)
