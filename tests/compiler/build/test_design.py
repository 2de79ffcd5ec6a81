"""Boards as RTLIL: a small engine on every board that has pins, all of them constrained."""

import re
from dataclasses import replace

import pytest

from trivet import boards
from trivet.compiler.build.design import design
from trivet.compiler.errors import CompileError
from trivet.hdl.config import EngineConfig

TINY = EngineConfig(
    lanes=1, simd=1, requantisers=1, act_banks=1, act_bank_words=64, weight_words=64,
    param_words=16, tables=1, addends=1, instructions=8,
)  # fmt: skip
# The file of constraints, and how one of its lines names a port.
PLACES = {
    "ice40": ("top.pcf", r"^set_io (\S+) \S+"),
    "ecp5": ("top.lpf", r'^LOCATE COMP "(\S+)" SITE'),
    "gowin": ("top.cst", r'^IO_LOC "(\S+)" \d+;'),
    "xilinx": ("top.xdc", r'^set_property LOC \S+ \[get_ports "(\S+)"\]'),
}
WIRED = [b for b in boards.BOARDS.values() if b.wiring is not None]


@pytest.mark.parametrize("board", WIRED, ids=lambda b: b.name)
def test_every_pin_has_its_place(board: boards.Board) -> None:
    made = design(board, TINY, bytes(range(32)))
    assert made.clock_hz == board.clock_hz
    body = made.rtlil[made.rtlil.index("\nmodule \\top\n") :]
    body = body[: body.index("\nend\n")]
    ports = re.findall(r"wire (?:width \d+ )?(?:input|output|inout) \d+ +\\(\S+)", body)
    assert len(ports) >= 3  # clock, both ways of the line
    file, text = made.constraints
    assert board.toolchain is not None
    expected, line = PLACES[board.toolchain.family]
    assert file == expected
    placed = re.findall(line, text, re.M)
    if board.toolchain.family == "ecp5":
        # On a line of its own: a quarter above the board's clock.
        margin = f'FREQUENCY NET "clock.clk" {1.25e-6 * (board.clock_hz or 0):g} MHZ;'
        assert margin in text.splitlines()
    assert set(placed) == set(ports)


def test_equal_inputs_give_equal_text_and_the_hash_is_in_it() -> None:
    board = boards.get("ulx3s-25f")
    first, again, other = (
        design(board, TINY, hash_) for hash_ in (bytes(32), bytes(32), bytes([1] * 32))
    )
    assert first == again
    assert first.rtlil != other.rtlil
    assert ".py" not in first.rtlil  # no machine's folders


def test_a_board_without_pins_says_so() -> None:
    board = replace(boards.get("ulx3s-25f"), wiring=None)
    with pytest.raises(CompileError, match=f"board '{board.name}' has no top level with pins yet"):
        design(board, TINY, bytes(32))
