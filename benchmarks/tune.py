"""The tuner against exhaustive search: speed of the best engine, the front, and the time it took.

    python benchmarks/tune.py MODEL.onnx ... [--board B ...]

For the part of the model that the tuner chose. Exhaustive: every shape with every activation memory
of up to eight banks (the tuner stops at four).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from trivet import boards
from trivet.compiler.load import load
from trivet.compiler.map import map_units
from trivet.compiler.normalise import normalise
from trivet.compiler.quantise import quantise
from trivet.compiler.tune.search import coverage, exhaustive, front
from trivet.compiler.tune.tune import tune

BOARDS = ("ulx3s-85f", "ulx3s-25f", "colorlight-i5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--board", action="append")
    given = parser.parse_args()
    for path in given.models:
        graph = map_units(quantise(normalise(load(path, {})), None))
        for name in given.board or BOARDS:
            board = boards.get(name)
            began = time.monotonic()
            tuned = tune(graph, board)
            seconds = time.monotonic() - began
            began = time.monotonic()
            best = front(exhaustive(graph, tuned.part, board).points)
            print(
                f"{path.stem} {name}: {len(tuned.part)} units, {tuned.macs_share:.1%} of the MACs; "
                f"{tuned.chosen.cycles:,} cycles in {seconds:.1f} s, exhaustive {best[0].cycles:,} "
                f"in {time.monotonic() - began:.1f} s "
                f"({tuned.chosen.cycles / best[0].cycles - 1:+.2%}); front of {len(tuned.front)} "
                f"within {coverage(tuned.front, best) - 1:.1%} of {len(best)}; "
                f"limit {tuned.limit.resource}",
                flush=True,
            )


if __name__ == "__main__":
    main()
