"""The digits network fits the small boards whole, and gives the bytes of the CPU there."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import trivet
from trivet.compiler.driver import Options, compile_model
from trivet.compiler.rig import default_rig


@pytest.mark.parametrize("board", ["icebreaker", "tang-nano-20k"])
def test_digits(board: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    np.savez(tmp_path / "samples.npz", image=rng.random((16, 1, 8, 8), np.float32))
    options = Options(
        default_rig(board).with_options(place="fpga"), calibrate=tmp_path / "samples.npz"
    )
    bundle = tmp_path / "digits.trivet"
    model = Path(str(files("trivet").joinpath("digits.onnx")))
    work = compile_model(model, bundle, options).work
    assert work.graph is not None
    assert work.programs is not None
    (program,) = work.programs.values()
    assert sum(n.macs for n in program.layers) == sum(u.macs for u in work.graph.units)
    feed = rng.random((3, 1, 1, 8, 8), np.float32)
    found = {}
    for attach in ("model", "cpu"):
        with trivet.Session(bundle, devices={"fpga0": attach}) as session:
            found[attach] = np.array([session.run(None, {"image": x})[0] for x in feed])
    assert np.array_equal(found["model"], found["cpu"])
