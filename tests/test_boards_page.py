"""The tables of docs/boards.md are those of the build reports that are kept."""

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from trivet import boards
from trivet.compiler.build.report import Report
from trivet.hdl.config import EngineConfig

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
        "critical_path": {"text": "from a to b: 11.1 ns"}, "tools": {},
    }  # fmt: skip
    networks = {
        "IC": _network(90_000, 0.01, share=1.0, expand_cycles=30_000),
        "KWS": _network(9_000, 0.001, share=0.5),
        "AD": {"refused": "too large"},
    }
    row = {
        "engine_sha256": "e",
        "clock_hz": 50_000_000,
        "link": {"kind": "uart", "bytes_per_second": 1e6, "source": "given"},
        "networks": networks,
    }
    planned = {**row, "networks": {s: _network(1_000, 0.1, share=1.0) for s in networks}}
    full = {**planned, "networks": {s: {**networks["KWS"], "macs_share": 0.25} for s in networks}}
    (tmp_path / "b.json").write_text(json.dumps(report))
    (tmp_path / "networks.json").write_text(json.dumps({"b": row, "c": planned, "d": full}))
    monkeypatch.setattr(boards_page, "BUILDS", tmp_path)
    monkeypatch.setattr(boards_page, "COUNTS", tmp_path / "networks.json")
    text = boards_page.render()
    for line in (
        "| b | 4 x 2 | 100 MHz | 90.0 MHz (missed) | - | - | 8 of 28 (+12.5 %) | - |",
        "- b: from a to b: 11.1 ns",
        "| b, engine-bound at 90.0 MHz | 1,000 | 50 % fits | 0 % fits | cycles counted in RTL; "
        "Fmax of the routed design, not run |",
        # 3,000 bytes at 1 MB/s; their spreading takes 333 us.
        "| b, link-bound, UART of 1 MB/s | 333 | 50 % fits | 0 % fits | bytes counted",
        "| b, one at a time over UART | 100 | 50 % fits | 0 % fits |",
        "| c, engine-bound at 50.0 MHz | 50,000 | 50,000 | 50,000 | cycles counted in RTL; "
        "planned clock, not routed |",
        "| d | 25 % fits | 25 % fits | 25 % fits | share of the MACs, counted |",
        "| GAP9, 370 MHz | 1,623 | 2,103 | 5,692 | published |",
        "- b, IC: 0.62 times GAP9, 370 MHz",
    ):
        assert line in text
    assert "- c, IC" not in text  # not routed


def _network(
    cycles: int, seconds: float, *, share: float, expand_cycles: int = 0
) -> dict[str, float]:
    return {
        "cycles": cycles, "link_seconds": seconds, "macs_share": share, "bytes_in": 3_000,
        "bytes_out": 10, "expand_cycles": expand_cycles,
    }  # fmt: skip


SHARED = Path(os.environ.get("TRIVET_SHARED", ROOT.parent / "shared")) / "models"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the models of shared/ are not there")
@pytest.mark.parametrize("network", ["IC", "KWS", "AD"])
def test_kept_counts_are_those_of_the_engine_of_today(
    boards_page: ModuleType, network: str
) -> None:
    """Else: python benchmarks/boards.py --count"""
    kept = boards_page.counts()["ulx3s-85f"]
    assert boards_page.count_network("ulx3s-85f", network) == kept["networks"][network]


def test_every_board_with_an_engine_is_counted(boards_page: ModuleType) -> None:
    kept = boards_page.counts()
    for board in boards.BOARDS.values():
        if board.engine is None:
            continue
        row = kept[board.name]
        assert row["engine_sha256"] == EngineConfig(**board.engine).sha256
        assert row["clock_hz"] == board.clock_hz
        assert row["link"]["bytes_per_second"] == board.link.bandwidth_bytes_per_second
