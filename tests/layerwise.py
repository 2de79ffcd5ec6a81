"""Compares a program's machine with golden at every layer boundary."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import golden_graph
import numpy as np
import numpy.typing as npt
import pytest

from trivet.compiler.units import Graph
from trivet.hdl.isa import LayerNote, Program

Array = npt.NDArray[Any]


class Layered(Protocol):
    """Anything that can be read after each layer."""

    def layers(self, inputs: dict[str, Array]) -> Iterable[tuple[LayerNote, Array]]: ...


class Machine(Layered, Protocol):
    """The reference machine: runs as a whole, too."""

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]: ...


def shared(name: str) -> Path:
    """A file of the shared models' folder; the test is skipped where there is none."""
    root = Path(__file__).resolve().parents[1]
    path = Path(os.environ.get("TRIVET_SHARED", root / "../shared")) / "models" / name
    if not path.exists():
        pytest.skip(f"{name} is not here; set TRIVET_SHARED to the folder that holds models/")
    return path


def nhwc(value: Array) -> Array:
    """A tensor in ONNX order as the engine's bytes: images become NHWC."""
    return value.transpose(0, 2, 3, 1) if value.ndim == 4 else value


def feeds(program: Program, values: dict[str, Array]) -> dict[str, Array]:
    """A program's inputs out of tensors in ONNX order."""
    return {p.tensor: nhwc(values[p.tensor]).reshape(p.hwc) for p in program.inputs}


def compare_layers(
    machine: Layered, program: Program, graph: Graph, inputs: dict[str, Array]
) -> int:
    """Assert that every layer equals golden; return the bytes compared."""
    return _layers(machine, program, graph, golden_graph.run(graph, inputs))


def compare(machine: Machine, program: Program, graph: Graph, inputs: dict[str, Array]) -> int:
    """Assert that every layer and every output equals golden; return the bytes compared."""
    want = golden_graph.run(graph, inputs)
    count = _layers(machine, program, graph, want)
    outputs = machine.run(feeds(program, want))
    assert set(outputs) == {port.tensor for port in program.outputs}
    for name, found in outputs.items():
        assert np.array_equal(found, nhwc(want[name]).reshape(found.shape)), name
    return count


def _layers(machine: Layered, program: Program, graph: Graph, want: dict[str, Array]) -> int:
    count, seen = 0, 0
    for note, found in machine.layers(feeds(program, want)):
        expected = note.output.part_of(nhwc(want[note.output.tensor]))
        assert found.dtype == expected.dtype, note.unit
        wrong = int(np.count_nonzero(found != expected))
        assert wrong == 0, f"{graph.name}, {note.unit}: {wrong} of {found.size} bytes differ"
        count, seen = count + found.size, seen + 1
    assert seen == len(program.layers)
    return count
