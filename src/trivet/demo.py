"""`trivet demo`: the whole way, from the digits network to bytes compared on a simulated board."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from trivet.compiler.driver import Options, compile_model
from trivet.compiler.planner.show import render
from trivet.compiler.rig import default_rig
from trivet.runtime.bundle import Bundle
from trivet.runtime.session import Session
from trivet.sim.build import build
from trivet.sim.rtl_machine import rtl_machines
from trivet.sim.verify import Vectors, verify_bundle, verify_program

__all__ = ["run_demo"]

Array = npt.NDArray[Any]
TEST = 360  # the last images: examples/digits/train.py never saw them
CALIBRATION = 256
LAYER_CHECKS = 10  # images whose every layer boundary is read back from the RTL


class _Clock:
    """Wall-clock seconds of each phase, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = time.perf_counter() - began


def _digits(images: int) -> tuple[Array, Array, Array]:
    """Calibration images, test images [n, 1, 8, 8] float32 and their labels."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as e:
        raise ValueError(
            "demo: scikit-learn is not installed, its digits are the demo's images; "
            "pip install 'trivet[demo]'"
        ) from e
    digits = load_digits()
    x = (digits.images[:, None] / 16.0).astype(np.float32)
    return x[:CALIBRATION], x[-TEST:][:images], digits.target[-TEST:][:images]


def _accuracy(probability: Array, labels: Array) -> float:
    return float((probability.argmax(1) == labels).mean())


def run_demo(
    console: Console, *, images: int = 100, out: Path | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Compile, stream and compare; prints as it goes and returns the figures for ``--json``.

    Parameters
    ----------
    console
        Where it is printed.
    images
        Test images, 1..360. ValueError otherwise.
    out
        Where to keep the bundle; a temporary folder when None.
    quiet
        Print nothing but the progress.
    """
    if not 1 <= images <= TEST:
        raise ValueError(f"demo: --images is {images}, must be 1..{TEST}, the images to test with")
    calibration, x, labels = _digits(images)
    clock = _Clock()
    with (
        TemporaryDirectory() as folder,
        as_file(files("trivet").joinpath("digits.onnx")) as network,
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        ) as progress,
    ):
        bar = progress.add_task("", total=None)

        def show(text: str, done: float | None = None, of: float | None = None) -> None:
            progress.update(bar, description=text, completed=done or 0, total=of)

        target = out or Path(folder) / "digits.trivet"
        data = Path(folder) / "calibration.npz"
        np.savez(data, image=calibration)
        rig = default_rig().with_options(place="fpga")
        with clock.phase("compile"):
            work = compile_model(
                network,
                target,
                Options(rig=rig, calibrate=data),
                verifier=verify_program,
                progress=lambda step, what: show(f"compile: {step} {what}".rstrip()),
            ).work
        assert work.plan is not None
        assert work.programs
        if not quiet:
            console.print(render(work.plan))

        ((stage, program),) = work.programs.items()
        with clock.phase("build the RTL model (cached afterwards)"):
            build(program.config, progress=lambda done, what: show(f"RTL: {what}", done, 1))

        float_session = ort.InferenceSession(network, providers=["CPUExecutionProvider"])
        float_answers = np.asarray(float_session.run(None, {"image": x})[0])
        with clock.phase("int8 on the CPU alone"), Session(target, {"fpga0": "cpu"}) as session:
            cpu_answers = session.run(None, {"image": x})[0]
        answers = []
        with (
            clock.phase("stream over cpu0 and fpga0 (RTL)"),
            Session(target, {"fpga0": "virtual"}, strict=True) as session,
        ):
            for (y,) in session.stream({"image": x[k : k + 1]} for k in range(len(x))):
                answers.append(y)
                show("stream over cpu0 and fpga0 (RTL)", len(answers), len(x))
        board_answers = np.concatenate(answers)

        checked = min(LAYER_CHECKS, len(x))
        feeds = tuple({"image": x[k : k + 1]} for k in range(checked))
        with (
            clock.phase("read back every layer"),
            Bundle.open(target) as bundle,
            rtl_machines() as rtl,
        ):
            report = verify_bundle(
                bundle,
                Vectors(feeds, ("real",) * checked),
                rtl=rtl,
                progress=lambda done, of, what: show("every layer of the RTL", done, of),
            )
    cycles = report.cycles
    assert cycles is not None

    device = next(d for d in rig.devices if d.name == work.plan.stages[stage].device)
    assert device.clock_hz is not None
    assert work.plan.bottleneck is not None
    macs = sum(note.macs for note in program.layers)
    figures: dict[str, Any] = {
        "images": images,
        "accuracy": {
            "float, onnxruntime": _accuracy(float_answers, labels),
            "int8, CPU alone": _accuracy(cpu_answers, labels),
            "int8, CPU and FPGA (RTL)": _accuracy(board_answers, labels),
        },
        "bytes_compared": board_answers.nbytes + report.bytes_compared,
        "bytes_different": report.bytes_different
        + int((board_answers.view(np.uint8) != cpu_answers.view(np.uint8)).sum()),
        "layer_checks": checked,
        "cycles_per_image": cycles,
        "cycles_per_image_predicted": report.cycles_predicted,
        "macs_per_image": macs,
        "mac_utilisation": macs / (cycles * program.config.multipliers),
        "clock_hz": device.clock_hz,
        "board_seconds": cycles * images / device.clock_hz,
        "board_seconds_with_link": work.plan.bottleneck * images,
        "simulator_seconds": clock.seconds["stream over cpu0 and fpga0 (RTL)"],
        "phases": dict(clock.seconds),
        "bundle": None if out is None else str(out),
    }
    if not quiet:
        console.print(_table(figures))
        if out is not None:
            console.print(f"bundle: {out}")
    return figures


def _table(f: dict[str, Any]) -> Table:
    table = Table(title=f"{f['images']} test images", title_justify="left", box=None)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("source", style="dim")
    for name, value in f["accuracy"].items():
        table.add_row(f"accuracy: {name}", f"{value:.3f}", "measured")
    table.add_row("bytes compared", f"{f['bytes_compared']:,}", "counted: RTL against the CPU")
    table.add_row(
        "bytes different",
        f"{f['bytes_different']:,}",
        f"counted; final outputs, and every layer of {f['layer_checks']} images",
    )
    table.add_row("cycles an image", f"{f['cycles_per_image']:,.0f}", "counted in the RTL")
    table.add_row(
        "cycles an image", f"{f['cycles_per_image_predicted']:,}", "predicted, before simulation"
    )
    table.add_row(
        "MAC utilisation",
        f"{f['mac_utilisation']:.1%}",
        f"counted; {f['macs_per_image']:,} useful multiplications an image",
    )
    table.add_row(
        "board time, computing",
        f"{f['board_seconds'] * 1e3:.2f} ms",
        f"counted cycles at {f['clock_hz'] / 1e6:.0f} MHz (the board's clock)",
    )
    table.add_row(
        "board time, with its link",
        f"{f['board_seconds_with_link'] * 1e3:.2f} ms",
        "predicted by the plan",
    )
    table.add_row(
        "simulator time", f"{f['simulator_seconds']:.2f} s", "measured; says nothing of a board"
    )
    for name, seconds in f["phases"].items():
        table.add_row(f"phase: {name}", f"{seconds:.1f} s", "measured")
    return table
