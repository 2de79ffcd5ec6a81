"""A device that is killed, stopped or reset under a stream costs time, and no answer."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from board_bundle import Item, write_board_bundle
from link_board import LinkBoard, LossyLine

from trivet import Session
from trivet.hdl.config import SMALL
from trivet.hdl.isa import Program
from trivet.runtime import registry
from trivet.runtime.device import DeviceError, Stage
from trivet.runtime.devices.board import BoardDevice, Link
from trivet.runtime.link.client import BoardClient
from trivet.runtime.link.frame import Hello, Space
from trivet.sim.reference import ReferenceMachine
from trivet.sim.virtual_device import BoardProcess, VirtualDevice

COUNT = 1000
AT = 300  # items that are out when it happens


class Mended:
    """A link to a board in Python that misbehaves on demand."""

    def __init__(self, board: LinkBoard | LossyLine) -> None:
        self.board = board
        self.lock = threading.Lock()

    def write(self, data: bytes) -> None:
        with self.lock:
            self.board.write(data)

    def read(self, timeout: float) -> bytes:
        with self.lock:
            found = self.board.read(0.0)
        if not found:
            time.sleep(min(timeout, 0.002))
        return found

    def close(self) -> None:
        pass


class PythonDevice(BoardDevice):
    """A board in Python behind the host link."""

    attach = "python"
    program: Program
    lossy = False
    boards: list[LinkBoard] = []  # noqa: RUF012

    def _connect(self, stage: Stage) -> tuple[Link, BoardClient, Hello]:
        board = LinkBoard(SMALL, program=self.program)
        self.boards.append(board)
        link = Mended(LossyLine(board, seed=len(self.boards)) if self.lossy else board)
        client = BoardClient(link, self.name, timeout=1.0)
        return link, client, client.reset()


@pytest.fixture
def python_boards(monkeypatch: pytest.MonkeyPatch) -> list[LinkBoard]:
    monkeypatch.setattr(registry, "_registered", {"python": PythonDevice})
    monkeypatch.setattr(PythonDevice, "boards", [])
    return PythonDevice.boards


def stream(
    session: Session, items: list[Item], count: int, at: int, fault: Callable[[], None]
) -> None:
    """Every answer arrives, right, in order, once, though ``fault`` happens behind item ``at``."""

    def feeds() -> Iterator[dict[str, np.ndarray]]:
        for k in range(count):
            yield items[k % len(items)][0]

    told = 0
    for k, outputs in enumerate(session.stream(feeds())):
        for found, want in zip(outputs, items[k % len(items)][1], strict=True):
            assert np.array_equal(found, want), f"item {k}"
        told += 1
        if k == at:
            fault()
    assert told == count


def virtual_pids(session: Session) -> list[int]:
    found = []
    for lane in session._pipeline._flow.lanes:
        assert isinstance(lane.device, VirtualDevice)
        assert isinstance(lane.device._link, BoardProcess)
        found.append(lane.device._link.pid)
    return found


@pytest.mark.rtl
@pytest.mark.parametrize(
    ("blow", "boards"),
    [(signal.SIGKILL, 1), (signal.SIGKILL, 2), (signal.SIGSTOP, 1)],
    ids=["killed", "killed beside another", "wedged"],
)
def test_virtual_board_under_a_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], blow: signal.Signals, boards: int
) -> None:
    path = tmp_path / "m.trivet"
    members = ("fpga0", "fpga1") if boards == 2 else ()
    _, items = write_board_bundle(path, members=members)
    with Session(path) as session:
        pid = virtual_pids(session)[0]
        with pytest.warns(RuntimeWarning) as warned:
            stream(session, items, COUNT, AT, lambda: os.kill(pid, blow))
    (notice,) = [str(w.message) for w in warned]
    assert "device 'fpga0' (virtual) failed at stage 0" in notice
    assert ("device 'fpga1' (virtual)" if boards == 2 else "the CPU fallback") in notice
    (loss,) = session.losses
    assert loss.device == "fpga0"
    assert loss.seconds < 5.0
    with capsys.disabled():
        print(f" recovered after {loss.seconds:.2f} s ", end="")


def test_a_wedged_board_is_found_though_its_run_may_take_long(
    tmp_path: Path, python_boards: list[LinkBoard]
) -> None:
    path = tmp_path / "m.trivet"
    PythonDevice.program, items = write_board_bundle(path)

    def wedge() -> None:
        python_boards[0].wedged = True

    with (
        Session(path, {"fpga0": "python"}) as session,
        pytest.warns(RuntimeWarning, match=r"'fpga0' \(python\) failed .*no answer"),
    ):
        stream(session, items, 100, 30, wedge)
    assert session.losses[0].seconds < 5.0


def test_sessions_over_lossy_lines_with_a_board_lost_in_between(
    tmp_path: Path, python_boards: list[LinkBoard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas behind lossy lines; one loses power, later the other says nothing any more."""
    monkeypatch.setattr(PythonDevice, "lossy", True)
    path = tmp_path / "m.trivet"
    PythonDevice.program, items = write_board_bundle(path, members=("fpga0", "fpga1"))
    with Session(path, {"fpga0": "python", "fpga1": "python"}) as session:
        with pytest.warns(RuntimeWarning, match=r"on device 'fpga1' \(python\), which gives"):
            stream(session, items, 80, 30, lambda: python_boards[0].power_up())
        with pytest.warns(RuntimeWarning, match="'fpga1' .* on the CPU fallback, which gives"):
            stream(session, items, 80, 30, lambda: setattr(python_boards[1], "wedged", True))
        stream(session, items, 20, 0, lambda: None)
    assert [loss.device for loss in session.losses] == ["fpga0", "fpga1"]
    assert all(loss.seconds < 5.0 for loss in session.losses)


@pytest.mark.parametrize("at", [3, 30])
def test_a_board_that_lost_power_gives_no_answer_of_its_garbage(
    tmp_path: Path, python_boards: list[LinkBoard], at: int
) -> None:
    """It answers again at once, but its memories hold anything: its epoch is not ours."""
    path = tmp_path / "m.trivet"
    PythonDevice.program, items = write_board_bundle(path)
    with (
        Session(path, {"fpga0": "python"}) as session,
        pytest.warns(RuntimeWarning, match="was reset, or belongs to another session by now"),
    ):
        stream(session, items, 100, at, lambda: python_boards[0].power_up())


def test_strict_makes_it_an_error(tmp_path: Path, python_boards: list[LinkBoard]) -> None:
    path = tmp_path / "m.trivet"
    PythonDevice.program, items = write_board_bundle(path)
    with (
        Session(path, {"fpga0": "python"}, strict=True) as session,
        pytest.raises(DeviceError, match="was reset, or belongs to another session"),
    ):
        stream(session, items, 100, 20, lambda: python_boards[0].power_up())
    assert session.losses == ()


def test_scrub_finds_and_mends_a_damaged_memory(
    tmp_path: Path, python_boards: list[LinkBoard]
) -> None:
    path = tmp_path / "m.trivet"
    PythonDevice.program, items = write_board_bundle(path)
    with Session(path, {"fpga0": "python"}) as session:
        (found,) = session.scrub()
        assert (found.device, found.attach, found.stage) == ("fpga0", "python", 0)
        assert (found.damaged, found.reloaded) == (False, True)
        board = python_boards[0]
        (inputs, _), *_ = items
        right = session.run(None, inputs)
        board.spaces[Space.WGHT][5] ^= 0x40
        board._machine = None
        assert any(
            a.tobytes() != b.tobytes()
            for a, b in zip(session.run(None, inputs), right, strict=True)
        ), "nobody else would have noticed"
        assert session.scrub()[0].damaged
        assert not session.scrub()[0].damaged
        stream(session, items, 20, 5, lambda: None)


def test_a_board_that_stays_wrong_is_taken_out_of_use(
    tmp_path: Path, python_boards: list[LinkBoard], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.trivet"
    PythonDevice.program, items = write_board_bundle(path)
    with Session(path, {"fpga0": "python"}) as session:
        loaded = LinkBoard._loaded

        def stuck(board: LinkBoard, program: Program) -> ReferenceMachine:
            board.spaces[Space.WGHT][5] ^= 0x40
            board._machine = None
            return loaded(board, program)

        monkeypatch.setattr(LinkBoard, "_loaded", stuck)
        with pytest.warns(RuntimeWarning, match="also with what was loaded just now; do not use"):
            assert session.scrub() == []
        stream(session, items, 20, 5, lambda: None)
    with (
        Session(path, {"fpga0": "python"}, strict=True) as session,
        pytest.raises(DeviceError, match="'fpga0': computes wrong bytes for stage 0, also with"),
    ):
        session.scrub()


@pytest.mark.rtl
def test_scrub_between_items_of_a_stream_on_the_rtl(tmp_path: Path) -> None:
    path = tmp_path / "m.trivet"
    _, items = write_board_bundle(path)
    found: list[bool] = []
    with Session(path) as session:
        stream(session, items, 40, 12, lambda: found.extend(s.damaged for s in session.scrub()))
    assert found == [False]
