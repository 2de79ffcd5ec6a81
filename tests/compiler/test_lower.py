"""Lowering fuses only what the instruction set does exactly, and refuses with a way out.

That the bytes are right is shown by running the programs: ``tests/sim/test_reference.py``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir
import pytest
from random_graphs import random_graph, single

from trivet.compiler.errors import CompileError
from trivet.compiler.lower import lower, refusal
from trivet.compiler.units import (
    AddSpec,
    ConvSpec,
    Graph,
    MulSpec,
    PoolSpec,
    Quant,
    TableSpec,
    Tensor,
    Unit,
)
from trivet.hdl.config import DEFAULT, EngineConfig
from trivet.hdl.isa import Expand, Op, Program, predicted_cycles, predicted_stalls

Q = Quant(np.float32(0.05), 3, "int8")
TABLE = np.arange(256, dtype=np.uint8)[::-1].copy()


class Net:
    """Builds a graph by hand, one call a unit."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.tensors = {"x": Tensor("x", "int8", shape, Q)}
        self.units: list[Unit] = []

    def unit(self, kind: Any, spec: Any, inputs: tuple[str, ...], shape: tuple[int, ...]) -> str:
        name = f"{kind}{len(self.units)}"
        self.tensors[f"{name}:y"] = Tensor(f"{name}:y", "int8", shape, Q)
        self.units.append(Unit(name, kind, (name,), inputs, (f"{name}:y",), spec, macs=1))
        return f"{name}:y"

    def conv(
        self, source: str, out: int | None = None, kernel: tuple[int, int] = (1, 1), **options: Any
    ) -> str:
        shape = self.tensors[source].shape
        out = out or shape[1]
        depth = shape[1] // options.get("groups", 1)
        values = {
            "weight": np.ones((out, depth, *kernel), np.int8),
            "bias": np.zeros(out, np.int32),
            "w_scale": np.full(out, 0.01, np.float32),
            "m": np.full(out, 0.01, np.float32),
            "lo": -128,
            "hi": 127,
        }
        spec = ConvSpec(Q, Q, **(values | options))
        if spec.matrix:
            return self.unit("conv", spec, (source,), (*shape[:-1], out))
        (top, left, bottom, right), (sh, sw) = spec.pads, spec.stride
        height = (shape[2] + top + bottom - kernel[0]) // sh + 1
        width = (shape[3] + left + right - kernel[1]) // sw + 1
        return self.unit("conv", spec, (source,), (1, out, height, width))

    def add(self, a: str, b: str, table: Any = None) -> str:
        quants = (Q, Q, Quant(np.float32(0.07), 1, "int8"))
        return self.unit(
            "add", AddSpec(*quants, -128, 127, table=table), (a, b), self.tensors[a].shape
        )

    def table(self, source: str) -> str:
        return self.unit("table", TableSpec(Q, Q, TABLE), (source,), self.tensors[source].shape)

    def view(self, source: str, shape: tuple[int, ...]) -> str:
        return self.unit("view", None, (source,), shape)

    def graph(self, *outputs: str, model: Any = None) -> Graph:
        names = outputs or self.units[-1].outputs
        return Graph("net", "0" * 64, tuple(self.units), self.tensors, ("x",), names, model)


def lower_all(graph: Graph, config: EngineConfig = DEFAULT) -> Program:
    return lower(graph, [u.name for u in graph.units], config)


def flags(program: Program) -> list[tuple[int, int]]:
    return [(i.has_add, i.has_table) for i in program.instructions[:-1]]


# Fusing


def test_add_rides_behind_its_later_producer() -> None:
    net = Net((1, 8, 4, 4))
    net.add(net.conv(net.conv("x")), "x")
    program = lower_all(net.graph())
    assert flags(program) == [(0, 0), (1, 0)]
    assert program.instructions[1].src2 == program.inputs[0].offset
    assert program.layers[1].nodes == ("conv1", "add2")
    assert program.layers[1].unit == "add2"
    assert program.layers[1].output.tensor == "add2:y"
    assert program.layers[1].macs == 2


def test_producer_waits_for_the_skip_tensor() -> None:
    net = Net((1, 8, 4, 4))
    a = net.conv("x")
    b = net.conv("x")
    late = net.conv(b)
    early = net.conv(a)  # fused, but must run after `late`, its skip tensor
    net.units[2:4] = [net.units[3], net.units[2]]
    net.add(early, late)
    program = lower_all(net.graph())
    assert [note.unit for note in program.layers][-1] == "add4"
    assert flags(program) == [(0, 0), (0, 0), (0, 0), (1, 0)]


def test_source_and_skip_must_be_two_tensors() -> None:
    """x + conv(x): the conv reads x, so the add becomes a copy."""
    net = Net((1, 8, 4, 4))
    net.add(net.conv("x"), "x")
    program = lower_all(net.graph())
    assert flags(program) == [(0, 0), (1, 0)]
    assert program.instructions[1].op == Op.LANE


def test_tensor_added_to_itself_becomes_a_table() -> None:
    net = Net((1, 8, 4, 4))
    net.add("x", "x")
    assert flags(lower_all(net.graph())) == [(0, 1)]


@pytest.mark.parametrize("reason", ["other reader", "model output", "stage output"])
def test_add_of_a_tensor_read_elsewhere_is_a_copy(reason: str) -> None:
    net = Net((1, 8, 4, 4))
    a, b = net.conv("x"), net.conv("x")
    y = net.add(a, b)
    others = {"other reader": [net.conv(t) for t in (a, b)] if reason == "other reader" else []}
    extra = others.get(reason, []) or ([a, b] if reason == "model output" else [])
    graph = net.graph(y, *extra)
    names = [u.name for u in graph.units]
    if reason == "stage output":
        net.conv(a), net.conv(b)
        graph = net.graph(y, "conv3:y", "conv4:y")
    program = lower(graph, names, DEFAULT)
    copies = [i for i in program.instructions if i.has_add]
    assert [i.op for i in copies] == [Op.LANE]


def test_tables_ride_and_compose() -> None:
    net = Net((1, 8, 4, 4))
    net.table(net.table(net.conv("x", table=TABLE)))
    program = lower_all(net.graph())
    assert flags(program) == [(0, 1)]
    assert program.tables == TABLE[TABLE[TABLE]].tobytes()


def test_table_before_an_add_keeps_its_place() -> None:
    """The instruction's table comes last, so a table in front of an add prevents the fusion."""
    net = Net((1, 8, 4, 4))
    a = net.table(net.conv("x"))
    net.table(net.add(a, "x"))
    assert flags(lower_all(net.graph())) == [(0, 1), (1, 1)]


# Instructions


def test_default_shapes_and_cycles() -> None:
    net = Net((1, 20, 9, 7))
    net.conv("x", 33, (3, 2), stride=(2, 1), pads=(1, 0, 1, 1))
    program = lower_all(net.graph())
    i, note = program.instructions[0], program.layers[0]
    assert (i.blocks, i.c_slices, i.pixel_words, i.out_pixel_words) == (3, 3, 2, 3)
    assert (i.out_h, i.out_w, i.slices, i.idle) == (5, 7, 18, 0)
    assert note.cycles == predicted_cycles(DEFAULT, i)
    assert note.stalls == predicted_stalls(DEFAULT, i) == 0
    assert program.instructions[-1].op == Op.END
    assert Program.from_bytes(program.to_bytes()) == program


def test_idle_lets_the_requantisers_keep_up() -> None:
    net = Net((1, 8, 3, 3))
    net.conv("x")
    program = lower_all(net.graph(), EngineConfig(requantisers=2))
    assert program.instructions[0].idle == 7
    assert program.layers[0].stalls == predicted_stalls(program.config, program.instructions[0]) > 0


def test_zero_point_folds_into_the_bias() -> None:
    net = Net((1, 8, 1, 1))
    net.conv("x", bias=np.full(8, 100, np.int32))
    params = np.frombuffer(lower_all(net.graph()).params, "<i4").reshape(-1, 2)
    assert params[:8, 0].tolist() == [100 - 3 * 8] * 8
    assert params[8:, 0].tolist() == [0] * 8


def test_stride_over_one_output_does_not_matter() -> None:
    """A global average pool with its window as stride (25 > 15) still fits the field."""
    net = Net((1, 8, 25, 5))
    spec = PoolSpec("average", Q, Q, (25, 5), np.float32(1 / 125), -128, 127, stride=(25, 5))
    net.unit("pool", spec, ("x",), (1, 8, 1, 1))
    i = lower_all(net.graph()).instructions[0]
    assert (i.stride_h, i.stride_w, i.weight_hold, i.op) == (1, 1, 1, Op.LANE)


def test_maximum_pads_with_the_lowest_byte() -> None:
    for graph in (single("max", 1, dtype="int8"), single("max", 1, dtype="uint8")):
        i = lower_all(graph).instructions[0]
        assert (i.acc_max, i.zp_x) == (1, 0 if i.x_unsigned else -128)


def test_equal_contents_are_stored_once() -> None:
    net = Net((1, 8, 4, 4))
    net.conv(net.conv("x"))
    program = lower_all(net.graph())
    assert len(program.weights) == DEFAULT.weight_word_bytes
    assert program.instructions[0].weights == program.instructions[1].weights == 0


def test_same_arguments_same_bytes() -> None:
    graph = random_graph(12, 8)
    assert lower_all(graph).to_bytes() == lower_all(graph).to_bytes()


def test_layers_start_early() -> None:
    net = Net((1, 128))
    net.conv(net.conv("x", 128, matrix=True), 128, matrix=True)
    program = lower_all(net.graph())
    assert [i.early for i in program.instructions] == [0, 15, 0]
    assert program.layers[1].cycles == predicted_cycles(DEFAULT, program.instructions[1]) == 144


def depthwise(config: EngineConfig = DEFAULT, **options: Any) -> Program:
    net = Net((1, 20, 9, 7))
    options = {"kernel": (3, 3), "pads": (1, 1, 1, 1), "groups": 20} | options
    weight = np.arange(20 * 9).reshape(20, 1, 9)[..., : int(np.prod(options["kernel"]))]
    options["weight"] = (weight % 251 - 125).astype(np.int8).reshape(20, 1, *options["kernel"])
    net.conv("x", **options)
    return lower_all(net.graph(), config)


def test_depthwise_takes_three_taps_a_cycle() -> None:
    program = depthwise()
    i = program.instructions[0]
    assert (i.op, i.window, i.idle, i.work) == (Op.LANE, 1, 1, 2 * 9 * 8 * 3)
    words = np.frombuffer(program.weights, np.int8).reshape(2, 3, 16, 8)  # block, ky, lane, simd
    first = np.arange(9, 18).reshape(3, 3) - 125  # of channel 1
    assert np.array_equal(words[0, :, 1, :3], first[:, ::-1])
    assert not words[..., 3:].any()
    assert not words[1, :, 4:].any()


@pytest.mark.parametrize(
    ("options", "windows"),
    [
        ({"stride": (1, 2)}, 1),
        ({"stride": (1, 3), "pads": (1, 0, 1, 0)}, 0),  # nothing to gain
        ({"kernel": (3, 2)}, 0),
        ({"kernel": (2, 3)}, 0),
        ({"pads": (1, 0, 1, 0)}, 1),
        ({"pads": (1, 2, 1, 2)}, 0),
        ({"config": EngineConfig(simd=2)}, 0),
        ({"config": EngineConfig(requantisers=2)}, 0),  # 8 beats: the row's end is too short
    ],
)
def test_depthwise_of_one_tap_a_cycle(options: dict[str, Any], windows: int) -> None:
    assert depthwise(**options).instructions[0].window == windows


# Expanded inputs


def test_input_of_few_channels_is_expanded() -> None:
    net = Net((1, 3, 9, 7))
    net.conv("x", 33, (3, 2), stride=(2, 1), pads=(1, 0, 1, 1), weight=_taps(33, 3, 3, 2))
    graph = net.graph()
    program = lower_all(graph)
    (port,), i = program.inputs, program.instructions[0]
    assert port.hwc == (9, 7, 3)
    assert port.expand == Expand((9, 7, 3), 3, 2, 2, 1, 1, 0, 5, 7, zp=3)
    assert (i.in_h, i.in_w, i.kernel_h, i.kernel_w, i.c_slices, i.idle) == (5, 7, 1, 1, 3, 1)
    assert (i.pad_top, i.pad_left, i.stride_h, i.stride_w, i.pixel_words) == (0, 0, 1, 1, 2)
    words = np.frombuffer(program.weights, np.int8).reshape(3, 3, 16, 8)  # block, slice, lane, simd
    first = words[0, :, 1].reshape(-1)[:18]
    assert np.array_equal(first, _taps(33, 3, 3, 2)[1].transpose(1, 2, 0).reshape(-1))
    assert Program.from_bytes(program.to_bytes()) == program
    units = [u.name for u in graph.units]
    assert lower(graph, units, DEFAULT, expand=False).inputs[0].expand is None


def _taps(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).integers(-128, 128, shape).astype(np.int8)


@pytest.mark.parametrize(
    "reason",
    ["other reader", "output", "skip", "dilation", "depthwise", "channels", "no gain", "gaps"],
)
def test_input_that_stays_as_it_is(reason: str) -> None:
    net = Net((1, 8 if reason == "channels" else 3, 9, 9))
    options: dict[str, Any] = {"pads": (1, 1, 1, 1)}
    if reason == "dilation":
        options = {"pads": (2, 2, 2, 2), "dilation": (2, 2)}
    if reason == "depthwise":
        options["groups"] = 3
    kernel = (3, 1) if reason == "no gain" else (3, 3)
    if reason == "no gain":
        options["pads"] = (1, 0, 1, 0)
    if reason == "gaps":
        options["stride"] = (4, 1)
    spec_out = net.conv("x", kernel=(3, 3), pads=(1, 1, 1, 1)) if reason == "other reader" else None
    if reason == "dilation":
        weight = np.ones((3, 3, 3, 3), np.int8)
        base = ConvSpec(
            Q, Q, weight, np.zeros(3, np.int32), np.ones(3, np.float32),
            np.full(3, 0.01, np.float32), -128, 127, **options,
        )  # fmt: skip
        y = net.unit("conv", base, ("x",), (1, 3, 9, 9))
    else:
        y = net.conv("x", kernel=kernel, **options)
    if reason == "skip":
        y = net.add(y, "x")
    outputs = [
        y,
        *([spec_out] if spec_out else []),
        *([net.view("x", (1, 3, 9, 9))] if reason == "output" else []),
    ]
    program = lower_all(net.graph(*outputs))
    assert [p.expand for p in program.inputs] == [None]


def test_expanded_input_needs_room_of_its_own() -> None:
    """16 words, 32 expanded, 16 a result: two results at a time would fit beside 32, not in 63."""
    net = Net((1, 3, 4, 4))
    net.conv(net.conv("x", 16, (3, 3), pads=(1, 1, 1, 1)))
    for words, fits in ((64, True), (32, False)):
        config = EngineConfig(act_banks=1, act_bank_words=words)
        (port,) = lower_all(net.graph(), config).inputs
        assert (port.expand is not None) == fits


# Views


def test_flatten_before_a_matrix_reorders_weights() -> None:
    net = Net((1, 6, 2, 3))
    flat = net.view("x", (1, 36))
    net.conv(flat, 5, matrix=True)
    program = lower_all(net.graph())
    i = program.instructions[0]
    assert (i.kernel_h, i.kernel_w, i.in_h, i.in_w, i.out_h, i.out_w) == (2, 3, 2, 3, 1, 1)
    assert program.layers[0].nodes == ("view0", "conv1")
    assert program.inputs[0].hwc == (2, 3, 6)


def test_view_that_moves_no_byte_is_free() -> None:
    net = Net((1, 16, 1, 1))
    net.conv(net.view(net.conv("x"), (1, 16)), 5, matrix=True)
    graph = net.graph()
    assert [refusal(graph, u, DEFAULT) for u in graph.units] == [None] * 3
    assert len(lower_all(graph).layers) == 2


def test_flatten_at_the_end_of_a_stage_is_refused() -> None:
    net = Net((1, 6, 2, 3))
    net.view(net.conv("x"), (1, 36))
    graph = net.graph()
    assert "is an output of the model" in str(refusal(graph, graph.units[1], DEFAULT))
    with pytest.raises(CompileError, match="leaves the FPGA stage through a view that moves bytes"):
        lower_all(graph)


def test_flatten_into_something_else_is_refused() -> None:
    net = Net((1, 6, 2, 3))
    net.table(net.view("x", (1, 36)))
    graph = net.graph()
    assert "weights cannot undo" in str(refusal(graph, graph.units[0], DEFAULT))
    with pytest.raises(CompileError, match="node 'table1': it reads 'view0:y' through a view"):
        lower_all(graph)


def test_transposes_are_looked_up_in_the_model() -> None:
    """NCHW to NHWC, then flat: the Gemm sees the bytes in the order in which they lie."""
    net = Net((1, 6, 2, 3))
    turned = net.view("x", (1, 2, 3, 6))
    net.conv(net.view(turned, (1, 36)), 5, matrix=True, weight=_ramp(5, 36))
    nodes = [
        onnx_ir.node(
            "Transpose",
            [onnx_ir.Value(name="x")],
            {"perm": [0, 2, 3, 1]},
            name="view0",
        ),
        onnx_ir.node("Reshape", [onnx_ir.Value(name="t")], name="view1"),
    ]
    model = onnx_ir.Model(onnx_ir.Graph([], [], nodes=nodes, opset_imports={"": 17}), ir_version=10)
    i = lower_all(net.graph(model=model))
    words = np.frombuffer(i.weights, np.int8).reshape(-1, 6, 16, 8)  # 1 block, 6 pixels
    assert np.array_equal(words[0, :, 0, :6].reshape(-1), _ramp(5, 36)[0, :, 0, 0])


def _ramp(outputs: int, inputs: int) -> np.ndarray:
    return (np.arange(outputs * inputs) % 251 - 125).astype(np.int8).reshape(outputs, inputs, 1, 1)


# Refusals


def only(net: Net) -> tuple[Graph, Unit]:
    graph = net.graph()
    return graph, graph.units[-1]


def matches(net: Net, text: str, config: EngineConfig = DEFAULT) -> None:
    """Refused before planning, and with the same words when lowered all the same."""
    graph, unit = only(net)
    assert re.search(text, str(refusal(graph, unit, config))), refusal(graph, unit, config)
    with pytest.raises(CompileError, match=f"'{unit.name}': .*{text}"):
        lower_all(graph, config)


def test_kernel_beyond_8_bits() -> None:
    net = Net((1, 8, 300, 1))
    net.conv("x", kernel=(300, 1))
    matches(net, "kernel_h is 300, must be 0..255; keep it on a CPU or GPU")


def test_stride_beyond_4_bits() -> None:
    net = Net((1, 8, 40, 1))
    net.conv("x", stride=(16, 1))
    matches(net, "stride_h is 16, must be 0..15")


@pytest.mark.parametrize("m", [0.0, -1.0, np.inf, np.nan])
def test_bad_multiplier(m: float) -> None:
    net = Net((1, 8, 1, 1))
    net.conv("x", m=np.full(8, m, np.float32))
    matches(net, "output multiplier .* must be positive and finite")


def test_sums_beyond_32_bits() -> None:
    net = Net((1, 8, 1, 1))
    net.conv("x", bias=np.full(8, 2**31 - 600, np.int32))
    matches(net, "sums may reach 2147484048, the engine's have 32 bits")
    net = Net((1, 8, 1, 1))
    net.conv("x", bias=np.full(8, -(2**31), np.int32))
    matches(net, "bias with the zero point folded in is 2147483672")


def test_weights_of_one_layer_beyond_the_memory() -> None:
    net = Net((1, 640))
    net.conv("x", 640, matrix=True)
    matches(net, "needs 3200 words of weight memory, the engine has 2112")


def test_weights_of_all_layers_beyond_the_memory() -> None:
    net = Net((1, 400))
    here = "x"
    for k in range(3):
        here = net.conv(here, 400, matrix=True, weight=_ramp(400, 400) + np.int8(k))
    graph = net.graph()
    assert [refusal(graph, u, DEFAULT) for u in graph.units] == [None] * 3
    with pytest.raises(
        CompileError, match=r"layer 'conv1': .* 2500 words of weight memory .* 2112"
    ):
        lower_all(graph)


def test_activations_beyond_the_memory() -> None:
    net = Net((1, 16, 64, 64))
    net.conv("x")
    graph, unit = only(net)
    assert "need 8192 words of activation memory, the engine has 6144" in str(
        refusal(graph, unit, DEFAULT)
    )
    with pytest.raises(CompileError, match=r"layer 'conv0': .* 8192 words .* 6144"):
        lower_all(graph)


def test_inexact_add() -> None:
    net = Net((1, 8, 4, 4))
    half = Quant(np.float32(0.25), 1, "int8")
    spec = AddSpec(half, half, Quant(np.float32(0.5), 0, "int8"), -128, 127)
    net.unit("add", spec, ("x", net.conv("x")), (1, 8, 4, 4))
    matches(net, "differ in .* of 65,536 pairs")


def test_products_of_tensors() -> None:
    serial = replace(DEFAULT, requantisers=1, serial=1, lanes=4)
    half = Quant(np.float32(0.25), 1, "int8")
    for spec, config, text in (
        (MulSpec(Q, Q, Q, -128, 127), serial, "only engines with addend tables and without"),
        (MulSpec(Q, Q, Q, -128, 127), replace(DEFAULT, addends=0), "only engines with addend"),
        (MulSpec(Q, Q, Q, -128, 127), replace(DEFAULT, act_banks=1), "two tensors at once"),
        (MulSpec(half, half, replace(half, scale=np.float32(1e-45)), -128, 127), DEFAULT, "is inf"),
    ):
        net = Net((1, 8, 4, 4))
        net.unit("mul", spec, ("x", net.conv("x")), (1, 8, 4, 4))
        graph = net.graph()
        unit = next(u for u in graph.units if u.kind == "mul")
        assert text in str(refusal(graph, unit, config))
        with pytest.raises(CompileError, match=text):
            lower(graph, [u.name for u in graph.units], config)


def test_an_add_does_not_ride_behind_a_product() -> None:
    """Both have a skip tensor; a table does, and a square is one."""
    net = Net((1, 8, 4, 4))
    y = Quant(np.float32(0.0313371), 1, "int8")
    spec = MulSpec(Q, Q, y, -128, 127)
    shape = (1, 8, 4, 4)
    product = net.unit("mul", spec, ("x", net.conv("x")), shape)
    total = net.add(product, net.table(net.conv(product)))
    net.unit("mul", spec, (total, total), shape)
    program = lower_all(net.graph())
    flags = [(i.has_mul, i.has_add, i.has_table) for i in program.instructions[:-1]]
    assert flags == [(0, 0, 0), (1, 1, 0), (0, 0, 1), (0, 1, 0), (0, 0, 1)]


def test_broadcasting_add() -> None:
    net = Net((1, 8, 4, 4))
    b = net.conv("x", kernel=(4, 4))
    net.add("x", b)
    matches(net, "broadcasts shapes")


def test_add_needs_two_banks() -> None:
    net = Net((1, 8, 4, 4))
    net.add("x", net.conv("x"))
    matches(net, "1 activation bank", EngineConfig(act_banks=1))


def test_more_than_one_image() -> None:
    net = Net((2, 8, 4, 4))
    net.unit("table", TableSpec(Q, Q, TABLE), ("x",), (2, 8, 4, 4))
    matches(net, "holds 2 images")


def test_float_tensor() -> None:
    net = Net((1, 8, 4, 4))
    net.conv("x")
    net.tensors["x"] = replace(net.tensors["x"], dtype="float32", quant=None)
    matches(net, "tensor 'x' is float32, the engine takes quantised int8 or uint8")


def test_unit_without_an_instruction() -> None:
    net = Net((1, 8))
    net.unit("other", None, ("x",), (1, 8))
    matches(net, "no instruction for it; place it on a CPU or GPU")


def test_too_many_instructions() -> None:
    net = Net((1, 8, 1, 1))
    here = "x"
    for _ in range(4):
        here = net.conv(here)
    with pytest.raises(CompileError, match=r"layer 'conv3': the stage has 4 layers and an END"):
        lower_all(net.graph(), EngineConfig(instructions=4))


def test_stage_around_another_device() -> None:
    net = Net((1, 8, 1, 1))
    net.conv(net.conv(net.conv("x")))
    with pytest.raises(CompileError, match=r"node 'conv2': .* 'conv1' outside the FPGA stage"):
        lower(net.graph(), ["conv0", "conv2"], DEFAULT)


def test_unknown_and_empty_stages() -> None:
    net = Net((1, 16, 1, 1))
    net.view("x", (1, 16))
    graph = net.graph()
    with pytest.raises(CompileError, match="'nobody' is not in the graph"):
        lower(graph, ["nobody"], DEFAULT)
    with pytest.raises(CompileError, match="the FPGA stage computes nothing"):
        lower(graph, ["view0"], DEFAULT)
