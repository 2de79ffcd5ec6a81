"""Concat by placement: who writes straight into the joint tensor, and that every byte is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import golden_graph
import numpy as np
import pytest
from layerwise import compare
from qdq import Builder, plain_session
from random_graphs import ALL_KINDS, random_graph, random_inputs, single

from trivet.compiler.contract import stage_model
from trivet.compiler.errors import CompileError
from trivet.compiler.load import load
from trivet.compiler.lower import lower, refusal
from trivet.compiler.map import map_units
from trivet.compiler.normalise import normalise
from trivet.compiler.units import ConcatSpec, Graph
from trivet.hdl.config import DEFAULT, EngineConfig
from trivet.hdl.isa import Program
from trivet.sim.reference import ReferenceMachine

TINY = EngineConfig(lanes=4, simd=4, requantisers=2, act_bank_words=4096, weight_words=4096,
                    param_words=4096, tables=32, addends=16)  # fmt: skip


def run(graph: Graph, config: EngineConfig, seed: int = 0) -> Program:
    program = lower(graph, [u.name for u in graph.units], config)
    program = Program.from_bytes(program.to_bytes())
    for inputs in random_inputs(graph, seed, 2):
        compare(ReferenceMachine(program), program, graph, inputs)
    return program


class Net:
    """Convolutions between int8 tensors of one scale, unless asked otherwise."""

    def __init__(self) -> None:
        self.b = Builder()
        self.rng = np.random.default_rng(7)
        self.scale: dict[str, tuple[float, int]] = {}

    def note(self, name: str, scale: float = 0.4, zero: int = -5) -> str:
        self.scale[name] = (scale, zero)
        return name

    def q(self, value: str, scale: float = 0.4, zero: int = -5) -> str:
        return self.note(self.b.q(value, scale, zero), scale, zero)

    def dq(self, name: str) -> str:
        return self.b.dq(name, *self.scale[name])

    def input(self, channels: int) -> str:
        return self.note(self.b.input(f"x{len(self.b.inputs)}", [1, channels, 6, 5]))

    def conv(self, source: str, depth: int, channels: int, name: str, **y: Any) -> str:
        weights = self.rng.integers(-127, 128, (channels, depth, 3, 3)).astype(np.int8)
        w = self.b.dq(self.b.constant(weights), 0.004)
        return self.q(self.b.op("Conv", self.dq(source), w, name=name, pads=[1, 1, 1, 1]), **y)

    def concat(self, name: str, *parts: str, axis: int = 1) -> str:
        return self.q(self.b.op("Concat", *(self.dq(p) for p in parts), axis=axis, name=name))

    def add(self, name: str, a: str, b: str) -> str:
        return self.q(self.b.op("Add", self.dq(a), self.dq(b), name=name))

    def graph(self, folder: Path, *outputs: str) -> Graph:
        self.b.save(folder / "m.onnx", *outputs)
        return map_units(normalise(load(folder / "m.onnx", {})))


def layers(program: Program) -> list[str]:
    return [note.unit for note in program.layers]


def test_dense_block_costs_no_copy(tmp_path: Path) -> None:
    """Parts read by others, and a joint tensor inside the next: one buffer, no copy at all."""
    net = Net()
    a = net.conv(net.input(16), 16, 16, "a")
    b = net.conv(a, 16, 32, "b")
    c = net.conv(net.concat("j1", a, b), 48, 20, "c")
    graph = net.graph(tmp_path, net.conv(net.concat("j2", a, b, c), 68, 8, "d"))
    assert {u.kind for u in graph.units} == {"conv", "concat"}
    program = run(graph, DEFAULT)
    # `a` lies in j1, so j2 takes j1's bytes of it by a copy.
    assert layers(program) == ["a", "b", "c", "j2", "j2", "d"]
    net = Net()
    a = net.conv(net.input(16), 16, 16, "a")
    j1 = net.concat("j1", a, net.conv(a, 16, 32, "b"))
    j2 = net.concat("j2", j1, net.conv(j1, 48, 20, "c"))
    graph = net.graph(tmp_path, net.conv(j2, 68, 8, "d"))
    program = run(graph, DEFAULT)
    assert layers(program) == ["a", "b", "c", "d"]
    assert [n.output.pixel_words for n in program.layers] == [5, 5, 5, 0]


def test_another_scale_is_a_table_of_the_producer_or_of_a_copy(tmp_path: Path) -> None:
    net = Net()
    x = net.input(16)
    a = net.conv(x, 16, 16, "a", scale=0.7, zero=9)  # read by the Concat alone
    b = net.conv(x, 16, 16, "b", scale=0.7, zero=9)  # and by c
    j = net.concat("j", a, b, net.conv(b, 16, 7, "c"))
    graph = net.graph(tmp_path, net.conv(j, 39, 8, "d"))
    program = run(graph, DEFAULT)
    assert layers(program) == ["a", "b", "c", "j", "d"]
    tables = [program.instructions[k].has_table for k in range(5)]
    assert tables == [1, 0, 0, 1, 0]
    session = plain_session(stage_model(graph, [u.name for u in graph.units], taps=True))
    for feed in random_inputs(graph, 3, 2):
        want = golden_graph.run(graph, feed)
        names = [o.name for o in session.get_outputs()]
        for name, found in zip(names, session.run(None, feed), strict=True):
            assert np.array_equal(found, want[name]), name
        original = plain_session(tmp_path / "m.onnx").run(None, feed)[0]
        assert np.mean(original != want[graph.outputs[0]]) < 0.05  # ties of the convolutions only


@pytest.mark.parametrize("case", ["input", "output", "skip", "behind an add", "twice"])
def test_what_forbids_placement_is_copied(tmp_path: Path, case: str) -> None:
    net = Net()
    x = net.input(16)
    a, b = net.conv(x, 16, 16, "a"), net.conv(x, 16, 16, "b")
    outputs = []
    if case == "input":
        a = x
    elif case == "output":
        outputs = [a]
    elif case == "skip":
        outputs = [net.add("s", net.conv(b, 16, 16, "c"), a)]
    elif case == "behind an add":
        a = net.add("s", net.conv(b, 16, 16, "c"), a)
    parts = (a, a, b) if case == "twice" else (a, b)
    j = net.concat("j", *parts)
    graph = net.graph(tmp_path, net.conv(j, 16 * len(parts), 8, "d"), *outputs)
    program = run(graph, DEFAULT)
    assert layers(program).count("j") == 1


def test_a_joint_tensor_that_is_added(tmp_path: Path) -> None:
    """Source and skip tensor of an Add stay in two banks."""
    net = Net()
    x = net.input(16)
    a, b = net.conv(x, 16, 16, "a"), net.conv(x, 16, 16, "b")
    j = net.concat("j", a, b)
    graph = net.graph(tmp_path, net.add("s", net.conv(a, 16, 32, "c"), j))
    program = run(graph, DEFAULT)
    assert program.instructions[layers(program).index("s")].has_add


def test_resized_into_a_joint_tensor(tmp_path: Path) -> None:
    """As in a U-Net: four copies for a factor of 2, straight into the joint tensor."""
    net = Net()
    x = net.input(16)
    deep = net.q(net.b.op("MaxPool", net.dq(x), kernel_shape=[2, 1], strides=[2, 1]))
    scales = net.b.constant(np.array([1, 1, 2, 1], np.float32))
    up = net.q(net.b.op("Resize", net.dq(deep), "", scales, name="up"))
    wide = net.q(net.b.op("Resize", net.dq(x), "", net.b.constant(
        np.array([1, 1, 2, 2], np.float32)), name="wide"))  # fmt: skip
    j = net.concat("j", up, net.conv(x, 16, 16, "a"))
    graph = net.graph(tmp_path, net.conv(j, 32, 8, "d"), net.conv(wide, 16, 4, "e"))
    program = run(graph, DEFAULT)
    names = layers(program)
    assert (names.count("up"), names.count("wide"), names.count("j")) == (2, 4, 0)
    first = program.instructions[names.index("up")]
    assert (first.out_pixel_words, first.out_row_gap) == (2, 10)
    assert program.layers[names.index("up") + 1].output.pixel == (1, 0)


def test_resize_of_another_scale_into_a_joint_tensor(tmp_path: Path) -> None:
    net = Net()
    x = net.input(16)
    scales = net.b.constant(np.array([1, 1, 2, 2], np.float32))
    deep = net.conv(x, 16, 32, "deep", scale=0.7, zero=9)
    up = net.q(net.b.op("Resize", net.dq(deep), "", scales, name="up"), 0.7, 9)
    flat = net.q(net.b.op("Resize", net.dq(x), "", scales, name="flat"))
    j = net.concat("j", up, net.conv(flat, 16, 16, "a"))
    graph = net.graph(tmp_path, net.conv(j, 48, 8, "d"))
    program = run(graph, DEFAULT)
    names = layers(program)
    assert (names.count("up"), names.count("flat"), names.count("j")) == (4, 4, 0)
    assert program.instructions[names.index("up")].has_table


def test_parts_that_end_inside_a_word(tmp_path: Path) -> None:
    """Joined with gaps, then closed up by one convolution; without gaps on smaller words."""
    net = Net()
    x = net.input(16)
    j = net.concat("j", net.conv(x, 16, 24, "a"), x, net.conv(x, 16, 3, "b"), x)
    graph = net.graph(tmp_path, net.conv(j, 59, 8, "d"))
    assert refusal(graph, graph.unit("j"), DEFAULT) is None
    program = run(graph, DEFAULT)
    assert layers(program) == ["a", "b", "j", "j", "j", "d"]  # x is the stage's input: two copies
    shown = [(n.output.tensor, n.output.channel, n.output.hwc[2]) for n in program.layers[2:5]]
    assert shown == [(j, 24, 16), (j, 43, 16), (j, 0, 59)]
    net = Net()
    x = net.input(16)
    graph = net.graph(tmp_path, net.conv(net.concat("j", net.conv(x, 16, 24, "a"), x), 40, 8, "d"))
    assert layers(run(graph, TINY)) == ["a", "j", "d"]


def test_refusals(tmp_path: Path) -> None:
    net = Net()
    j = net.concat("j", net.input(3), net.input(600))
    graph = net.graph(tmp_path, j)
    text = "words of weight memory"
    assert text in str(refusal(graph, graph.unit("j"), replace(DEFAULT, weight_words=64)))
    with pytest.raises(CompileError, match=text):
        lower(graph, [u.name for u in graph.units], replace(DEFAULT, weight_words=64))
    net = Net()
    j = net.concat("j", net.input(16), net.input(16), axis=2)
    graph = net.graph(tmp_path, net.conv(j, 16, 8, "d"))
    assert "joins along axis 2" in graph.unit("j").refusals["fpga"]


@pytest.mark.parametrize("config", [DEFAULT, TINY], ids=["16x8", "4x4"])
def test_random_graphs(config: EngineConfig) -> None:
    config = replace(config, weight_words=16384, param_words=16384, tables=64)
    inputs = copies = ran = 0
    for seed in range(40):
        graph = random_graph(seed, 6, kinds=ALL_KINDS if seed % 2 else ("concat", "conv", "pad"))
        try:
            program = run(graph, config, seed)
        except CompileError:  # an Add without exact tables, a graph too large for the engine
            continue
        ran += 1
        joints = {u.name: u.spec for u in graph.units if isinstance(u.spec, ConcatSpec)}
        inputs += sum(len(spec.x) for spec in joints.values())
        copies += sum(note.unit in joints for note in program.layers)
    assert ran >= 35
    assert copies < inputs / 2


@pytest.mark.parametrize("kind", ["concat", "pad", "resize"])
def test_single_units(kind: Any) -> None:
    for seed in range(10):
        run(single(kind, seed), DEFAULT, seed)
