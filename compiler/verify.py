"""The verify step's material: vectors, what every stage should give for them, and the verdict.

The machines that run programs live in ``sim``; the compiler knows them as a :class:`Verifier` that
is handed in. What it holds them against is the stage's own fallback model, contract form with every
quantised tensor as an output, in onnxruntime.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import onnxruntime as ort

from .errors import CompileError
from .units import Array, Graph

__all__ = [
    "LayerVerdict",
    "StageModels",
    "Vectors",
    "Verifier",
    "expected_outputs",
    "read_arrays",
    "real_vectors",
    "run_onnx",
    "seeded_vectors",
]

SEED = 2026


class LayerVerdict(Protocol):
    """What a verifier says of one layer of a stage, over all vectors."""

    @property
    def node(self) -> str: ...
    @property
    def bytes_compared(self) -> int: ...
    @property
    def bytes_different(self) -> int: ...


class Verifier(Protocol):
    """Runs a program and its tapped fallback side by side; one verdict a layer, in order.

    ``program`` is a TRVP file image, ``taps`` an ONNX model, ``nhwc`` its edges in NHWC order,
    ``feeds`` the stage's inputs as they travel.
    """

    def __call__(
        self,
        program: bytes,
        taps: bytes,
        nhwc: frozenset[str],
        feeds: Sequence[Mapping[str, Array]],
    ) -> Sequence[LayerVerdict]: ...


@dataclass(frozen=True)
class StageModels:
    """A stage as serialised ONNX: as the bundle holds it, and (FPGA stages) with taps.

    A stage that is split has taps in its ``parts`` only.
    """

    onnx: bytes
    taps: bytes | None = None
    parts: tuple[StageModels, ...] = ()


@dataclass(frozen=True)
class Vectors:
    """Items to run: a feed each, ONNX shapes. ``source`` tells where each is from."""

    feeds: tuple[dict[str, Array], ...]
    source: tuple[str, ...]


def read_arrays(path: Path, what: str) -> dict[str, Array]:
    """The arrays of an ``.npz`` file; CompileError for anything else. Never unpickles."""
    try:
        with np.load(_archive(path), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except OSError as e:
        raise CompileError(
            f"{what} {path}: cannot be read ({e.strerror or 'not an .npz file'}); check the path"
        ) from e
    except (ValueError, zipfile.BadZipFile, EOFError) as e:
        if "allow_pickle" in str(e):
            e = ValueError("it holds Python objects")
        raise CompileError(
            f"{what} {path}: not a plain .npz of arrays ({e}); write one with numpy.savez"
        ) from e


def _archive(path: Path) -> Path:
    """The path of a zip; ValueError for another file, which numpy might take for a pickle."""
    if path.is_file() and not zipfile.is_zipfile(path):
        raise ValueError("it is no .npz file")
    return path


def real_vectors(graph: Graph, arrays: Mapping[str, Array], count: int, source: str) -> Vectors:
    """The first ``count`` items of arrays ``[N, *item]`` or, where an item leads with 1, stacked.

    CompileError: a missing input, a wrong dtype or shape.
    """
    columns: dict[str, list[Array]] = {}
    for name in graph.inputs:
        tensor = graph.tensors[name]
        if name not in arrays:
            raise CompileError(
                f"{source}: no array for input {name!r}; it has {', '.join(arrays) or 'none'}"
            )
        array = arrays[name]
        if array.dtype != np.dtype(tensor.dtype):
            raise CompileError(
                f"{source}: array {name!r} is {array.dtype}, the model's input is {tensor.dtype}; "
                "convert it"
            )
        shape = tensor.shape
        if array.shape[1:] == shape:
            items = list(array[:count])
        elif shape[:1] == (1,) and array.shape[1:] == shape[1:]:
            items = [array[k : k + 1] for k in range(min(count, len(array)))]
        else:
            raise CompileError(
                f"{source}: array {name!r} has shape {list(array.shape)}, must be "
                f"[N, {', '.join(map(str, shape[1:] if shape[:1] == (1,) else shape))}]"
            )
        columns[name] = [np.ascontiguousarray(x) for x in items]
    number = min(len(c) for c in columns.values())
    feeds = tuple({n: c[k] for n, c in columns.items()} for k in range(number))
    return Vectors(feeds, (source,) * number)


def seeded_vectors(graph: Graph, count: int) -> Vectors:
    """Fixed random items that use the full range of every quantised input.

    A float input that is quantised at once gets the real values of the full byte range; another
    float input standard normal values; other integers (indices) zeros.
    """
    rng = np.random.default_rng(SEED)
    feeds = tuple({n: _seeded(graph, n, rng) for n in graph.inputs} for _ in range(count))
    return Vectors(feeds, ("seeded",) * count)


def _seeded(graph: Graph, name: str, rng: np.random.Generator) -> Array:
    tensor = graph.tensors[name]
    dtype = np.dtype(tensor.dtype)
    if dtype in (np.dtype(np.int8), np.dtype(np.uint8)):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, tensor.shape).astype(dtype)
    if dtype.kind != "f":
        return np.zeros(tensor.shape, dtype)
    for unit in graph.units:
        quant = graph.tensors[unit.outputs[0]].quant if name in unit.inputs else None
        if quant is not None:
            steps = rng.integers(quant.lo, quant.hi + 1, tensor.shape) - quant.zero_point
            return (steps * float(quant.scale)).astype(dtype)
    return rng.standard_normal(tensor.shape).astype(dtype)


def run_onnx(model: bytes, feeds: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """All outputs of a contract model for each feed, in onnxruntime without optimisation."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        wanted = [i.name for i in session.get_inputs()]
        return [
            dict(zip(names, session.run(names, {n: feed[n] for n in wanted}), strict=True))
            for feed in feeds
        ]
    except Exception as e:  # onnxruntime's exceptions have no common public base
        text = " ".join(str(e).split())[:300]
        raise CompileError(
            f"verify: onnxruntime {ort.__version__} cannot run a stage's contract form ({text}); "
            "report the model, it is a defect of the compiler"
        ) from e


def expected_outputs(
    models: Sequence[StageModels], nhwc: frozenset[str], vectors: Vectors
) -> list[dict[str, Array]]:
    """Every edge tensor of every stage, as it travels, for each item."""
    values: list[dict[str, Array]] = [
        {n: _travel(n, a, nhwc) for n, a in feed.items()} for feed in vectors.feeds
    ]
    for model in models:
        for value, found in zip(values, run_onnx(model.onnx, values), strict=True):
            value.update(found)
    return values


def _travel(name: str, array: Array, nhwc: frozenset[str]) -> Array:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if name in nhwc else array
