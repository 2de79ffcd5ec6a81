"""What the runtime costs, and whether it streams at the speed that a plan promises.

Paired where two things are compared: both run in one process, in alternating blocks, so that a
busy machine slows both. CPU is the process's, all threads. Bars are those of the runtime's design;
one that is missed is printed in red and is no error.

    python benchmarks/runtime.py [PART ...] [--model M.onnx] [--threads N] [--soak MINUTES] [--json]

Parts: model (light_resnet50 of the onnx package), tiny, stages, boards, replicas, rebalance, soak;
without any, all but the soak.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

from trivet import Session
from trivet.runtime.bundle import (
    BundleWriter,
    EngineInfo,
    ModelInfo,
    PortInfo,
    Rig,
    RigDevice,
    TensorInfo,
)
from trivet.runtime.devices.recorded import RecordedDevice

DTYPES = {"float": "float32", "double": "float64"}
ENGINE = "e" * 64
SHAPE = [1, 16]
Feed = dict[str, "np.ndarray[Any, Any]"]


class Report:
    """Figures with their bars, printed as they come."""

    def __init__(self, quiet: bool) -> None:
        self.rows: list[dict[str, Any]] = []
        self._screen = Console(quiet=quiet, soft_wrap=True, highlight=False)

    def say(self, text: str) -> None:
        self._screen.print(text, markup=False)

    def add(self, name: str, value: float, unit: str, bar: float, *, least: bool = False) -> None:
        met = value >= bar if least else value <= bar
        self.rows.append({"name": name, "value": value, "unit": unit, "bar": bar, "met": met})
        sign = ">=" if least else "<="
        text = f"  {name}: {value:.4g} {unit}, bar {sign} {bar:g}{'' if met else ', MISSED'}"
        self._screen.print(text, style=None if met else "red", markup=False)


def affine(op: str, x: str, y: str) -> bytes:
    """``y = op(x, 2)`` on 16 floats."""
    constant = numpy_helper.from_array(np.float32([2.0]), "c")
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, SHAPE) for n in (x, y)]
    node = helper.make_node(op, [x, "c"], [y])
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], [constant])
    opset = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString())


def fixed(model: bytes) -> bytes:
    """A symbolic batch becomes 1, as in a compiled bundle."""
    proto = onnx.load_from_string(model)
    for value in (*proto.graph.input, *proto.graph.output):
        for dim in value.type.tensor_type.shape.dim[:1]:
            if not dim.dim_value:
                dim.dim_value = 1
    return bytes(proto.SerializeToString())


def plain_session(model: bytes, threads: int) -> ort.InferenceSession:
    """As the runtime's CPU device makes it."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def ports_of(nodes: Sequence[Any]) -> list[PortInfo]:
    def dtype(text: str) -> str:
        inner = text.removeprefix("tensor(").removesuffix(")")
        return DTYPES.get(inner, inner)

    shapes = [[d if isinstance(d, int) else 1 for d in node.shape] for node in nodes]
    return [PortInfo(n.name, dtype(n.type), s) for n, s in zip(nodes, shapes, strict=True)]


def write_model(model: bytes, plain: ort.InferenceSession, threads: int, path: Path) -> Feed:
    """A bundle of the model as one CPU stage; a random feed for it."""
    inputs, outputs = ports_of(plain.get_inputs()), ports_of(plain.get_outputs())
    plan = {"version": 1, "stages": [{"index": 0, "device": "cpu0"}]}
    writer = BundleWriter(
        trivet="benchmark",
        model=ModelInfo("0" * 64, inputs, outputs),
        plan=json.dumps(plan).encode(),
        rig=Rig({"cpu0": RigDevice("cpu", threads=threads)}),
    )
    writer.add_onnx_stage([p.name for p in inputs], [p.name for p in outputs], model)
    for port in (*inputs, *outputs):
        writer.add_tensor(port.name, TensorInfo(port.dtype, list(port.item_shape())))
    writer.write(path)
    rng = np.random.default_rng(1)
    return {p.name: rng.integers(0, 100, p.item_shape()).astype(p.dtype) for p in inputs}


def write_chain(path: Path, stages: Sequence[tuple[str, float]], threads: int) -> None:
    """A bundle of tiny stages: (devices joined by "+", planned seconds of an item).

    A board's stage is a program, with "!" a model that cannot move to the CPU.
    """
    names = [f"t{k}" for k in range(len(stages) + 1)]
    placed = [(devices.rstrip("!").split("+"), seconds) for devices, seconds in stages]
    plan = {
        "version": 1,
        "stages": [
            {"index": k, "device": devices[0], "compute": seconds}
            for k, (devices, seconds) in enumerate(placed)
        ],
    }
    rig = {"cpu0": RigDevice("cpu", threads=threads)}
    boards = {d for devices, _ in placed for d in devices if d != "cpu0"}
    rig |= {name: RigDevice("fpga", attach="recorded") for name in sorted(boards)}
    ports = [[PortInfo(n, "float32", list(SHAPE))] for n in (names[0], names[-1])]
    writer = BundleWriter(
        trivet="benchmark",
        model=ModelInfo("0" * 64, *ports),
        plan=json.dumps(plan).encode(),
        rig=Rig(rig),
    )
    for k, (devices, _) in enumerate(placed):
        x, y = names[k], names[k + 1]
        code, on = affine("Add", x, y), devices if len(devices) > 1 else ()
        if devices[0] == "cpu0" or stages[k][0].endswith("!"):
            writer.add_onnx_stage([x], [y], code, members=on)
        else:
            writer.add_program_stage([x], [y], b"none", engine=ENGINE, fallback=code, members=on)
            writer.add_engine(ENGINE, EngineInfo({}))
    for name in names:
        writer.add_tensor(name, TensorInfo("float32", list(SHAPE)))
    writer.write(path)


def timed(work: Callable[[], object], items: int) -> tuple[float, float]:
    """Seconds and CPU seconds of an item."""
    cpu, began = time.process_time(), time.perf_counter()
    work()
    return (time.perf_counter() - began) / items, (time.process_time() - cpu) / items


def paired(
    ways: dict[str, Callable[[], object]], items: int, blocks: int
) -> dict[str, list[tuple[float, float]]]:
    """Blocks of all ways in turn, the first of each left out; the order turns, too."""
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    gc.disable()
    try:
        for block in range(blocks + 1):
            names = list(ways)
            for way in names[block % len(names) :] + names[: block % len(names)]:
                found[way].append(timed(ways[way], items))
    finally:
        gc.enable()
    return {way: values[1:] for way, values in found.items()}


def compare(
    report: Report, name: str, model: bytes, threads: int, folder: Path, items: int, blocks: int
) -> dict[str, list[tuple[float, float]]]:
    """A model through a Session and through onnxruntime; bytes must be equal."""
    plain = plain_session(model, threads)
    path = folder / f"{name}.trivet"
    feed = write_model(model, plain, threads, path)
    count = range(items)
    with Session(path) as session:
        for ours, theirs in zip(session.run(None, feed), plain.run(None, feed), strict=True):
            if ours.tobytes() != theirs.tobytes():
                sys.exit(f"{name}: the outputs differ")
        times = paired(
            {
                "onnxruntime": lambda: [plain.run(None, feed) for _ in count],
                "Session.run": lambda: [session.run(None, feed) for _ in count],
                "Session.stream": lambda: [None for _ in session.stream(feed for _ in count)],
            },
            items,
            blocks,
        )
    report.say(f"{name}: {threads} threads, {blocks} blocks of {items} items")
    for way, values in times.items():
        wall, cpu = (statistics.median(column) * 1e6 for column in zip(*values, strict=True))
        report.say(f"  {way:15s} {wall:10.1f} us an item, {cpu:10.1f} us of CPU")
    return times


def ratio(times: dict[str, list[tuple[float, float]]], way: str, which: int) -> float:
    """Median of the blocks' ratios to onnxruntime: of seconds (0) or CPU seconds (1)."""
    pairs = zip(times[way], times["onnxruntime"], strict=True)
    return statistics.median(ours[which] / theirs[which] for ours, theirs in pairs)


def more(times: dict[str, list[tuple[float, float]]], way: str) -> float:
    """Median of the blocks' differences to onnxruntime, CPU microseconds."""
    pairs = zip(times[way], times["onnxruntime"], strict=True)
    return statistics.median(ours[1] - theirs[1] for ours, theirs in pairs) * 1e6


def part_model(report: Report, folder: Path, threads: int, given: Path | None) -> None:
    path = given or Path(onnx.__file__).parent / "backend/test/data/light/light_resnet50.onnx"
    model = fixed(path.read_bytes())
    times = compare(report, path.name, model, threads, folder, items=5, blocks=20)
    for way in ("Session.run", "Session.stream"):
        report.add(f"{way}, CPU over onnxruntime's", ratio(times, way, 1), "", 1.03)
        report.add(f"{way}, seconds over onnxruntime's", ratio(times, way, 0), "", 1.03)


def part_tiny(report: Report, folder: Path, threads: int) -> None:
    model = affine("Add", "x", "y")
    times = compare(report, "tiny", model, threads, folder, items=1000, blocks=10)
    for way in ("Session.run", "Session.stream"):
        report.add(f"{way}, CPU more than onnxruntime", more(times, way), "us an item", 60.0)


def part_stages(report: Report, folder: Path, threads: int) -> None:
    items, counts = 1000, (1, 2, 4, 6)
    sessions = []
    for count in counts:
        path = folder / f"chain{count}.trivet"
        write_chain(path, [("cpu0", 0.0)] * count, threads)
        sessions.append(Session(path))
    feed = {"t0": np.zeros(SHAPE, np.float32)}
    plain = plain_session(affine("Add", "x", "y"), threads)

    def streamed(session: Session) -> Callable[[], object]:
        return lambda: [None for _ in session.stream(feed for _ in range(items))]

    ways = {str(c): streamed(s) for c, s in zip(counts, sessions, strict=True)}
    ways["onnxruntime"] = lambda: [plain.run(None, {"x": feed["t0"]}) for _ in range(items)]
    times = paired(ways, items, 10)
    for session in sessions:
        session.close()
    report.say(f"stages: streams of {items} items through {', '.join(map(str, counts))} tiny ones")
    cpu = {c: statistics.median(b[1] for b in times[str(c)]) * 1e6 for c in counts}
    alone = statistics.median(b[1] for b in times["onnxruntime"]) * 1e6
    for count, value in cpu.items():
        report.say(f"  {count} stages: {value:.1f} us of CPU an item")
    slope = statistics.linear_regression(list(map(float, counts)), list(cpu.values())).slope
    report.say(f"  onnxruntime alone: {alone:.1f} us of CPU an item")
    report.add("CPU of a further stage, its onnxruntime in it", slope, "us an item", 50.0)


def throughput(path: Path, seconds: float) -> float:
    """Items a second of a stream of so long, its first tenth left out."""
    feed = {"t0": np.zeros(SHAPE, np.float32)}
    with Session(path) as session:
        list(session.stream(feed for _ in range(10)))  # records the boards' answers
        begun = time.perf_counter()

        def feeds() -> Iterator[Feed]:
            while time.perf_counter() < begun + seconds:
                yield feed

        marks = [time.perf_counter() for _ in session.stream(feeds())]
    start = len(marks) // 10
    return (len(marks) - 1 - start) / (marks[-1] - marks[start])


def part_boards(report: Report, folder: Path, threads: int, seconds: float) -> None:
    report.say("boards: CPU and two recorded boards, stages cpu0, fpga0, cpu0, fpga1, cpu0")
    for pace in (0.005, 0.001):
        path = folder / f"boards{pace}.trivet"
        stages = [("cpu0", 1e-5), ("fpga0", pace), ("cpu0", 1e-5), ("fpga1", pace), ("cpu0", 1e-5)]
        write_chain(path, stages, threads)
        reached = throughput(path, seconds) * pace
        report.add(f"share of the planned {1 / pace:g} items/s", reached, "", 0.95, least=True)


def part_replicas(report: Report, folder: Path, threads: int, seconds: float) -> None:
    report.say("replicas: a stage on one recorded board, and on two")
    pace, rates = 0.005, []
    for members in ("fpga0", "fpga0+fpga1"):
        path = folder / f"{members}.trivet"
        write_chain(path, [("cpu0", 1e-5), (members, pace)], threads)
        rates.append(throughput(path, seconds))
    report.add("throughput of two over one", rates[1] / rates[0], "", 1.9, least=True)


def fresh_optimum(seconds: Sequence[dict[str, float]]) -> float:
    """Seconds from item to item of the planner's best places for whole stages."""
    from trivet.compiler.cost import Cost
    from trivet.compiler.planner.replan import PlacedStage, replan

    stages = [
        PlacedStage(
            (f"t{k}",),
            (f"t{k + 1}",),
            (next(iter(row)),),
            {name: Cost(value, "s", "measured", "here") for name, value in row.items()},
        )
        for k, row in enumerate(seconds)
    ]
    rig = {name: ("cpu" if name == "cpu0" else "fpga", name) for row in seconds for name in row}
    entries = [{"index": k, "device": s.members[0]} for k, s in enumerate(stages)]
    return replan({"stages": entries}, stages, rig).after


def part_rebalance(report: Report, folder: Path, threads: int) -> None:
    """The slow stage may go to the CPU, the other board's (as ONNX alone) may not."""
    pace = 0.004
    report.say(
        f"rebalance: of two boards with {pace * 1e3:g} ms an item one becomes 5 times slower"
    )
    path = folder / "rebalance.trivet"
    write_chain(path, [("cpu0", 1e-5), ("fpga0", pace), ("cpu0", 1e-5), ("fpga1!", pace)], threads)
    feed = {"t0": np.zeros(SHAPE, np.float32)}
    marks: list[float] = []
    slowed = float("inf")
    with Session(path, rebalance=True) as session:

        def feeds() -> Iterator[Feed]:
            while time.perf_counter() < slowed + 12.0:
                yield feed

        for outputs in session.stream(feeds()):
            assert float(outputs[0][0, 0]) == 8.0
            marks.append(time.perf_counter())
            if len(marks) == 500:
                (board,) = (
                    lane.device for lane in session._pipeline._flow.lanes if lane.name == "fpga0"
                )
                assert isinstance(board, RecordedDevice)
                board._seconds *= 5
                slowed = time.perf_counter()
        (row,) = (r for r in session.last_reports if (r.device, r.attach) == ("fpga0", "cpu"))
        for move in session.moves:
            report.say(f"  {move}")
    tiny = row.seconds / row.items
    best = fresh_optimum(
        [{"cpu0": tiny}, {"fpga0": 5 * pace, "cpu0": tiny}, {"cpu0": tiny}, {"fpga1": pace}]
    )
    ends = np.array(marks)
    starts = np.arange(slowed, slowed + 11.0, 0.1)
    rates = [np.count_nonzero((ends >= t) & (ends < t + 1.0)) * best for t in starts]
    short = [t - slowed for t, rate in zip(starts, rates, strict=True) if rate < 0.9]
    report.say(f"  a fresh optimal plan: {best * 1e3:.4g} ms from item to item")
    report.add(
        "until always 90 % of its throughput",
        max(short, default=0.0),
        "s",
        10.0,
    )
    late = ends[ends > slowed + 10.0]
    report.add(
        "share of its throughput after 10 s",
        (len(late) - 1) / (late[-1] - late[0]) * best,
        "",
        0.9,
        least=True,
    )


def resident_bytes() -> int:
    """Of this process (Linux)."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def part_soak(report: Report, folder: Path, threads: int, minutes: float) -> None:
    report.say(f"soak: {minutes:g} minutes of stream, run, submit and run_async")
    path = folder / "soak.trivet"
    stages = [("cpu0", 1e-5), ("fpga0+fpga1", 5e-4), ("cpu0", 1e-5)]
    write_chain(path, stages, threads)
    feed = {"t0": np.zeros(SHAPE, np.float32)}
    until = time.monotonic() + 60 * minutes
    done, start = itertools.count(), 0
    with Session(path) as session:
        for turn in itertools.count():
            for _ in session.stream(feed for _ in range(500)):
                next(done)
            futures = [session.submit(feed) for _ in range(100)]
            for future in futures:
                future.result()
                next(done)
            for _ in range(50):
                session.run_async(None, feed, lambda outputs, data, error: next(done))
                session.run(None, feed)
            if turn == 20:
                gc.collect()
                start = resident_bytes()
            if time.monotonic() > until and turn > 20:
                break
        gc.collect()
        grown = (resident_bytes() - start) / 1e6
    report.say(f"  {next(done):,} items; {start / 1e6:.0f} MB after warming up")
    report.add("growth of resident memory", grown, "MB", 20.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = ("model", "tiny", "stages", "boards", "replicas", "rebalance")
    parser.add_argument("part", nargs="*", choices=[*parts, "soak", []], help="default: no soak")
    parser.add_argument("--model", type=Path, help="instead of light_resnet50")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each paced stream")
    parser.add_argument("--soak", type=float, default=10.0, help="minutes of the soak")
    parser.add_argument("--json", action="store_true", help="print JSON on stdout alone")
    given = parser.parse_args()
    report = Report(quiet=given.json)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    report.say(f"onnxruntime {ort.__version__}, {cores} cores, load {load:.1f}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in given.part or parts:
            if part == "model":
                part_model(report, folder, given.threads, given.model)
            elif part == "tiny":
                part_tiny(report, folder, given.threads)
            elif part == "stages":
                part_stages(report, folder, given.threads)
            elif part == "boards":
                part_boards(report, folder, given.threads, given.seconds)
            elif part == "replicas":
                part_replicas(report, folder, given.threads, given.seconds)
            elif part == "rebalance":
                part_rebalance(report, folder, given.threads)
            else:
                part_soak(report, folder, given.threads, given.soak)
    if given.json:
        json.dump(report.rows, sys.stdout, indent=1)
        sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
