"""Over a line that loses, doubles, swaps and damages frames no item is lost, doubled or wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import golden_graph
import numpy as np
import pytest
from layerwise import feeds, nhwc
from link_board import LinkBoard, LossyLine
from random_graphs import random_graph, random_inputs

from trivet.compiler.lower import lower
from trivet.hdl.config import SMALL
from trivet.hdl.isa import Program
from trivet.runtime.link.client import BoardClient
from trivet.sim.board import VirtualBoard
from trivet.sim.build import build

KNOWN = 40  # different items
Feeds = dict[str, np.ndarray[Any, Any]]


def network(overlap: bool) -> tuple[Program, list[tuple[Feeds, Feeds]]]:
    """A program whose items are three frames or a few more, and items as golden has them."""
    graph = random_graph(38, 1, channels=9, side=2, kinds=("conv",))
    program = lower(graph, [u.name for u in graph.units], SMALL, overlap=overlap)
    items = []
    for inputs in random_inputs(graph, 1, KNOWN):
        values = golden_graph.run(graph, inputs)
        want = {p.tensor: nhwc(values[p.tensor]).reshape(p.hwc) for p in program.outputs}
        items.append((feeds(program, values), want))
    return program, items


def stream(client: BoardClient, program: Program, items: list[Any], count: int) -> None:
    """All items come out, each once, in order, right."""
    client.reset()
    client.load_program(program.to_bytes())
    told: list[int] = []

    def source() -> Iterator[Feeds]:
        for k in range(count):
            yield items[k % KNOWN][0]

    for k, (outputs, _) in enumerate(client.stream(source())):
        told.append(k)
        for name, want in items[k % KNOWN][1].items():
            assert np.array_equal(outputs[name], want), f"item {k}"
    assert len(told) == count


@pytest.mark.parametrize(("window", "overlap"), [(1, False), (4, True)])
def test_ten_thousand_items_over_a_lossy_line(window: int, overlap: bool) -> None:
    program, items = network(overlap)
    assert overlap == (program.odd is not None)
    board = LinkBoard(SMALL, program=program, window=window)
    line = LossyLine(board, seed=window)
    client = BoardClient(line, "fpga0", clock=lambda: line.seconds)
    count = 10_000 if window == 1 else 2_000
    stream(client, program, items, count)
    assert sorted(board.executed) == list(range(count)), "each was run once"
    assert min(line.happened.values()) > 0.005 * board.requests
    assert client.repeats > 0.02 * board.requests


@pytest.mark.rtl
def test_ten_thousand_items_over_a_lossy_line_to_the_rtl() -> None:
    program, items = network(True)
    board = VirtualBoard(build(SMALL), stall_in=0.1, stall_out=0.1)
    line = LossyLine(board, seed=3)
    client = BoardClient(line, "fpga0", clock=lambda: line.seconds)
    try:
        stream(client, program, items, 10_000)
    finally:
        board.close()
    assert min(line.happened.values()) > 400
    assert client.repeats > 1000


def test_a_program_is_loaded_over_a_very_lossy_line() -> None:
    program, items = network(False)
    board = LinkBoard(SMALL, program=program, window=8)
    line = LossyLine(board, seed=5, lose=0.1, double=0.1, swap=0.1, damage=0.1)
    client = BoardClient(line, "fpga0", clock=lambda: line.seconds)
    stream(client, program, items, 50)
