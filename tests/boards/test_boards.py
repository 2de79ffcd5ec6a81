"""The board registry tells facts with sources, and its engine is one that hdl can generate."""

import json
from pathlib import Path

import pytest

from trivet import boards
from trivet.hdl.config import DEFAULT, EngineConfig

BUILDS = Path(__file__).resolve().parents[2] / "docs" / "builds"


@pytest.mark.parametrize("board", boards.BOARDS.values(), ids=lambda b: b.name)
def test_every_figure_has_a_source(board: boards.Board) -> None:
    assert board.source
    assert board.resources.source
    assert board.link.source in {"counted", "measured", "predicted", "published", "given"}
    assert board.link.detail
    assert set(board.status) == {"simulated", "routed", "hardware"}
    assert (board.engine is None) == (board.clock_hz is None)


def test_the_ulx3s_has_the_default_engine_and_it_fits_its_multipliers() -> None:
    board = boards.get("ulx3s-85f")
    assert board.engine is not None
    config = EngineConfig(**board.engine)
    assert config == DEFAULT
    assert config.multipliers <= board.resources.dsps
    assert board.clock_status.startswith("routed")  # docs/builds has the report
    assert board.status["hardware"].startswith("no")


def test_an_unknown_board_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"board 'de10' is not known; known boards: ulx3s-85f"):
        boards.get("de10")


def test_the_engine_of_the_cycle_bars_is_the_one_that_was_routed() -> None:
    """No engine that only simulates: tests/end_to_end count cycles of the default engine."""
    for name, least in (("ulx3s-85f", 100_000_000), ("ecpix5-85", 130_000_000)):
        board = boards.get(name)
        assert board.engine is not None
        assert EngineConfig(**board.engine).sha256 == DEFAULT.sha256
        report = json.loads((BUILDS / f"{name}.json").read_text(encoding="utf-8"))
        assert report["engine_sha256"] == DEFAULT.sha256
        assert report["fmax_hz"] >= max(least, report["clock_target_hz"])
        assert sum(phase["seconds"] for phase in report["phases"]) < 25 * 60
        assert max(phase["memory_bytes"] or 0 for phase in report["phases"]) < 3e9
