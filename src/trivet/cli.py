"""The command line. It joins the parts, so it is the one place that may import all of them.

Everything heavy is imported inside the commands: ``trivet run`` works without the compiler's
dependencies, and ``trivet --help`` answers at once.
"""

from __future__ import annotations

import sys
import traceback
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from trivet._cli_common import (
    check_target,
    console,
    device_options,
    fail,
    pairs,
    set_verbose,
    shape_options,
    user_text,
    verbose,
)

__all__ = ["app", "main"]

# The runtime's registry reads the same entry points; importing it would import numpy.
_ATTACHES = sorted(point.name for point in entry_points(group="trivet.devices"))

app = typer.Typer(
    name="trivet",
    help="From an ONNX model to CPU, GPU and FPGA: a proven plan, exact bytes everywhere.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


class _Command(TyperCommand):
    """A command whose usage line names arguments without Typer's braces."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


def _version(wanted: bool) -> None:
    if wanted:
        from trivet import __version__

        typer.echo(f"trivet {__version__}")
        raise typer.Exit


Verbose = Annotated[
    bool,
    typer.Option("-v", "--verbose", help="Show tracebacks of errors.", callback=set_verbose),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else there.")]
Model = Annotated[Path, typer.Argument(help="An ONNX model.", metavar="MODEL.onnx")]
Bundle = Annotated[Path, typer.Argument(help="A compiled bundle.", metavar="OUT.trivet")]
BoardOption = Annotated[
    str | None,
    typer.Option("--board", help="Plan for cpu0 and one virtual board of this name."),
]
RigOption = Annotated[
    Path | None,
    typer.Option("--rig", help="The devices and links at hand, a TOML file.", metavar="RIG.toml"),
]
Place = Annotated[
    str | None,
    typer.Option(
        "--place",
        help="[b]auto[/b]: the optimum; [b]fpga[/b]: as many MACs on FPGAs as can go there.",
        metavar="auto|fpga",
    ),
]
Pin = Annotated[
    list[str] | None,
    typer.Option(
        "--pin", help="Put a node (name or pattern) on a device; repeatable.", metavar="NODE=DEVICE"
    ),
]
Calibrate = Annotated[
    Path | None,
    typer.Option(
        "--calibrate", help="Real samples for each input; quantises float models.", metavar="X.npz"
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Fix a dynamic dimension; repeatable.", metavar="NAME=DIM"),
]


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
    verbose: Verbose = False,
) -> None:
    """From an ONNX model to CPU, GPU and FPGA: a proven plan, exact bytes everywhere."""


@app.command("compile", cls=_Command)
def compile_(
    model: Model,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", help="The bundle.", metavar="OUT.trivet")
    ] = None,
    board: BoardOption = None,
    rig: RigOption = None,
    place: Place = None,
    pin: Pin = None,
    calibrate: Calibrate = None,
    shape: Shape = None,
    vectors: Annotated[
        Path | None,
        typer.Option(
            "--vectors",
            help="Real inputs to verify with and to keep in the bundle.",
            metavar="X.npz",
        ),
    ] = None,
    no_bitstream: Annotated[
        bool,
        typer.Option("--no-bitstream", help="With --board: leave the bitstream out (minutes)."),
    ] = False,
    stop_after: Annotated[
        str | None,
        typer.Option(
            "--stop-after",
            help="Stop after load, normalise, quantise, map, cost, plan, lower, verify, build or "
            "bundle, and show that step's result.",
            metavar="STEP",
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            help="Keep to this plan (of `trivet plan --json`, edited); it is checked again.",
            metavar="PLAN.json",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="With --plan: it must be as good as the best.")
    ] = False,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="FPGAs get the engine that trivet tune picks for the model."),
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compile a model to a bundle: plan, programs, stage models, verified vectors."""
    from trivet._cli_compile import compile_command

    options = device_options(board, rig, place, pin)
    compile_command(
        model,
        out,
        options,
        calibrate=calibrate,
        shapes=shape_options(shape),
        vectors=vectors,
        # Whoever names a board wants its bitstream; the default rig is a simulated board.
        bitstream=False if no_bitstream else (True if board is not None else None),
        stop_after=stop_after,
        plan=plan,
        strict=strict,
        tune=tune,
        as_json=json,
    )


@app.command(cls=_Command)
def plan(
    source: Annotated[
        Path,
        typer.Argument(
            help="An ONNX model or a workload (.json) to plan, or a bundle whose plan to show."
        ),
    ],
    board: BoardOption = None,
    rig: RigOption = None,
    place: Place = None,
    pin: Pin = None,
    calibrate: Calibrate = None,
    shape: Shape = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", min=1, help="Up to N copies of a stage, on equal devices.", metavar="N"
        ),
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show where every layer goes, what it costs, the bottleneck and the bound."""
    from trivet._cli_compile import plan_command

    options = device_options(board, rig, place, pin)
    plan_command(
        source,
        options,
        calibrate=calibrate,
        shapes=shape_options(shape),
        replicas=replicas,
        as_json=json,
    )


@app.command(cls=_Command)
def explain(
    model: Model,
    board: BoardOption = None,
    rig: RigOption = None,
    calibrate: Calibrate = None,
    shape: Shape = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Say for every layer on which devices it can run, and if not, why not."""
    from trivet._cli_compile import explain_command

    explain_command(
        model,
        device_options(board, rig, None, None),
        calibrate=calibrate,
        shapes=shape_options(shape),
        as_json=json,
    )


@app.command(cls=_Command)
def tune(
    model: Model,
    board: Annotated[str, typer.Option("--board", help="The board whose budget and clock count.")],
    target_fps: Annotated[
        float | None,
        typer.Option(
            "--target-fps",
            help="The smallest engine that makes so many items a second.",
            metavar="F",
        ),
    ] = None,
    calibrate: Calibrate = None,
    shape: Shape = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Pick an engine for a model within a board's budget: speed against resources."""
    from trivet._cli_tune import tune_command

    tune_command(
        model,
        board,
        target=target_fps,
        calibrate=calibrate,
        shapes=shape_options(shape),
        as_json=json,
    )


@app.command(cls=_Command)
def run(
    bundle: Bundle,
    input: Annotated[
        Path, typer.Option("--input", "-i", help="An array for each input.", metavar="IN.npz")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the outputs go.", metavar="OUT.npz")
    ],
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            help=f"What stands behind a device: {', '.join(_ATTACHES)}; repeatable.",
            metavar="NAME=ATTACH",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="A failing device is an error, no CPU fallback.")
    ] = False,
    rebalance: Annotated[
        bool,
        typer.Option("--rebalance", help="Share stages that are too slow with the CPU, live."),
    ] = False,
    scrub: Annotated[
        bool,
        typer.Option(
            "--scrub", help="Check what the devices hold, and load boards anew, before and after."
        ),
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Stream inputs through the bundle's stages."""
    from trivet._cli_run import run_command

    attach = dict(pairs(device, "--device", "NAME=ATTACH"))
    run_command(
        bundle, input, output, attach, strict=strict, rebalance=rebalance, scrub=scrub, as_json=json
    )


@app.command(cls=_Command)
def replan(
    bundle: Bundle,
    from_trace: Annotated[
        Path,
        typer.Option(
            "--from-trace",
            help="A trace of a stream, or what `trivet run --json` printed.",
            metavar="T.json",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The bundle with the new plan.", metavar="NEW.trivet"),
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Place a bundle's stages anew, by what they took; nothing is compiled again."""
    from trivet._cli_replan import replan_command

    replan_command(bundle, from_trace, output, as_json=json)


@app.command(cls=_Command)
def verify(
    bundle: Bundle,
    rtl: Annotated[
        bool, typer.Option("--rtl", help="On the board's RTL in a simulator, counters read.")
    ] = False,
    vectors: Annotated[
        str | None,
        typer.Option(
            "--vectors", help="How many vectors, or a file with inputs.", metavar="N|FILE.npz"
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", help="Write a JUnit report.", metavar="FILE.xml")
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compare every layer's bytes with the contract form; exit 1 when any byte differs."""
    from trivet._cli_run import verify_command

    verify_command(bundle, rtl=rtl, vectors=vectors, junit=junit, as_json=json)


@app.command(cls=_Command)
def build(
    bundle: Annotated[
        Path | None,
        typer.Argument(
            help="Build the engine of this bundle, and put the bitstream into it.",
            metavar="[OUT.trivet]",
            show_default=False,
        ),
    ] = None,
    board: Annotated[str, typer.Option("--board", help="The board to build for.")] = "ulx3s-85f",
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds",
            help="Up to N placements; the first that reaches the clock, else the best.",
            metavar="N",
        ),
    ] = 1,
    time_limit: Annotated[
        float, typer.Option("--time-limit", help="Minutes for each run of a tool.")
    ] = 20.0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep netlists in the build's folder too.")
    ] = False,
    folder: Annotated[
        bool, typer.Option("--folder", help="Print the build's folder and nothing else on stdout.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Copy the bitstream there.", metavar="FILE"),
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Build a board's bitstream with open tools: the board's own engine, or a bundle's."""
    from trivet._cli_build import build_command

    build_command(
        bundle,
        board,
        seeds=seeds,
        limit_minutes=time_limit,
        keep=keep,
        only_folder=folder,
        output=output,
        as_json=json,
    )


@app.command(cls=_Command)
def program(
    bundle: Bundle,
    board: Annotated[str, typer.Option("--board", help="The board that is connected.")],
    yes: Annotated[
        bool, typer.Option("--yes", help="Really program it; without, the command is printed.")
    ] = False,
    flash: Annotated[
        bool, typer.Option("--flash", help="Into the flash, not only until power is off.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Check a bundle's bitstream for a board and print (with --yes: run) openFPGALoader."""
    from trivet._cli_build import program_command

    program_command(bundle, board, yes=yes, flash=flash, as_json=json)


@app.command(cls=_Command)
def boards(json: Json = False, verbose: Verbose = False) -> None:
    """List the boards: device, resources, link, and what was really done with each."""
    from trivet._cli_info import boards_command

    boards_command(as_json=json)


@app.command(cls=_Command)
def doctor(json: Json = False, verbose: Verbose = False) -> None:
    """Show the tools found and their versions, what is missing and how to get it."""
    from trivet._cli_info import doctor_command

    doctor_command(as_json=json)


@app.command(cls=_Command)
def demo(
    images: Annotated[
        int, typer.Option("--images", help="How many test images to stream, 1 to 360.")
    ] = 100,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", help="Keep the bundle.", metavar="OUT.trivet")
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Split a small digits network over the CPU and a simulated FPGA board, and check its bytes."""
    from trivet._cli_common import print_json
    from trivet.demo import run_demo

    if out is not None:
        check_target(out)
    figures = run_demo(console(stderr=json), images=images, out=out, quiet=json)
    if json:
        print_json(figures)
    if figures["bytes_different"]:
        raise typer.Exit(1)


def main() -> None:
    """Entry point: what a user can cause becomes one line on stderr and exit code 2."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        text = user_text(error)
        if text is None:
            raise
        if verbose():
            traceback.print_exc()
        sys.exit(fail(text))


if __name__ == "__main__":
    main()
