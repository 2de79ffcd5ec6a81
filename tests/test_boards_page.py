"""The tables of docs/boards.md are those of the build reports that are kept."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from trivet.compiler.build.report import Report

ROOT = Path(__file__).parents[1]


@pytest.fixture
def boards_page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("boards_page", ROOT / "benchmarks" / "boards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(boards_page: ModuleType) -> None:
    assert boards_page.page() == (ROOT / "docs" / "boards.md").read_text(encoding="utf-8")


def test_kept_reports_are_reports(boards_page: ModuleType) -> None:
    for report in boards_page.reports():
        found = msgspec.convert(report, type=Report)
        assert "folder" not in report  # of --json: a path of the machine that built it
        assert found.bitstream_sha256 is not None


def test_tables_say_what_is_counted_what_is_published_and_what_missed(
    boards_page: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = {
        "board": "b", "engine": {"lanes": 4, "simd": 2}, "engine_sha256": "e", "seed": 2,
        "seeds": [{}, {}], "fmax_hz": 90e6, "clock_target_hz": 100_000_000,
        "resources": {"dsp": {"used": 8, "budget": 28, "predicted": 9, "error": 0.125}},
        "phases": [{"name": "yosys", "seconds": 5.0, "memory_bytes": 2_000_000_000}],
        "critical_path": {"text": "from a to b: 11.1 ns"},
    }  # fmt: skip
    networks = {
        "IC": {"cycles": 90_000, "link_seconds": 0.01, "macs_share": 1.0},
        "KWS": {"cycles": 9_000, "link_seconds": 0.001, "macs_share": 0.5},
        "AD": {"refused": "too large"},
    }
    (tmp_path / "b.json").write_text(json.dumps(report))
    (tmp_path / "networks.json").write_text(
        json.dumps({"b": {"engine_sha256": "e", "networks": networks}})
    )
    monkeypatch.setattr(boards_page, "BUILDS", tmp_path)
    monkeypatch.setattr(boards_page, "COUNTS", tmp_path / "networks.json")
    text = boards_page.render()
    assert "| b | 4 x 2 | 100 MHz | 90.0 MHz (missed) | - | - | 8 of 28 (+12.5 %) | - |" in text
    assert "- b: from a to b: 11.1 ns" in text
    assert "| b, engine-bound | 1,000 | does not fit | does not fit | counted cycles" in text
    assert "| b, link-bound | 100 | - | - |" in text
    assert "| GAP9, 370 MHz | 1,623 | 2,103 | 5,692 | published |" in text
