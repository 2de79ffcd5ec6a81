"""Items in a row: while the engine runs one, the host loads the next and reads the last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import golden_graph
import numpy as np
import pytest
from layerwise import feeds, nhwc
from random_graphs import random_graph, random_inputs

import trivet.compiler.lower as lower_module
from trivet.compiler.errors import CompileError
from trivet.compiler.lower import lower
from trivet.compiler.units import ConvSpec, Graph, Quant, Tensor, Unit
from trivet.hdl.config import DEFAULT, SMALL, EngineConfig
from trivet.hdl.isa import Program, ProgramError, predicted_interval, predicted_total
from trivet.runtime.device import DeviceError
from trivet.runtime.link.client import BoardClient
from trivet.runtime.link.frame import Space, load_request
from trivet.sim.board import VirtualBoard
from trivet.sim.build import build
from trivet.sim.reference import ReferenceMachine
from trivet.sim.rtl_machine import BoardMachine

pytestmark = pytest.mark.rtl


class Line:
    """Time passes in small steps, as for a host beside the board; bytes may get lost."""

    def __init__(self, board: VirtualBoard, step: int = 40) -> None:
        self.board, self.step = board, step

    def write(self, data: bytes) -> None:
        self.board.write(data)

    def read(self, timeout: float) -> bytes:
        self.board.run(self.step)
        return self.board.pull()


def client_of(config: EngineConfig, **stalls: Any) -> tuple[VirtualBoard, BoardClient]:
    board = VirtualBoard(build(config), **stalls)
    return board, BoardClient(Line(board), timeout=60.0)


def programs(
    count: int, layers: int = 4, least: int = 0, **shape: Any
) -> list[tuple[Any, Program]]:
    """Of two forms; of a program that releases its inputs, no part has fewer slices."""
    found: list[tuple[Any, Program]] = []
    for seed in range(100, 200):
        graph = random_graph(seed, layers, **shape)
        try:
            program = lower(graph, [u.name for u in graph.units], SMALL, overlap=True)
        except CompileError:
            continue
        if program.odd is not None:
            halves = (
                program.forms[0][: program.odd.release],
                program.forms[0][program.odd.release :],
            )
            if min(sum(i.work for i in half) for half in halves) >= least:
                found.append((graph, program))
        if len(found) == count:
            return found
    raise AssertionError(f"{len(found)} programs")


def items_of(graph: Any, program: Program, count: int) -> list[tuple[dict[str, Any], Any]]:
    found = []
    for inputs in random_inputs(graph, 8, count):
        values = golden_graph.run(graph, inputs)
        want = {p.tensor: nhwc(values[p.tensor]).reshape(p.hwc) for p in program.outputs}
        found.append((feeds(program, values), want))
    return found


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds inputs but once, and no part of a run is too short."""
    allocate = lower_module._allocate

    def tight(*arguments: Any) -> dict[str, int]:
        *_, inputs, _, _, _, _, ports = arguments
        if ports.intersection(inputs):
            raise CompileError("full")
        return allocate(*arguments)

    monkeypatch.setattr(lower_module, "_allocate", tight)
    monkeypatch.setattr(lower_module, "_ROUND_TRIP", 1)


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("channels", [9, 3])
def test_stream_with_one_input_buffer_is_exact(channels: int, stall: float) -> None:
    """Items in two runs each: the next inputs go in behind the first."""
    board, client = client_of(SMALL, seed=3, stall_in=stall, stall_out=stall)
    for graph, program in programs(8, channels=channels, side=13):
        assert program.odd is not None
        assert program.odd.inputs == program.inputs
        client.load_program(program.to_bytes())
        items = items_of(graph, program, 5)
        streamed = client.stream(feed for feed, _ in items)
        cycles = []
        for (_, want), (found, count) in zip(items, streamed, strict=True):
            assert all(np.array_equal(found[n], want[n]) for n in want)
            cycles.append(count)
        # Both runs begin at once when the host is late: 9 cycles, and what they start early.
        assert all((program.interval or 0) - 40 <= c for c in cycles)
        assert all(c <= predicted_total(SMALL, program.forms[0]) + 80 for c in cycles)
        machine = ReferenceMachine(program)
        for form in range(2):
            found = machine.run(items[0][0], form)
            assert all(np.array_equal(found[n], v) for n, v in items[0][1].items())
    board.close()


@pytest.mark.usefixtures("once")
def test_interval_of_items_in_two_runs_is_counted_as_predicted() -> None:
    board = VirtualBoard(build(SMALL))
    client = BoardClient(board, "fpga0")
    # This host needs its time to queue a run.
    for graph, program in programs(5, layers=6, least=500, channels=9, side=21):
        machine = BoardMachine(client, program.to_bytes(), board)
        ((feed, _),) = items_of(graph, program, 1)
        assert list(machine.layers(feed))
        assert machine.counted().interval == program.interval
    board.close()


def lossy_stream(seed: int, lost: float) -> None:
    """Twelve items with requests lost so often, and answers now and then: golden's bytes."""
    board = VirtualBoard(build(SMALL))
    rng = np.random.default_rng(seed)

    class Lossy(Line):
        def write(self, data: bytes) -> None:
            if rng.random() >= lost:
                super().write(data)

        def read(self, timeout: float) -> bytes:
            data = super().read(timeout)
            return b"" if rng.random() < 0.02 else data

    client = BoardClient(Lossy(board), timeout=0.05, run_timeout=0.1, retries=20)
    ((graph, program),) = programs(1, channels=9, side=7)
    client.load_program(program.to_bytes())
    items = items_of(graph, program, 12)
    for (_, want), (found, _) in zip(items, client.stream(f for f, _ in items), strict=True):
        assert all(np.array_equal(found[n], want[n]) for n in want)
    board.close()


@pytest.mark.usefixtures("once")
def test_lost_frames_do_not_change_the_order_of_runs() -> None:
    lossy_stream(9, 0.05)


@pytest.mark.parametrize("lost", [0.0, 0.05])
def test_lost_and_repeated_frames_change_nothing(lost: float) -> None:
    lossy_stream(5, lost)


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("channels", [9, 3])
def test_stream_is_exact_and_its_interval_as_predicted(channels: int, stall: float) -> None:
    """``channels`` 3: inputs are expanded while the engine runs."""
    board, client = client_of(SMALL, seed=7, stall_in=stall, stall_out=stall)
    in_time = 0
    for graph, program in programs(24, channels=channels, side=13):
        client.load_program(program.to_bytes())
        items = items_of(graph, program, 6)
        cycles = []
        for (_, want), (found, count) in zip(
            items, client.stream(feed for feed, _ in items), strict=True
        ):
            assert found.keys() == want.keys()
            assert all(np.array_equal(found[n], want[n]) for n in want)
            cycles.append(count)
        assert cycles[0] == predicted_total(SMALL, program.forms[0])
        predicted = [predicted_interval(SMALL, program.forms[k % 2]) for k in range(6)]
        # A run that is queued too late has less of a start, at worst it counts like the first.
        late = [predicted_total(SMALL, program.forms[k % 2]) for k in range(6)]
        assert all(p <= c <= q for c, p, q in zip(cycles, predicted, late, strict=True))
        interval = program.interval or 0
        # What the frames of an item take on a line of a byte a cycle, with room to spare.
        ports = (*program.inputs, *program.outputs)
        if interval > 500 + sum(p.nbytes * (12 if p.expand else 4) for p in ports):
            assert cycles[1:] == predicted[1:] or stall
            in_time += 1
        assert sum(predicted[:2]) <= 2 * (program.interval or 0) <= sum(predicted[:2]) + 1
    assert in_time >= 2
    board.close()


def test_reset_in_the_middle_ends_both_runs_and_leaves_the_buffers() -> None:
    board, client = client_of(SMALL)
    ((graph, program),) = programs(1, channels=3, side=9)
    assert program.odd is not None
    client.load_program(program.to_bytes())
    items = items_of(graph, program, 2)
    for step in (1, 5, 40, 300, 1000, 2500):
        for port, odd in zip(program.inputs, program.odd.inputs, strict=True):
            client.write_tensor(port, items[0][0][port.tensor])
            client.write_tensor(odd, items[1][0][port.tensor])
        runs = [client.start_run(1, 0), client.start_run(2, program.odd.first)]
        board.run(80 + step)
        client.reset()
        for run in runs:
            trouble = ""
            try:
                client.finish_run(run)
            except DeviceError as e:  # unless the run was over by then
                trouble = str(e)
            assert not trouble or "was stopped by a reset" in trouble
        for (_, want), (found, _) in zip(items, client.stream(f for f, _ in items), strict=True):
            assert all(np.array_equal(found[n], want[n]) for n in want)
    board.close()


def test_only_activation_memory_is_open_during_a_run() -> None:
    board, client = client_of(SMALL)
    ((graph, program),) = programs(1, channels=9, side=9)
    client.load_program(program.to_bytes())
    ((feed, _),) = items_of(graph, program, 1)
    for port in program.inputs:
        client.write_tensor(port, feed[port.tensor])
    run = client.start_run(1)
    with pytest.raises(DeviceError, match="is still running"):
        client._load([load_request(Space.WGHT, 0, bytes(SMALL.weight_word_bytes))])
    client.counters(3)
    client.finish_run(run)
    board.close()


def matrix(rows: int, inputs: int, outputs: int) -> Graph:
    """One MatMul ``[rows, inputs] x [inputs, outputs]``."""
    rng = np.random.default_rng(rows)
    x, y = Quant(np.float32(0.05), 3, "int8"), Quant(np.float32(0.4), -2, "int8")
    scale = np.full(outputs, 0.01, np.float32)
    spec = ConvSpec(
        x, y, rng.integers(-127, 128, (outputs, inputs, 1, 1), dtype=np.int8),
        rng.integers(-999, 999, outputs, dtype=np.int32), scale, x.scale * scale / y.scale,
        -128, 127, matrix=True,
    )  # fmt: skip
    unit = Unit("mm", "conv", ("mm",), ("x",), ("y",), spec)
    tensors = {
        "x": Tensor("x", "int8", (rows, inputs), x), "y": Tensor("y", "int8", (rows, outputs), y)
    }  # fmt: skip
    return Graph("matrix", "", (unit,), tensors, ("x",), ("y",), None)


def test_vectors_through_one_matrix_keep_the_multipliers_busy() -> None:
    """20 vectors, 256 x 256, 128 multipliers: each item is 512 slices."""
    board, client = client_of(DEFAULT)
    graph = matrix(1, 256, 256)
    program = lower(graph, ["mm"], DEFAULT, overlap=True)
    assert program.odd is not None
    client.load_program(program.to_bytes())
    items = items_of(graph, program, 2)
    for form, (feed, _) in zip(client.program.forms, items, strict=True):
        client.write_tensor(form.inputs[0], feed["x"])
    # This line takes as long as the item, so the two vectors that are there take turns.
    runs, cycles = [client.start_run(0)], []
    for k in range(1, 20):
        runs.append(client.start_run(k, client.program.forms[k % 2].first))
        cycles.append(client.finish_run(runs.pop(0)))
    cycles.append(client.finish_run(runs[0]))
    for form, (_, want) in zip(client.program.forms, items, strict=True):
        assert np.array_equal(client.read_tensor(form.outputs[0]), want["y"])
    assert cycles[0] == predicted_total(DEFAULT, program.forms[0])
    assert set(cycles[1:]) == {program.interval}
    assert 20 * 512 / sum(cycles) >= 0.98
    # As one item of 20 rows.
    graph = matrix(20, 256, 256)
    whole = lower(graph, ["mm"], DEFAULT, overlap=True)
    client.load_program(whole.to_bytes())
    ((feed, want),) = items_of(graph, whole, 1)
    ((found, count),) = client.stream([feed])
    assert np.array_equal(found["y"], want["y"])
    assert count == predicted_total(DEFAULT, whole.forms[0])
    assert 20 * 512 / count >= 0.98
    board.close()


def test_both_forms_agree_on_the_reference_machine() -> None:
    for graph, program in programs(6, channels=5, side=7):
        machine = ReferenceMachine(program)
        for feed, want in items_of(graph, program, 2):
            for form in range(2):
                found = machine.run(feed, form)
                assert all(np.array_equal(found[n], want[n]) for n in want)


@pytest.mark.usefixtures("once")
def test_reference_machine_refuses_inputs_used_after_their_release() -> None:
    refused = 0
    for _, program in programs(8, channels=9, side=7):
        assert program.odd is not None
        release, (port, *_) = program.odd.release, program.inputs
        for field in ("src", "dst"):
            code = list(program.instructions)
            code[release] = replace(code[release], early=0, **{field: port.offset})
            with pytest.raises(ProgramError) as caught:
                ReferenceMachine(replace(program, instructions=tuple(code)))
            refused += "after its release" in str(caught.value)
    assert refused >= 6
