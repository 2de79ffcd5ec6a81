"""Builds with stand-in tools: cache, locks, seeds, limits, failures, and Ctrl-C in the middle."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import stand_in_tools
from stand_in_tools import BOARD, TINY, hears_ctrl_c

from trivet.compiler.build import cache
from trivet.compiler.build.build import Built, build
from trivet.compiler.errors import CompileError

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    stand_in_tools.use(monkeypatch, tmp_path)
    return tmp_path


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []


def entries(folder: Path) -> list[str]:
    """What is in the cache, without lock files."""
    return sorted(p.name for p in (folder / "builds").iterdir() if p.suffix != ".lock")


def run(**options: Any) -> Built:
    return build(BOARD, TINY, **options)


def test_a_build_has_a_bitstream_a_report_and_a_folder_to_open() -> None:
    told: list[str] = []
    built = run(tell=lambda phase, what: told.append(phase))
    assert built.bitstream.read_text().endswith(f"{built.build_sha256} seed 1")
    assert {p.name for p in built.folder.iterdir()} >= {"build.ys", "top.lpf", "report.json"}
    assert not (built.folder / "top.json").exists()
    phases = ["write", "yosys", "netlist", "nextpnr", "pack"]
    assert [p for p in dict.fromkeys(told) if p != "prepare"] == phases
    report = json.loads((built.folder / "report.json").read_text())
    assert report["fmax_hz"] == 60e6
    assert report["engine_sha256"] == TINY.sha256
    assert report["build_sha256"] == built.build_sha256
    assert report["resources"]["lut"]["used"] == 7
    assert report["tools"]["yosys"] == "1.0 (native)"
    assert built.report.met
    assert not built.cached


def test_the_second_build_is_the_caches(folder: Path) -> None:
    first = run()
    second = run()
    assert second.cached
    assert second.report == first.report
    assert calls(folder) == ["yosys", "nextpnr-ecp5", "ecppack"]


def test_two_builds_are_bit_identical(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run().bitstream.read_bytes()
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(folder / "other"))
    second = run()
    assert not second.cached
    assert second.bitstream.read_bytes() == first


@pytest.mark.parametrize("name", ["report.json", "top.bit", "entry.json"])
@pytest.mark.parametrize("damage", [b"", b"damaged", None])
def test_a_damaged_entry_is_built_again(name: str, damage: bytes | None) -> None:
    first = run()
    good = first.bitstream.read_bytes()
    if damage is None:
        (first.folder / name).unlink()
    else:
        (first.folder / name).write_bytes(damage)
    second = run()
    assert not second.cached
    assert second.bitstream.read_bytes() == good
    assert run().cached


def test_keep_keeps_netlists_and_builds_again_for_it() -> None:
    assert not (run().folder / "top.json").exists()
    kept = run(keep=True)
    assert (kept.folder / "top.json").exists()
    assert (kept.folder / "top.il").exists()
    assert run().cached


def test_the_first_seed_that_reaches_the_clock_ends_the_search(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FMAX", "40,-1,51,70")
    built = run(seeds=4)
    assert built.report.seed == 3
    assert [s.fmax_hz for s in built.report.seeds] == [40e6, None, 51e6]
    assert built.bitstream.read_text().endswith("seed 3")
    assert calls(folder).count("yosys") == 1


def test_a_missed_clock_is_refused_with_the_best_seed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_FMAX", "40,45,-1")
    text = r"the best of 3 seeds runs at 45.0 MHz, the clock is 50 MHz; .*--no-bitstream"
    for _ in range(2):  # known the second time
        with pytest.raises(CompileError, match=text) as caught:
            run(seeds=3)
    assert calls(folder).count("nextpnr-ecp5") == 3
    told = str(caught.value).rpartition("report in ")[2].rstrip(")")
    assert json.loads(Path(told, "report.json").read_text())["seed"] == 2


@pytest.mark.parametrize("tool", ["yosys", "nextpnr-ecp5", "ecppack"])
def test_a_tool_that_fails_is_one_line_and_its_folder_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    monkeypatch.setenv("STAND_IN_FAIL", tool)
    text = f"colorlight-i5: {tool} failed with exit code 3: it did not like that; choose a smaller"
    with pytest.raises(CompileError, match=text) as caught:
        run()
    (failed,) = entries(folder)
    assert failed.endswith(".failed")
    assert failed in str(caught.value)
    assert "\n" not in str(caught.value)
    monkeypatch.delenv("STAND_IN_FAIL")
    assert not run().cached
    assert not any(name.endswith(".failed") for name in entries(folder))


def test_a_tool_that_takes_too_long_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_HANG", "nextpnr-ecp5")
    text = r"nextpnr-ecp5 was still running after 0.02 minutes; .* longer with --time-limit"
    with pytest.raises(CompileError, match=text):
        run(limit_s=1.2)


def test_an_engine_that_is_too_large_is_refused_before_placing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_DSPS", "29")
    with pytest.raises(CompileError, match="needs 29 multipliers, the board has 28; choose"):
        run()
    assert calls(folder) == ["yosys"]


def test_no_seed_is_refused() -> None:
    with pytest.raises(CompileError, match="--seeds is 0, must be at least 1"):
        run(seeds=0)


def test_a_cache_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(CompileError, match=r"cannot be written \(.*\); set TRIVET_CACHE_DIR"):
        run()


def test_builders_of_the_same_wait_for_one_another(folder: Path) -> None:
    told: list[str] = []
    found: list[Built] = []
    name = run().folder.name
    (folder / "builds" / name / "entry.json").unlink()
    with cache.locked(name, told.append):
        other = threading.Thread(
            target=lambda: found.append(run(tell=lambda phase, what: told.append(what)))
        )
        other.start()
        for _ in range(200):
            if "waiting for another build of the same" in told:
                break
            time.sleep(0.02)
        assert not found
    other.join(20)
    assert "waiting for another build of the same" in told
    assert len(found) == 1


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("tool", ["yosys", "nextpnr-ecp5"])
def test_a_build_that_is_stopped_leaves_nothing_broken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tool: str, number: signal.Signals
) -> None:
    code = f"""
        import sys
        sys.path.insert(0, {str(ROOT / "tests")!r})
        import pytest, stand_in_tools
        from pathlib import Path
        from trivet.compiler.build.build import build
        stand_in_tools.use(pytest.MonkeyPatch(), Path({str(folder)!r}))
        build(stand_in_tools.BOARD, stand_in_tools.TINY)
    """
    monkeypatch.setenv("STAND_IN_HANG", tool)
    ours = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stderr=subprocess.DEVNULL,
        preexec_fn=hears_ctrl_c,
    )
    for _ in range(400):
        if tool in calls(folder):
            break
        time.sleep(0.05)
    ours.send_signal(number)
    assert ours.wait(20) != 0
    if number != signal.SIGKILL:  # nobody can clean up after that one but the next build
        assert entries(folder) == []
    monkeypatch.delenv("STAND_IN_HANG")
    built = run()
    assert not built.cached
    assert entries(folder) == [built.folder.name]
