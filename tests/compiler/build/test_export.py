"""Boards that are only exported: an archive for Vivado instead of a bitstream."""

import json
import zipfile
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stand_in_tools
from entry_point import entry_point
from stand_in_tools import BOARD, TINY
from synth.ecp5 import need_tools, work_folder, yosys

from trivet import boards
from trivet.boards.board import Toolchain
from trivet.compiler.build.build import build, build_inputs
from trivet.hdl.config import SMALL
from trivet.runtime.bundle import Bundle

EXPORTED = replace(
    BOARD, name="a-board", toolchain=Toolchain("xilinx", ("-family", "xc7"), ("xc7part-1",))
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    stand_in_tools.use(monkeypatch, tmp_path / "cache")
    monkeypatch.setitem(boards.BOARDS, EXPORTED.name, EXPORTED)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_the_archive_has_what_vivado_needs() -> None:
    built = build(EXPORTED, TINY)
    assert built.is_export
    assert built.report.fmax_hz is None
    with zipfile.ZipFile(built.bitstream) as archive:
        assert archive.namelist() == ["build.tcl", "top.lpf", "top.v"]
        script = archive.read("build.tcl").decode()
        assert archive.read("top.v").decode().endswith(built.build_sha256)
    assert "synth_design -top top -part xc7part-1\n" in script
    assert 'amaranth.vivado.false_path == "TRUE"' in script
    assert script.count("{") == script.count("}")
    for name in ("build.tcl", "top.v", "top.lpf"):
        assert (built.folder / name).exists()
    # Two block RAMs of 36 kbit are four of 18.
    used = {name: r.used for name, r in built.report.resources.items()}
    assert used == {"lut": 5, "dsp": 3, "bram": 5}


def test_the_command_says_that_the_bitstream_needs_vivado(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trivet: Any = entry_point(folder, monkeypatch, capsys)
    code, out, err = trivet("build", "--board", EXPORTED.name, "-o", "a.zip")
    assert code == 0, err
    assert "no bitstream: that needs Vivado (vivado -mode batch -source build.tcl" in out
    assert "Fmax" not in out
    assert zipfile.is_zipfile(folder / "a.zip")


def test_a_bundle_has_the_archive_and_nothing_to_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = EXPORTED.name
    monkeypatch.setitem(boards.BOARDS, name, replace(EXPORTED, engine=SMALL.to_dict()))
    np.savez(folder / "samples.npz", image=np.random.default_rng(1).random((16, 1, 8, 8), "f4"))
    trivet: Any = entry_point(folder, monkeypatch, capsys)
    model = str(files("trivet").joinpath("digits.onnx"))
    options = ("--calibrate", "samples.npz", "--place", "fpga", "--board", name)
    code, out, err = trivet("compile", model, "-o", "a.trivet", *options)
    assert code == 0, err
    assert f"export for {name}" in " ".join(out.split())
    with Bundle.open(folder / "a.trivet") as bundle:
        assert {
            f"export/{name}.zip",
            f"export/{name}.report.json",
        } <= bundle.manifest.members.keys()
    code, _, err = trivet("program", "a.trivet", "--board", name)
    assert code == 2
    (line,) = err.splitlines()
    assert line.endswith(f"unzip export/{name}.zip and let Vivado make it (build.tcl)")


@pytest.mark.synth
@pytest.mark.parametrize(
    ("name", "clocks"),
    [
        ("arty-a7-100t", {"PLLE2_BASE": 1, "BUFG": 1}),
        ("kv260", {"MMCME4_BASE": 1, "PS8": 1, "BUFG_PS": 1, "BUFG": 1}),
    ],
)
def test_the_verilog_of_a_board_is_the_whole_board(name: str, clocks: dict[str, int]) -> None:
    """Read back by yosys it has the primitives, products and memories that the design has."""
    need_tools()
    board = replace(boards.get(name), clock_hz=50_000_000)
    inputs = build_inputs(board, TINY)
    folder = work_folder(f"export-{name}")
    (folder / "top.il").write_text(inputs.design.rtlil)
    write, _, _ = inputs.recipe.synthesis.partition("synth_xilinx")
    assert "write_verilog top.v\n" in write
    count = "hierarchy -top top\nproc -norom\nflatten\nopt_clean\nmemory_collect\n"
    yosys(
        f"{write}{count}tee -q -o first.json stat -json\ndesign -reset\n"
        f"read_verilog top.v\n{count}tee -q -o again.json stat -json\n".replace("\n", "; "),
        folder,
    )
    first, again = (_primitives(folder / f"{file}.json") for file in ("first", "again"))
    assert again == first
    assert clocks.items() <= again.items()
    assert again["$mul"] >= TINY.dsps
    assert again["$mem_v2"] > 10
    text = (folder / "top.v").read_text()
    assert "false_path" in text
    assert len(text) < 1_000_000


def _primitives(stat: Path) -> dict[str, int]:
    cells = json.loads(stat.read_text())["design"]["num_cells_by_type"]
    return {k: n for k, n in cells.items() if not k.startswith("$") or k in ("$mul", "$mem_v2")}
