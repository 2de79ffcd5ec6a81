"""Two sessions, one board, on the RTL and in Python: one owns it, a stale one changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from link_board import LinkBoard

from trivet.hdl.config import SMALL
from trivet.hdl.isa import Instruction, Op, Port, Program
from trivet.runtime.device import DeviceError
from trivet.runtime.link.client import BoardClient
from trivet.sim.board import VirtualBoard
from trivet.sim.build import build

PORT = Port("x", 5, (1, 1, 16), "int8")
PROGRAM = Program(SMALL, (Instruction(op=Op.END),), b"", b"", b"", b"", (PORT,), (), ())
Board = LinkBoard | VirtualBoard


@pytest.fixture(params=["python", pytest.param("rtl", marks=pytest.mark.rtl)])
def board(request: pytest.FixtureRequest) -> Iterator[Board]:
    made: Board = LinkBoard(SMALL) if request.param == "python" else VirtualBoard(build(SMALL))
    yield made
    made.close()


def client(board: Board, name: str) -> BoardClient:
    return BoardClient(board, name, timeout=1.0)


def values(value: int) -> np.ndarray:
    return np.full(16, value, np.int8)


def owner(board: Board, name: str, value: int) -> BoardClient:
    """A client that takes the board and writes."""
    made = client(board, name)
    made.reset()
    made.load_program(PROGRAM.to_bytes())
    made.write_tensor(PORT, values(value))
    return made


def test_a_second_owner_is_refused_in_one_line(board: Board) -> None:
    first = owner(board, "fpga0", 1)
    with pytest.raises(DeviceError) as caught:
        client(board, "other").reset()
    (line,) = str(caught.value).splitlines()
    assert line.startswith("other: board '")
    assert "is in use by another session (lease 1); close that one, or wait" in line
    assert np.array_equal(first.read_tensor(PORT).reshape(-1), values(1))
    first.write_tensor(PORT, values(2))


def test_a_stale_owner_neither_writes_nor_reads_nor_runs(board: Board) -> None:
    """Its lease was given back by another hand; RTL leases are too long to be simulated here."""
    first = owner(board, "fpga0", 1)
    if isinstance(board, LinkBoard):
        board.seconds += 2 * board.lease
    else:
        gone = client(board, "fpga0")
        gone._exchange.epoch = first._exchange.epoch
        gone.give_back()
    second = owner(board, "other", 2)
    for attempt in (
        lambda: first.write_tensor(PORT, values(3)),
        lambda: first.read_tensor(PORT),
        lambda: first.run(1),
        first.reset,
    ):
        with pytest.raises(DeviceError, match=r"belongs to another session|in use by another"):
            attempt()
    assert np.array_equal(second.read_tensor(PORT).reshape(-1), values(2))


def test_a_board_that_was_reset_says_so(board: Board) -> None:
    first = owner(board, "fpga0", 1)
    if isinstance(board, LinkBoard):
        board.power_up()
    else:
        board.reset()
    with pytest.raises(DeviceError, match="fpga0: the board refused PEEK: it was reset"):
        first.read_tensor(PORT)
    first.reset()
    first.write_tensor(PORT, values(4))
    assert np.array_equal(first.read_tensor(PORT).reshape(-1), values(4))


def test_a_board_given_back_is_free(board: Board) -> None:
    owner(board, "fpga0", 1).give_back()
    owner(board, "other", 2)


def test_an_answer_lost_while_taking_the_board_is_no_refusal(board: Board) -> None:
    """RESET was done, its answer was lost, its copy is refused: the epoch says that it was ours."""

    class Deaf:
        lost = 0

        def write(self, data: bytes) -> None:
            board.write(data)

        def read(self, timeout: float) -> bytes:
            found = board.read(timeout)
            if found and self.lost < 1:
                self.lost += 1
                return b""
            return found

    line = Deaf()
    made = BoardClient(line, "fpga0", timeout=0.5)
    assert made.reset().epoch & 0xFF == 1
    assert line.lost == 1
    made.load_program(PROGRAM.to_bytes())
    made.write_tensor(PORT, values(1))
