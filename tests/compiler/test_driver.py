"""The driver: every step stops and shows, bundles are reproducible, failures leave nothing."""

import io
import zipfile
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from trivet.compiler.driver import STEPS, Compiled, InfeasiblePlan, Options, compile_model
from trivet.compiler.errors import CompileError
from trivet.compiler.rig import default_rig
from trivet.runtime.bundle import Bundle
from trivet.sim.verify import verify_program

MODEL = Path(str(files("trivet").joinpath("digits.onnx")))
RIG = default_rig().with_options(place="fpga")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.getbasetemp() / "trivet-cache"
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(folder))


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "samples.npz"
    values = np.random.default_rng(1).random((16, 1, 8, 8), np.float32)
    np.savez(path, image=values)
    return path


def text_of(done: Compiled) -> str:
    screen = io.StringIO()
    Console(file=screen, width=120).print(done.shown)
    return screen.getvalue()


def test_the_steps_are_those_of_the_design() -> None:
    names = "load normalise quantise map cost plan lower verify build bundle"
    assert [step.name for step in STEPS] == names.split()


@pytest.mark.parametrize(
    ("step", "word"),
    [
        ("load", "Conv"),
        ("normalise", "input image"),
        ("quantise", "QuantizeLinear"),
        ("map", "fpga0"),
        ("cost", "cycles"),
        ("plan", "lower bound"),
        ("lower", "MACs"),
        ("verify", "0 different"),
        ("build", "no bitstream"),
    ],
)
def test_every_step_stops_and_shows_its_result(samples: Path, step: str, word: str) -> None:
    options = Options(RIG, calibrate=samples, stop_after=step)
    done = compile_model(MODEL, None, options, verifier=verify_program)
    assert done.step == step
    assert word in text_of(done)


def test_a_bundle_holds_what_was_planned_and_is_reproducible(samples: Path, tmp_path: Path) -> None:
    options = Options(RIG, calibrate=samples)
    paths = [tmp_path / "a.trivet", tmp_path / "b.trivet"]
    told: list[str] = []
    for path in paths:
        done = compile_model(
            MODEL, path, options, verifier=verify_program, progress=lambda s, w: told.append(s)
        )
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert set(told) == {step.name for step in STEPS}
    assert done.work.verdicts
    assert all(v.bytes_different == 0 for v in done.work.verdicts)
    with Bundle.open(paths[0]) as bundle:
        kinds = [s.kind for s in bundle.manifest.stages]
        assert kinds == ["onnx", "program", "onnx"]
        assert bundle.plan_json()["status"] == "optimal"
        vectors = bundle.vectors()
        assert list(vectors["source"]) == ["real"] * 4 + ["seeded"] * 4
        assert vectors["input.image"].shape == (8, 1, 1, 8, 8)
        assert bundle.manifest.model.inputs[0].shape[0] == "n"
    with zipfile.ZipFile(paths[0]) as archive:
        assert "taps/1.onnx" in archive.namelist()
        members = [archive.read(n) for n in archive.namelist()]
        for folder in (tmp_path, samples.parent, MODEL.parent):
            assert not any(str(folder).encode() in member for member in members)


def test_without_calibration_a_float_model_is_refused_with_the_way_out() -> None:
    with pytest.raises(CompileError, match=r"--calibrate DATA\.npz"):
        compile_model(MODEL, None, Options(RIG, stop_after="quantise"))


@dataclass(frozen=True)
class _Wrong:
    node: str = "conv"
    bytes_compared: int = 10
    bytes_different: int = 3


def test_a_differing_layer_stops_the_compilation_and_writes_nothing(
    samples: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.trivet"
    options = Options(RIG, calibrate=samples)
    with pytest.raises(CompileError, match=r"layer 'conv' of stage 1: 3 of 10 bytes differ"):
        compile_model(MODEL, out, options, verifier=lambda *a: [_Wrong()])
    assert list(tmp_path.iterdir()) == []


def test_an_infeasible_plan_is_an_error_that_carries_the_plan(samples: Path) -> None:
    rig = replace(RIG, rules={"communication_share_max": 0.001}, pins=(("conv1", "fpga0"),))
    with pytest.raises(InfeasiblePlan, match="infeasible: rule 'communication share'") as caught:
        compile_model(MODEL, None, Options(rig, calibrate=samples, stop_after="plan"))
    assert caught.value.plan.status == "infeasible"


@pytest.mark.parametrize(
    ("array", "text"),
    [
        ({"x": np.zeros((4, 1, 8, 8), np.float32)}, "image"),
        ({"image": np.zeros((4, 1, 8, 9), np.float32)}, "shape"),
        ({"image": np.zeros((4, 1, 8, 8), np.float64)}, "float64"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(
    samples: Path, tmp_path: Path, array: dict[str, np.ndarray], text: str
) -> None:
    path = tmp_path / "v.npz"
    np.savez(path, **array)  # type: ignore[arg-type]
    options = Options(RIG, calibrate=samples, vectors=path, stop_after="verify")
    with pytest.raises(CompileError, match=text):
        compile_model(MODEL, None, options)


def test_files_that_are_no_arrays_and_unknown_steps_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.npz"
    path.write_bytes(b"not a zip")
    with pytest.raises(CompileError, match=r"calibration data .*v\.npz"):
        compile_model(MODEL, None, Options(RIG, calibrate=path))
    with pytest.raises(CompileError, match="--stop-after is 'fly', must be one of load"):
        compile_model(MODEL, None, Options(RIG, stop_after="fly"))
