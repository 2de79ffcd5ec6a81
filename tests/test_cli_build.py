"""`trivet build`, `trivet program` and bitstreams of `trivet compile`, with stand-in tools."""

import json
import sys
import zipfile
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import stand_in_tools
from entry_point import entry_point
from stand_in_tools import BOARD, TINY

from trivet import boards
from trivet.compiler.build import build, tools
from trivet.compiler.build.report import Report
from trivet.hdl.config import SMALL
from trivet.runtime.bundle import Bundle, BundleWriter

MODEL = str(files("trivet").joinpath("digits.onnx"))
NAME = BOARD.name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    stand_in_tools.use(monkeypatch, tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    rng = np.random.default_rng(1)
    np.savez(tmp_path / "samples.npz", image=rng.random((16, 1, 8, 8), np.float32))
    return tmp_path


@pytest.fixture
def trivet(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    return entry_point(folder, monkeypatch, capsys)


@pytest.fixture
def board(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in board with an engine that holds the digits network."""
    monkeypatch.setitem(boards.BOARDS, NAME, replace(BOARD, engine=SMALL.to_dict()))


def compile_digits(trivet: Any, out: str, *options: str) -> tuple[int, str, str]:
    found: tuple[int, str, str] = trivet(
        "compile", MODEL, "-o", out, "--calibrate", "samples.npz", "--place", "fpga", *options
    )
    return found


def test_build_prints_the_report(trivet: Any) -> None:
    code, out, err = trivet("build", "--board", NAME)
    assert code == 0, err
    for text in ("Fmax 60.0 MHz", "the clock is 50 MHz", "LUT", "top.bit", "on hardware"):
        assert text in out
    assert "nextpnr: " in err


def test_build_json_folder_and_copy(trivet: Any, folder: Path) -> None:
    code, out, _ = trivet("build", "--board", NAME, "--json", "-o", "my.bit")
    found = json.loads(out)
    assert code == 0
    assert found["engine"] == TINY.to_dict()
    assert found["cached"] is False
    assert (folder / "my.bit").read_bytes() == Path(found["folder"], "top.bit").read_bytes()
    code, out, _ = trivet("build", "--board", NAME, "--folder")
    assert (code, out.strip()) == (0, found["folder"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("build", "--board", "x"), "board 'x' is not known"),
        (("build", "--board", NAME, "--seeds", "0"), "--seeds is 0, must be at least 1"),
        (("build", "--board", NAME, "--time-limit", "0"), "--time-limit is 0 minutes, must be"),
        (("build", "none.trivet", "--board", NAME), "none.trivet: cannot be opened"),
        (("program", "none.trivet", "--board", NAME), "none.trivet: cannot be opened"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(trivet: Any, arguments: tuple[str, ...], text: str) -> None:
    code, out, err = trivet(*arguments)
    assert code == 2
    assert out == ""
    assert text in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("board")
def test_compile_for_a_board_puts_bitstream_and_report_into_the_bundle(
    trivet: Any, folder: Path
) -> None:
    code, out, err = compile_digits(trivet, "a.trivet", "--board", NAME)
    assert code == 0, err
    assert f"bitstream for {NAME}" in " ".join(out.split())
    with Bundle.open(folder / "a.trivet") as bundle:
        info = bundle.manifest.engines[SMALL.sha256].bitstreams[NAME]
        assert info.member == f"bit/{NAME}.bit"
        assert bundle.read(info.member).decode().endswith(f"{info.build_sha256} seed 1")
        report = json.loads(bundle.read(f"bit/{NAME}.report.json"))
    assert report["build_sha256"] == info.build_sha256
    assert report["phases"] == []
    code, _, err = compile_digits(trivet, "b.trivet", "--board", NAME)
    assert (folder / "a.trivet").read_bytes() == (folder / "b.trivet").read_bytes()


@pytest.mark.usefixtures("board")
@pytest.mark.parametrize("reason", ["fails", "hangs", "too large", "too slow", "missing"])
def test_a_build_that_fails_leaves_a_usable_bundle(
    trivet: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    if reason == "fails":
        monkeypatch.setenv("STAND_IN_FAIL", "nextpnr-ecp5")
    elif reason == "hangs":
        monkeypatch.setenv("STAND_IN_HANG", "nextpnr-ecp5")
        monkeypatch.setattr(build._Run, "_call", _impatient(build._Run._call))
    elif reason == "too large":
        monkeypatch.setenv("STAND_IN_DSPS", "1000")
    elif reason == "too slow":
        monkeypatch.setenv("STAND_IN_FMAX", "12")
    else:
        monkeypatch.setattr(build, "toolset", tools.toolset)
        monkeypatch.setattr(tools, "find_spec", lambda name: None)
    code, out, err = compile_digits(trivet, "a.trivet", "--board", NAME, "--json")
    assert code == 0
    (line,) = err.splitlines()
    assert line.startswith("trivet: no bitstream: build: ")
    assert "--no-bitstream" in line
    found = json.loads(out)
    assert found["bitstreams"] == {}
    assert [f"trivet: {w}" for w in found["warnings"]] == [line]
    monkeypatch.undo()
    np.savez(folder / "in.npz", image=np.zeros((2, 1, 8, 8), np.float32))
    with Bundle.open(folder / "a.trivet") as bundle:
        assert bundle.manifest.engines[SMALL.sha256].bitstreams == {}
        assert [s.kind for s in bundle.stages()] == ["onnx", "program", "onnx"]
    run = ("run", "a.trivet", "--input", "in.npz", "--output", "out.npz")
    code, _, err = trivet(*run, "--device", "fpga0=model")
    assert code == 0, err


@pytest.fixture
def small_board(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in board with memories that no layer of the digits network fits."""
    fields = {**TINY.to_dict(), "act_banks": 1, "act_bank_words": 16, "weight_words": 16}
    monkeypatch.setitem(boards.BOARDS, NAME, replace(BOARD, engine={**fields, "param_words": 4}))


@pytest.mark.usefixtures("small_board")
def test_a_model_that_the_board_cannot_hold_runs_on_the_cpu_and_one_line_says_so(
    trivet: Any, folder: Path
) -> None:
    code, out, err = compile_digits(trivet, "a.trivet", "--board", NAME, "--json")
    assert code == 0
    (line,) = err.splitlines()
    assert line == (
        "trivet: no bitstream: the plan has no FPGA stage (fpga0 is left empty: no layer with MACs "
        "can go there); trivet explain tells what each layer lacks; choose a larger engine, "
        "another board or --no-bitstream"
    )
    assert not (folder / "cache" / "calls").exists()
    assert json.loads(out)["bitstreams"] == {}
    np.savez(folder / "in.npz", image=np.zeros((2, 1, 8, 8), np.float32))
    code, _, err = trivet("run", "a.trivet", "--input", "in.npz", "--output", "out.npz")
    assert code == 0, err
    # As asked for: nothing to say.
    code, _, err = compile_digits(trivet, "b.trivet", "--board", NAME, "--no-bitstream")
    assert (code, err) == (0, "")


@pytest.mark.usefixtures("board")
def test_without_a_compiler_for_c_the_bundle_is_whole_and_the_virtual_board_says_what_to_do(
    trivet: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)  # and PATH leads to no g++
    code, out, err = compile_digits(trivet, "a.trivet", "--board", NAME)
    assert code == 0, err
    assert f"bitstream for {NAME}" in " ".join(out.split())
    np.savez(folder / "in.npz", image=np.zeros((2, 1, 8, 8), np.float32))
    run = ("run", "a.trivet", "--input", "in.npz", "--output", "out.npz")
    code, _, err = trivet(*run)
    assert code == 2
    (line,) = err.splitlines()
    assert "apt install g++ (or set CXX), or choose --device NAME=model" in line
    code, _, err = trivet(*run, "--device", "fpga0=model")
    assert code == 0, err


def _impatient(call: Any) -> Any:
    def wrapped(self: Any, *arguments: Any) -> Any:
        self.limit_s = 1.0
        return call(self, *arguments)

    return wrapped


@pytest.mark.usefixtures("board")
def test_without_a_board_or_with_no_bitstream_nothing_is_built(trivet: Any, folder: Path) -> None:
    code, out, _ = compile_digits(trivet, "a.trivet")
    assert code == 0
    assert "no bitstream: none was asked for" in " ".join(out.split())
    code, out, _ = compile_digits(trivet, "b.trivet", "--board", NAME, "--no-bitstream")
    assert "no bitstream, as asked for" in out
    assert not (folder / "cache" / "calls").exists()


@pytest.mark.usefixtures("board")
def test_build_puts_a_bitstream_into_a_bundle_and_program_finds_it(
    trivet: Any, folder: Path
) -> None:
    compile_digits(trivet, "a.trivet", "--board", NAME, "--no-bitstream")
    code, out, err = trivet("program", "a.trivet", "--board", NAME)
    assert code == 2
    assert f"has no bitstream for '{NAME}', it has none; run trivet build a.trivet" in err
    before = zipfile.ZipFile(folder / "a.trivet").namelist()
    code, out, err = trivet("build", "a.trivet", "--board", NAME)
    assert code == 0, err
    added = set(zipfile.ZipFile(folder / "a.trivet").namelist()) - set(before)
    assert added == {f"bit/{NAME}.bit", f"bit/{NAME}.report.json"}
    data = (folder / "a.trivet").read_bytes()
    assert trivet("build", "a.trivet", "--board", NAME)[0] == 0
    assert (folder / "a.trivet").read_bytes() == data
    code, out, err = trivet("program", "a.trivet", "--board", NAME)
    assert code == 0
    assert out == (
        f"unzip -j a.trivet bit/{NAME}.bit && openFPGALoader -b colorlight-i5 {NAME}.bit\n"
    )
    assert "nothing was programmed" in err
    code, out, err = trivet("build", "a.trivet", "--board", "ulx3s-85f")
    assert code == 2
    assert f"was planned for {NAME}, not for 'ulx3s-85f'" in err


@pytest.mark.usefixtures("board")
def test_program_runs_the_loader_only_when_asked(
    trivet: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_digits(trivet, "a.trivet", "--board", NAME)
    code, _, err = trivet("program", "a.trivet", "--board", NAME, "--yes")
    assert code == 2
    assert "openFPGALoader is not installed" in err
    loader = folder / "bin" / "openFPGALoader"
    loader.parent.mkdir()
    loader.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"out = open({str(folder / 'called')!r}, 'w')\n"
        "out.write(repr(sys.argv[1:]) + open(sys.argv[-1]).read())\n"
    )
    loader.chmod(0o755)
    assert trivet("program", "a.trivet", "--board", NAME)[0] == 0
    assert not (folder / "called").exists()
    assert trivet("program", "a.trivet", "--board", NAME, "--yes", "--flash")[0] == 0
    called = (folder / "called").read_text()
    assert called.startswith(f"['-b', 'colorlight-i5', '-f', '{NAME}.bit']")
    assert called.endswith("seed 1")


@pytest.mark.usefixtures("board")
def test_program_refuses_a_bitstream_that_is_not_its_reports(trivet: Any, folder: Path) -> None:
    compile_digits(trivet, "a.trivet", "--board", NAME)
    with Bundle.open(folder / "a.trivet") as bundle:
        writer = BundleWriter.copy_of(bundle)
    name = f"bit/{NAME}.report.json"
    report = msgspec.json.decode(writer._members.pop(name), type=Report)
    writer.add(name, msgspec.structs.replace(report, board="ulx3s-85f").to_json())
    writer.write(folder / "b.trivet")
    code, _, err = trivet("program", "b.trivet", "--board", NAME)
    assert code == 2
    assert "is not the one that its report describes (ulx3s-85f" in err
