"""How far the resource model is off: predictions stored first, then yosys on whole boards.

    python benchmarks/predict.py OUT.json            # the ten engines of the check, a minute each
    python benchmarks/predict.py OUT.json --fit      # the engines that the lines were fitted to
    python benchmarks/predict.py OUT.json --chosen   # three that the tuner likes

Whole boards as they are built: engine, host link, UART, PLL. Counted after ``synth_ecp5`` of the
build's own recipe, in LUT4 of slices: a carry cell takes two of them, a cell of distributed RAM
four (nextpnr adds two that write). Flip-flops are stored and not compared: predictions are of
those that are left after the netlist pass. Results are written after every engine; those that are
there already, of the same engine, are not counted again.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from resources import synthesised

from trivet import boards
from trivet.compiler.build.design import design
from trivet.compiler.build.predict import predict, synthesised_luts
from trivet.compiler.build.recipe import recipe
from trivet.hdl.config import DEFAULT, EngineConfig

BOARD = "ulx3s-85f"
_SHAPE = ("lanes", "simd", "requantisers", "act_banks", "act_bank_words", "weight_words",
          "param_words", "tables", "addends", "instructions")  # fmt: skip


def _engine(*values: int) -> EngineConfig:
    return EngineConfig(**dict(zip(_SHAPE, values, strict=True)))


# None of the check was used in a fit.
CHECK: tuple[EngineConfig, ...] = (
    _engine(1, 8, 1, 2, 1024, 4096, 256, 1, 1, 32),
    _engine(2, 4, 1, 3, 2048, 4096, 512, 2, 2, 64),
    _engine(2, 8, 1, 2, 1024, 5120, 512, 1, 0, 16),
    _engine(4, 4, 1, 3, 2048, 3072, 512, 8, 2, 64),
    _engine(4, 2, 2, 3, 1024, 2048, 256, 2, 4, 32),
    _engine(4, 4, 2, 3, 1024, 2560, 256, 4, 4, 32),
    _engine(8, 2, 1, 2, 2048, 3072, 1024, 1, 1, 32),
    _engine(4, 8, 1, 3, 512, 2048, 256, 1, 1, 16),
    _engine(8, 8, 2, 3, 1024, 2048, 512, 4, 2, 32),
    DEFAULT,
)
FIT: tuple[EngineConfig, ...] = (
    _engine(1, 1, 1, 2, 512, 4096, 256, 1, 1, 16),
    _engine(2, 2, 2, 3, 1024, 2048, 512, 1, 2, 64),
    _engine(8, 4, 2, 3, 1024, 2048, 512, 1, 1, 32),
    _engine(4, 4, 4, 2, 1024, 1536, 128, 2, 0, 16),
    _engine(2, 16, 1, 2, 512, 2048, 512, 1, 1, 16),
    _engine(16, 4, 4, 3, 2048, 2112, 512, 8, 4, 64),
    _engine(32, 2, 2, 2, 256, 1024, 256, 1, 1, 32),
    _engine(8, 16, 4, 2, 512, 1024, 256, 1, 1, 32),
)
# Like what the tuner chose for networks on an 85F and a 25F; in no fit either.
CHOSEN: tuple[EngineConfig, ...] = (
    _engine(64, 2, 4, 3, 128, 256, 128, 0, 0, 32),
    _engine(32, 4, 4, 1, 32, 2560, 512, 0, 0, 32),
    _engine(16, 1, 2, 1, 1024, 1536, 512, 0, 0, 32),
)


def count(config: EngineConfig) -> dict[str, int]:
    """``lut``, ``ff``, ``dsp`` and ``bram`` of a whole board; RuntimeError when yosys fails."""
    board = boards.get(BOARD)
    assert board.toolchain is not None
    made = design(board, config, bytes(32))
    cells = synthesised({"top.il": made.rtlil}, recipe(made, board.toolchain).synthesis)
    return {
        "lut": cells.lut4, "ff": cells.flip_flops, "dsp": cells.dsps, "bram": cells.block_rams,
    }  # fmt: skip


def main(out: Path, engines: tuple[EngineConfig, ...]) -> None:
    before = json.loads(out.read_text()) if out.exists() else {"engines": []}
    known = {tuple(sorted(e["engine"].items())): e.get("counted") for e in before["engines"]}
    board = boards.get(BOARD)
    rows: list[dict[str, Any]] = [
        {
            "engine": c.to_dict(),
            "predicted": {**predict(board, c), "lut": synthesised_luts(c)},
        }
        for c in engines
    ]
    for row in rows:
        row["counted"] = known.get(tuple(sorted(row["engine"].items())))
    out.write_text(json.dumps({"board": BOARD, "engines": rows}, indent=1) + "\n")
    for config, row in zip(engines, rows, strict=True):
        began = time.monotonic()
        if row["counted"] is None:
            row["counted"] = count(config)
        row["error"] = {
            k: round(row["predicted"][k] / row["counted"][k] - 1, 4) for k in ("lut", "dsp", "bram")
        }
        out.write_text(json.dumps({"board": BOARD, "engines": rows}, indent=1) + "\n")
        print(
            f"{config.lanes} x {config.simd}, {config.requantisers}:",
            *(f"{k} {row['counted'][k]} {v:+.1%}" for k, v in row["error"].items()),
            f"({time.monotonic() - began:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    sets = {"--check": CHECK, "--fit": FIT, "--chosen": CHOSEN}
    wanted = [a for a in sys.argv[1:] if a in sets] or ["--check"]
    paths = [a for a in sys.argv[1:] if a not in sets]
    if len(paths) != 1 or len(wanted) != 1:
        sys.exit("usage: python benchmarks/predict.py OUT.json [--check | --fit | --chosen]")
    main(Path(paths[0]), sets[wanted[0]])
