"""Seconds per unit on this machine's CPU: onnxruntime's profile of the contract form, cached."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort
import platformdirs

from .contract import stage_model
from .cost import Cost
from .errors import CompileError
from .units import Array, Graph

__all__ = ["cache_dir", "cpu_name", "measure"]

REPEATS = 30
WARM_UP = 3
SECONDS_LIMIT = 5.0  # fewer repeats for large models, but never fewer than 5
VERSION = 2  # of the measuring procedure: a change makes cached figures worthless


def cache_dir() -> Path:
    """Where measurements are kept: ``TRIVET_CACHE_DIR``, else the user's cache folder."""
    given = os.environ.get("TRIVET_CACHE_DIR")
    return Path(given) if given else Path(platformdirs.user_cache_dir("trivet"))


def cpu_name() -> str:
    """Model name of this machine's CPU, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


class _Entry(msgspec.Struct):
    seconds: dict[str, float]
    spread: dict[str, float]
    detail: str


def measure(
    graph: Graph, threads: int | None = None, *, progress: Callable[[str], None] | None = None
) -> dict[str, Cost]:
    """Seconds of every unit for one item, measured now or taken from the cache.

    The whole model runs in contract form with profiling on; a unit's time is the sum of its
    nodes' kernel times, the median over the repeats. The cache is keyed by the contract model, the
    thread count, onnxruntime's version and the CPU.
    """
    model = stage_model(graph, [u.name for u in graph.units])
    payload = model.SerializeToString(deterministic=True)
    key = hashlib.sha256(payload)
    for part in (VERSION, threads, ort.__version__, cpu_name(), os.cpu_count()):
        key.update(repr(part).encode())
    path = cache_dir() / "costs" / f"{key.hexdigest()}.json"
    entry = _read(path)
    if entry is None or set(entry.seconds) != {u.name for u in graph.units}:
        if progress is not None:
            progress("measuring the model on the CPU")
        entry = _profile(graph, payload, threads)
        _write(path, entry)
    return {
        name: Cost(seconds, "s", "measured", entry.detail, entry.spread[name])
        for name, seconds in entry.seconds.items()
    }


def _read(path: Path) -> _Entry | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Entry)
    except (OSError, msgspec.DecodeError):
        return None  # not measured yet, or a cache of another release: measure


def _write(path: Path, entry: _Entry) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(msgspec.json.encode(entry))
        os.replace(file.name, path)
    except OSError:
        return  # a cache that cannot be written only costs time


def _profile(graph: Graph, payload: bytes, threads: int | None) -> _Entry:
    owners = _owners(graph)
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = threads or 0
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        try:
            session = ort.InferenceSession(payload, options, providers=["CPUExecutionProvider"])
            feeds = _feeds(graph)
            outputs = [o.name for o in session.get_outputs()]
            started = time.perf_counter()
            runs = 0
            while runs < WARM_UP + REPEATS and (
                runs < WARM_UP + 5 or time.perf_counter() - started < SECONDS_LIMIT
            ):
                session.run(outputs, feeds)
                runs += 1
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        except CompileError:
            raise
        except Exception as e:  # onnxruntime's exceptions have no common public base
            text = " ".join(str(e).split())[:300]
            raise CompileError(
                f"{graph.name}: onnxruntime {ort.__version__} cannot run the model in contract "
                f"form ({text}); check the model with `trivet explain`"
            ) from e
    table = _per_run(events, owners, runs)
    units = [u.name for u in graph.units]
    samples = {name: [row.get(name, 0.0) for row in table[WARM_UP:]] for name in units}
    medians = {name: statistics.median(rows) for name, rows in samples.items()}
    spreads = {name: _spread(rows) for name, rows in samples.items()}
    detail = (
        f"onnxruntime {ort.__version__} kernel times in contract form, {cpu_name()}, "
        f"{threads or 'default'} threads, median of {runs - WARM_UP}, 1 us a kernel at best"
    )
    return _Entry(medians, spreads, detail)


def _feeds(graph: Graph) -> dict[str, Array]:
    """Seeded inputs: full range for bytes, normal for floats, zeros for integers (indices)."""
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {}
    for name in graph.inputs:
        tensor = graph.tensors[name]
        dtype = np.dtype(tensor.dtype)
        if dtype in (np.dtype(np.int8), np.dtype(np.uint8)):
            info = np.iinfo(dtype)
            value: Array = rng.integers(info.min, info.max + 1, tensor.shape).astype(dtype)
        elif dtype.kind == "f":
            value = rng.standard_normal(tensor.shape).astype(dtype)
        else:
            value = np.zeros(tensor.shape, dtype)
        feeds[name] = value
    used = {n for u in graph.units for n in u.inputs}
    return {name: value for name, value in feeds.items() if name in used}


def _owners(graph: Graph) -> dict[str, str]:
    """Node name -> unit, for nodes copied from the model."""
    return {node: unit.name for unit in graph.units for node in (*unit.nodes, unit.name)}


def _owner(name: str, owners: dict[str, str]) -> str | None:
    """A contract node is named after its unit, or unit/part; the longest such name wins."""
    while name:
        if name in owners:
            return owners[name]
        name = name.rpartition("/")[0]
    return None


def _per_run(
    events: Iterable[dict[str, Any]], owners: dict[str, str], runs: int
) -> list[dict[str, float]]:
    """Seconds of every unit in every run: kernel events between two ``model_run`` events."""
    rows: list[dict[str, float]] = []
    nodes = []
    spans = []
    for event in events:
        name = str(event.get("name", ""))
        if name == "model_run":
            spans.append((float(event["ts"]), float(event["ts"]) + float(event["dur"])))
        elif name.endswith("_kernel_time"):
            owner = _owner(name.removesuffix("_kernel_time"), owners)
            if owner is not None:
                nodes.append((float(event["ts"]), owner, float(event["dur"]) * 1e-6))
    if len(spans) != runs:
        raise CompileError(
            f"onnxruntime {ort.__version__}: its profile shows {len(spans)} runs of {runs}; "
            "install a release that pyproject.toml names"
        )
    spans.sort()
    nodes.sort()
    at = 0
    for start, end in spans:
        row: dict[str, float] = {}
        while at < len(nodes) and nodes[at][0] <= end:
            if nodes[at][0] >= start:
                row[nodes[at][1]] = row.get(nodes[at][1], 0.0) + nodes[at][2]
            at += 1
        rows.append(row)
    return rows


def _spread(rows: list[float]) -> float:
    middle = statistics.median(rows)
    if middle <= 0 or len(rows) < 2:
        return 0.0
    low, _, high = statistics.quantiles(rows, n=4)
    return (high - low) / middle
