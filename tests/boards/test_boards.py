"""The board registry tells facts with sources, and its engine is one that hdl can generate."""

import pytest

from trivet import boards
from trivet.hdl.config import DEFAULT, EngineConfig


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
