"""Verify: a bundle's programs on a machine, every layer boundary held against its contract form.

The machine is the reference machine or the RTL; the other side is the stage's fallback model with
every quantised tensor as an output, in onnxruntime without optimisation. Both get the same bytes.
"""

from __future__ import annotations

import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from xml.etree import ElementTree

import msgspec
import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from trivet.hdl.isa import LayerNote, Program, predicted_total
from trivet.runtime.bundle import Bundle, BundleError
from trivet.runtime.device import DeviceError
from trivet.runtime.manifest import onnx_shape

from .reference import ReferenceMachine

__all__ = [
    "Counted",
    "CountingMachine",
    "LayerReport",
    "Machine",
    "Report",
    "Vectors",
    "bundle_vectors",
    "file_vectors",
    "junit",
    "verify_bundle",
    "verify_program",
]

# What numpy and zipfile raise for damaged archives, headers and impossible sizes.
_UNREADABLE = (
    OSError, ValueError, AttributeError, EOFError, MemoryError, RuntimeError, SyntaxError,
    tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
Array = npt.NDArray[Any]
Feed = Mapping[str, Array]
Progress = Callable[[int, int, str], None]  # done, of, what


@dataclass(frozen=True)
class Counted:
    """Counters of a run: cycles from its start to its last byte; per instruction cycles, stalls;
    ``interval``: cycles from item to item in a stream, None if the program cannot overlap them."""

    cycles: int
    layers: tuple[tuple[int, int], ...]
    interval: int | None = None


class Machine(Protocol):
    """Runs one program, item after item, and shows every layer's output ``[h, w, c]``."""

    def layers(self, inputs: dict[str, Array]) -> Iterator[tuple[LayerNote, Array]]: ...


class CountingMachine(Machine, Protocol):
    """A machine with counters: a board, or its RTL in a simulator."""

    def counted(self) -> Counted:
        """What the counters say of the last item."""


class LayerReport(msgspec.Struct, frozen=True):
    """One layer over all vectors. ``cycles``: counted for one item, None on the reference machine;
    ``stalls``: counted, or predicted where nothing counts."""

    stage: int
    node: str
    nodes: list[str]
    tensor: str
    macs: int
    cycles: int | None
    cycles_predicted: int
    stalls: int
    bytes_compared: int
    bytes_different: int


class Report(msgspec.Struct, frozen=True):
    """What `trivet verify --json` prints. Cycles, MACs and utilisation are those of one item.

    ``interval``: of the slowest stage, cycles from item to item in a stream whose inputs and
    outputs keep up; None where nothing counts, or a stage's items do not overlap.
    """

    bundle: str
    machine: Literal["reference", "rtl"]
    vectors: int
    sources: dict[str, int]
    bytes_compared: int
    bytes_different: int
    outputs_compared: int
    outputs_different: int
    cycles: int | None
    cycles_predicted: int
    interval: int | None
    interval_predicted: int | None
    macs: int
    mac_utilisation: float | None
    mac_utilisation_source: Literal["counted", "predicted"]
    layers: list[LayerReport]

    @property
    def ok(self) -> bool:
        return self.bytes_different == 0 and self.outputs_different == 0


@dataclass(frozen=True)
class Vectors:
    """Items to verify with: feeds in ONNX order, where each is from, expected outputs if known."""

    feeds: tuple[dict[str, Array], ...]
    sources: tuple[str, ...]
    expected: tuple[dict[str, Array], ...] = ()


def verify_program(
    program: bytes,
    taps: bytes,
    nhwc: frozenset[str],
    feeds: Sequence[Feed],
    *,
    stage: int = 0,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> list[LayerReport]:
    """A report for each layer of a program, over all feeds (a stage's inputs as they travel)."""
    parsed = Program.from_bytes(program)
    machine = machine or ReferenceMachine(parsed)
    counted = getattr(machine, "counted", None)
    session = _session(taps)
    names = [o.name for o in session.get_outputs()]
    wanted = [i.name for i in session.get_inputs()]
    compared: dict[int, int] = {}
    different: dict[int, int] = {}
    for done, feed in enumerate(feeds):
        if progress is not None:
            progress(done, len(feeds), f"stage {stage}, item {done + 1} of {len(feeds)}")
        truth = dict(zip(names, session.run(names, {n: feed[n] for n in wanted}), strict=True))
        inputs = {p.tensor: _hwc(feed[p.tensor], p.tensor in nhwc, p.hwc) for p in parsed.inputs}
        seen = 0
        for note, found in machine.layers(inputs):
            tensor = note.output.tensor
            if tensor not in truth:
                raise BundleError(
                    f"stage {stage}: layer '{note.unit}' has no tensor '{tensor}' in its contract "
                    "form; compile the model again"
                )
            right = note.output.part_of(_nhwc(truth[tensor], tensor in nhwc))
            wrong = int((found.view(np.uint8) != np.ascontiguousarray(right).view(np.uint8)).sum())
            k = note.instruction
            compared[k] = compared.get(k, 0) + right.size
            different[k] = different.get(k, 0) + wrong
            seen += 1
        if seen != len(parsed.layers):
            raise DeviceError(f"stage {stage}: {seen} of {len(parsed.layers)} layers answered")
    counts = counted().layers if counted is not None and feeds else None
    if not parsed.config.counters:
        counts = None  # the engine has none of single layers
    return [
        LayerReport(
            stage=stage,
            node=note.unit,
            nodes=list(note.nodes),
            tensor=note.output.tensor,
            macs=note.macs,
            cycles=None if counts is None else counts[note.instruction][0],
            cycles_predicted=note.cycles,
            stalls=note.stalls if counts is None else counts[note.instruction][1],
            bytes_compared=compared.get(note.instruction, 0),
            bytes_different=different.get(note.instruction, 0),
        )
        for note in parsed.layers
    ]


def verify_bundle(
    bundle: Bundle,
    vectors: Vectors,
    *,
    rtl: Callable[[bytes, str], CountingMachine] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run every stage on the vectors; program stages on the machine as well, layer by layer.

    ``rtl`` makes a machine from a program file and a device's name. Where the bundle stores
    expected outputs, those are compared too.
    """
    manifest = bundle.manifest
    nhwc = frozenset(n for n, t in manifest.tensors.items() if t.layout == "NHWC")
    values = [{n: _travel(a, n in nhwc) for n, a in feed.items()} for feed in vectors.feeds]
    layers: list[LayerReport] = []
    programs: dict[int, Program] = {}
    cycles: dict[int, int] = {}
    intervals: list[int | None] = []
    for info in manifest.stages:
        if info.kind == "program":
            program = bundle.read(info.member)
            try:
                parsed = Program.from_bytes(program)
            except ValueError as e:
                raise BundleError(
                    f"{bundle.path}: stage {info.index}: {e}; compile the model again"
                ) from e
            programs[info.index] = parsed
            device = bundle.plan().stages[info.index].device
            machine = None if rtl is None else rtl(program, device)
            layers += verify_program(
                program,
                bundle.read(f"taps/{info.index}.onnx"),
                nhwc,
                values,
                stage=info.index,
                machine=machine,
                progress=progress,
            )
            if machine is not None:
                cycles[info.index] = machine.counted().cycles
                intervals.append(machine.counted().interval)
        session = _session(bundle.read(info.fallback or info.member))
        for value in values:
            try:
                found = session.run(info.outputs, {n: value[n] for n in info.inputs})
            except Exception as e:  # onnxruntime's exceptions have no common public base
                text = " ".join(str(e).split())[:300]
                raise BundleError(
                    f"{bundle.path}: stage {info.index} cannot run ({text}); "
                    "compile the model again"
                ) from e
            value.update(zip(info.outputs, found, strict=True))
    compared = different = 0
    for value, expected in zip(values, vectors.expected, strict=False):
        for name, right in expected.items():
            have = np.ascontiguousarray(value[name])
            if name in nhwc:
                have = np.ascontiguousarray(have.transpose(0, 3, 1, 2))
            compared += right.nbytes
            left_bytes, right_bytes = have.tobytes(), np.ascontiguousarray(right).tobytes()
            different += sum(a != b for a, b in zip(left_bytes, right_bytes, strict=True))
    counted = None if rtl is None else cycles
    return _report(bundle, vectors, layers, programs, counted, intervals, (compared, different))


def _report(
    bundle: Bundle,
    vectors: Vectors,
    layers: list[LayerReport],
    programs: dict[int, Program],
    counted: dict[int, int] | None,
    intervals: list[int | None],
    outputs: tuple[int, int],
) -> Report:
    predicted = {k: predicted_total(p.config, p.instructions) for k, p in programs.items()}
    macs = sum(x.macs for x in layers)
    room = sum(
        cycles * programs[k].config.multipliers for k, cycles in (counted or predicted).items()
    )
    sources = {s: vectors.sources.count(s) for s in dict.fromkeys(vectors.sources)}
    return Report(
        bundle=bundle.path.name,
        machine="reference" if counted is None else "rtl",
        vectors=len(vectors.feeds),
        sources=sources,
        bytes_compared=sum(x.bytes_compared for x in layers),
        bytes_different=sum(x.bytes_different for x in layers),
        outputs_compared=outputs[0],
        outputs_different=outputs[1],
        cycles=None if counted is None else sum(counted.values()),
        cycles_predicted=sum(predicted.values()),
        interval=_slowest(intervals),
        interval_predicted=_slowest([p.interval for p in programs.values()]),
        macs=macs,
        mac_utilisation=macs / room if room else None,
        mac_utilisation_source="predicted" if counted is None else "counted",
        layers=layers,
    )


def _slowest(intervals: list[int | None]) -> int | None:
    known = [cycles for cycles in intervals if cycles is not None]
    return max(known) if known and len(known) == len(intervals) else None


def bundle_vectors(bundle: Bundle, count: int | None = None) -> Vectors:
    """The bundle's own vectors; more than it holds are seeded full-range ones without answers."""
    stored = bundle.vectors()
    ports = bundle.manifest.model
    source = [str(s) for s in stored.get("source", np.empty(0, "U1"))]
    held = len(source)
    number = held if count is None else count
    feeds = [{p.name: stored[f"input.{p.name}"][k] for p in ports.inputs} for k in range(held)]
    expected = [{p.name: stored[f"output.{p.name}"][k] for p in ports.outputs} for k in range(held)]
    rng = np.random.default_rng(2027)
    while len(feeds) < number:
        feeds.append({p.name: _random(bundle, p.name, rng) for p in ports.inputs})
        source.append("seeded")
    return Vectors(tuple(feeds[:number]), tuple(source[:number]), tuple(expected[:number]))


def file_vectors(bundle: Bundle, path: str | os.PathLike[str]) -> Vectors:
    """Items of an ``.npz`` file with an array ``[N, ...]`` for each input; ValueError otherwise."""
    path = Path(path)
    try:
        if path.exists() and not (path.is_file() and zipfile.is_zipfile(path)):
            raise ValueError("it is no .npz file")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except _UNREADABLE as e:
        raise ValueError(
            f"vectors {path}: not a readable .npz of arrays ({e}); write one with numpy.savez"
        ) from e
    columns: dict[str, list[Array]] = {}
    for port in bundle.manifest.model.inputs:
        shape = port.item_shape()
        if port.name not in arrays:
            raise ValueError(
                f"vectors {path}: no array for input '{port.name}'; it has "
                f"{', '.join(arrays) or 'none'}; add it"
            )
        array = arrays[port.name]
        if array.dtype != np.dtype(port.dtype):
            raise ValueError(
                f"vectors {path}: array '{port.name}' is {array.dtype}, must be {port.dtype}; "
                "convert it"
            )
        if array.shape[1:] == shape:
            columns[port.name] = list(array)
        elif array.shape[1:] == shape[1:] and shape[:1] == (1,):
            columns[port.name] = [array[k : k + 1] for k in range(len(array))]
        else:
            raise ValueError(
                f"vectors {path}: array '{port.name}' has shape {list(array.shape)}, must be "
                f"[N, {', '.join(str(d) for d in shape[1:])}]; reshape it"
            )
    count = min((len(c) for c in columns.values()), default=0)
    if count == 0:
        raise ValueError(f"vectors {path}: holds no item; give at least one")
    feeds = tuple({n: c[k] for n, c in columns.items()} for k in range(count))
    return Vectors(feeds, ("file",) * count)


def junit(report: Report) -> bytes:
    """The report as JUnit XML: one test case a layer, and one for the final outputs."""
    suite = ElementTree.Element("testsuite", name=f"trivet verify {report.bundle}")
    cases = [(x.node, x.bytes_compared, x.bytes_different) for x in report.layers]
    if report.outputs_compared:
        cases.append(("model outputs", report.outputs_compared, report.outputs_different))
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(1 for _, _, different in cases if different)))
    for name, compared, different in cases:
        case = ElementTree.SubElement(suite, "testcase", name=name, classname=report.machine)
        if different:
            text = f"{different} of {compared} bytes differ"
            ElementTree.SubElement(case, "failure", message=text)
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))


def _session(model: bytes) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as e:  # onnxruntime's exceptions have no common public base
        text = " ".join(str(e).split())[:300]
        raise BundleError(
            f"onnxruntime {ort.__version__} cannot load a stage ({text}); compile the model again"
        ) from e


def _travel(array: Array, nhwc: bool) -> Array:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1) if nhwc else array)


def _hwc(array: Array, nhwc: bool, hwc: tuple[int, int, int]) -> Array:
    """A stage model's tensor as the engine has it, ``[h, w, c]``."""
    return _nhwc(array, nhwc).reshape(hwc)


def _nhwc(array: Array, nhwc: bool) -> Array:
    moved = array.transpose(0, 2, 3, 1) if array.ndim == 4 and not nhwc else array
    return np.ascontiguousarray(moved)


def _random(bundle: Bundle, name: str, rng: np.random.Generator) -> Array:
    port = next(p for p in bundle.manifest.model.inputs if p.name == name)
    dtype = np.dtype(port.dtype)
    tensor = bundle.manifest.tensors.get(name)
    shape = port.item_shape() if tensor is None else onnx_shape(tensor)
    if dtype in (np.dtype(np.int8), np.dtype(np.uint8)):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, shape).astype(dtype)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return np.zeros(shape, dtype)
