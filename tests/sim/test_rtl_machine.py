"""The RTL as a verifying machine: every layer's bytes and every counter, on the small engine."""

import random

import golden_graph
import numpy as np
import pytest
from layerwise import compare_layers, feeds, nhwc, shared
from random_graphs import random_graph, random_inputs

from trivet.compiler.errors import CompileError
from trivet.compiler.load import load
from trivet.compiler.lower import lower, refusal
from trivet.compiler.map import map_units
from trivet.compiler.normalise import normalise
from trivet.compiler.spread import is_spread
from trivet.hdl.config import DEFAULT, SMALL
from trivet.hdl.isa import predicted_total
from trivet.runtime.link.client import BoardClient
from trivet.sim.board import VirtualBoard
from trivet.sim.build import build
from trivet.sim.reference import ReferenceMachine
from trivet.sim.rtl_machine import BoardMachine, rtl_machines

pytestmark = pytest.mark.rtl


def test_expanded_inputs_on_a_line_that_loses_answers() -> None:
    """First layers of few channels, items in a row, two programs in turn on one board."""
    board = VirtualBoard(build(SMALL), seed=4, stall_in=0.2, stall_out=0.2)
    rng = random.Random(2)

    class Lossy:
        write = staticmethod(board.write)

        def read(self, timeout: float) -> bytes:
            data = board.read(timeout)
            return b"" if rng.random() < 0.1 else data

    client = BoardClient(Lossy(), "fpga0", timeout=0.02, run_timeout=0.02, retries=9)
    programs = []
    for seed in range(200):
        graph = random_graph(seed, 3, channels=3, side=9, kinds=("conv", "max"))
        try:
            program = lower(graph, [u.name for u in graph.units], SMALL)
        except CompileError:
            continue
        if program.inputs[0].expand is not None:
            programs.append((graph, program))
        if len(programs) == 3:
            break
    assert len(programs) == 3
    for graph, program in programs * 2:
        reference, machine = ReferenceMachine(program), BoardMachine(client, program.to_bytes())
        for feed in random_inputs(graph, 5, 3):
            inputs = {n: nhwc(value) for n, value in feed.items()}
            for (note, right), (_, found) in zip(
                reference.layers(inputs), machine.layers(inputs), strict=True
            ):
                assert found.tobytes() == right.tobytes(), note.unit
            counted = machine.counted()
            assert counted.cycles == predicted_total(SMALL, program.instructions)
            client.reset()  # keeps the buffers' padding


NETWORKS = {"ad_autoencoder": 2_300, "ic_resnet8": 101_500, "kws_dscnn": 29_000}


@pytest.mark.parametrize("name", NETWORKS)
def test_network_is_exact_and_fast(name: str) -> None:
    """A real network on the default engine, three items: every layer, its cycles, all cycles."""
    graph = map_units(normalise(load(shared(f"mlperf_tiny_{name}_int8.onnx"), {})))
    names = [u.name for u in graph.units if refusal(graph, u, DEFAULT) is None]
    program = lower(graph, names, DEFAULT)
    (tensor,) = graph.inputs
    shape = (3, *graph.tensors[tensor].shape)
    rng = np.random.default_rng(8)
    items = rng.integers(-128, 128, shape).astype(np.int8)
    items[1:] //= 4  # nearer to what a network meets
    board = VirtualBoard(build(DEFAULT))
    client = BoardClient(board, "fpga0")
    machine = BoardMachine(client, program.to_bytes())
    for item in items:
        values = golden_graph.run(graph, {tensor: item})
        for note, found in machine.layers(feeds(program, values)):
            want = nhwc(values[note.output.tensor]).reshape(note.output.hwc)
            assert np.array_equal(found, want), note.unit
        for port in program.outputs:
            want = nhwc(values[port.tensor]).reshape(port.hwc)
            assert np.array_equal(client.read_tensor(port), want), port.tensor
        counted = machine.counted()
        assert counted.cycles == predicted_total(DEFAULT, program.instructions)
        assert counted.cycles <= NETWORKS[name]
        for note in program.layers:
            assert counted.layers[note.instruction] == (note.cycles, note.stalls), note.unit
    board.close()


def test_every_layer_and_counter_of_the_rtl_is_what_was_predicted() -> None:
    ran = 0
    with rtl_machines() as machine_for:
        for seed in range(40):
            graph = random_graph(seed, 4, channels=10, side=6)
            try:
                program = lower(graph, [u.name for u in graph.units], SMALL)
            except CompileError:
                continue  # does not fit the small engine
            reference = ReferenceMachine(program)
            machine = machine_for(program.to_bytes(), "fpga0")
            with pytest.raises(ValueError, match="no item was run yet"):
                machine.counted()
            for feed in random_inputs(graph, seed, 2):
                inputs = {}
                for port in program.inputs:
                    value = feed[port.tensor]
                    image = value.transpose(0, 2, 3, 1) if value.ndim == 4 else value
                    inputs[port.tensor] = np.ascontiguousarray(image).reshape(port.hwc)
                for (note, right), (_, found) in zip(
                    reference.layers(inputs), machine.layers(inputs), strict=True
                ):
                    assert found.tobytes() == right.tobytes(), (seed, note.unit)
            counted = machine.counted()
            assert counted.cycles == predicted_total(SMALL, program.instructions)
            for note in program.layers:
                assert counted.layers[note.instruction] == (note.cycles, note.stalls), note.unit
            ran += 1
            if ran == 6:
                break
    assert ran == 6


@pytest.mark.slow
def test_twenty_networks_that_nobody_tuned_for() -> None:
    """Of every layer kind, on the default engine: golden's bytes, each layer's predicted cycles."""
    ran = layers = 0
    with rtl_machines() as machine_for:
        for seed in range(7000, 7100):
            graph = random_graph(seed, 8, channels=40, side=14)
            try:
                program = lower(graph, [u.name for u in graph.units], DEFAULT)
            except CompileError:
                continue  # an inexact add or product: not for the engine
            machine = machine_for(program.to_bytes(), "fpga0")
            for feed in random_inputs(graph, seed, 2):
                compare_layers(machine, program, graph, feed)
            counted = machine.counted()
            assert counted.cycles == predicted_total(DEFAULT, program.instructions), seed
            for note in program.layers:
                found = counted.layers[note.instruction]
                assert found == (note.cycles, note.stalls), (seed, note.unit)
            layers += len(program.layers)
            ran += 1
            if ran == 20:
                break
    assert ran == 20
    assert layers >= 100


def test_parts_of_joint_tensors_are_written_and_read_where_they_lie() -> None:
    """Concat by placement, its copies and rescaling, Pad, Resize: layers of random networks."""
    ran = resized = ragged = 0
    with rtl_machines() as machine_for:
        for seed in range(60):
            kinds = ("concat", "conv", "pad", "resize")
            graph = random_graph(seed, 4, channels=10, side=6, kinds=kinds)
            try:
                program = lower(graph, [u.name for u in graph.units], SMALL)
            except CompileError:
                continue  # does not fit the small engine
            if not any(note.output.pixel_words for note in program.layers):
                continue
            resized += any(i.out_row_gap for i in program.instructions)
            ragged += any(is_spread(graph, unit, SMALL) for unit in graph.units)
            machine = machine_for(program.to_bytes(), "fpga0")
            for feed in random_inputs(graph, seed, 2):
                compare_layers(machine, program, graph, feed)
            assert machine.counted().cycles == predicted_total(SMALL, program.instructions)
            ran += 1
            if ran == 6:
                break
    assert ran == 6
    assert resized
    assert ragged


def test_products_of_two_tensors() -> None:
    """Mul among convolutions, adds, tables and Concats of random networks."""
    ran = gated = 0
    with rtl_machines() as machine_for:
        for seed in range(60):
            kinds = ("mul", "conv", "mul", "add", "concat")
            graph = random_graph(seed, 5, channels=10, side=6, kinds=kinds)
            try:
                program = lower(graph, [u.name for u in graph.units], SMALL)
            except CompileError:
                continue  # inexact, or does not fit the small engine
            if sum(i.has_mul for i in program.instructions) < 2:
                continue
            gated += any(not i.pixel_words for i in program.instructions if i.has_mul)
            machine = machine_for(program.to_bytes(), "fpga0")
            for feed in random_inputs(graph, seed, 2):
                compare_layers(machine, program, graph, feed)
            assert machine.counted().cycles == predicted_total(SMALL, program.instructions)
            ran += 1
            if ran == 6:
                break
    assert ran == 6
    assert gated
