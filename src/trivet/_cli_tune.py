"""The command tune."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trivet._cli_common import Fault, console, phases, print_json

__all__ = ["tune_command"]


def tune_command(
    model: Path,
    board: str,
    *,
    target: float | None,
    calibrate: Path | None,
    shapes: Mapping[str, int],
    as_json: bool,
) -> None:
    from trivet import boards
    from trivet.compiler.driver import Options, compile_model
    from trivet.compiler.tune.show import render
    from trivet.compiler.tune.tune import tune

    if target is not None and not 0 < target < float("inf"):
        raise Fault(f"--target-fps is {target:g}, must be above 0")
    known = boards.get(board)
    with phases(log=False) as tell:
        options = Options(shapes=shapes, calibrate=calibrate, stop_after="map")
        graph = compile_model(model, None, options, progress=tell).work.graph
        assert graph is not None
        tell("tune", board)
        tuned = tune(graph, known, target)
    if as_json:
        print_json(tuned.to_dict())
    else:
        console().print(render(tuned))
