"""A stage that becomes slow is shared with the CPU: how far, and in a stream that goes on."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bundles import SHAPE, expected, write

from trivet import Session
from trivet.runtime.balance import Load, share
from trivet.runtime.devices.recorded import RecordedDevice

PACE = 0.004  # seconds of an item on each board


def test_what_fits_nowhere_else_sets_the_pace() -> None:
    found = share([Load((0.02,), None), Load((), 0.001)], cores=2)
    assert found.pace == pytest.approx(0.02, rel=1e-3)
    assert found.on_cpu == (0.0, 1.0)


def test_the_cpu_takes_what_a_board_is_too_slow_for() -> None:
    """At T the board has T / 20 ms of the items, one core the rest at 5 ms: T = 4 ms."""
    found = share([Load((0.02,), 0.005)], cores=1)
    assert found.pace == pytest.approx(0.004, rel=1e-3)
    assert found.on_cpu[0] == pytest.approx(0.8, rel=1e-3)


@pytest.mark.parametrize("seed", range(30))
def test_no_other_shares_are_faster(seed: int) -> None:
    rng = random.Random(seed)
    loads = [
        Load(tuple(rng.uniform(1, 20) for _ in range(rng.randrange(3))), rng.uniform(1, 30))
        for _ in range(rng.randrange(1, 4))
    ]
    cores = rng.choice([1, 2, 8])
    found = share(loads, cores)
    best = min(
        max(
            sum(p * (x.cpu or 0) for p, x in zip(parts, loads, strict=True)) / cores,
            *((1 - p) / sum(1 / s for s in x.boards) for p, x in zip(parts, loads, strict=True)
              if x.boards),
            0.0,
        )
        for parts in itertools.product(*(
            [k / 20 for k in range(21)] if x.boards else [1.0] for x in loads
        ))
    )  # fmt: skip
    assert found.pace <= best * 1.001
    need = sum(p * (x.cpu or 0) for p, x in zip(found.on_cpu, loads, strict=True))
    assert need <= found.pace * cores * 1.001


def test_a_stage_made_five_times_slower_in_a_stream(tmp_path: Path) -> None:
    """The bytes stay the same and most items go round the slow board; benchmarks/ has the times."""
    path = write(
        tmp_path / "m", ("onnx", "program", "onnx", "onnx"), seconds=PACE, attach="recorded",
        devices=["cpu0", "fpga0", "cpu0", "fpga1"],
    )  # fmt: skip
    x = [np.random.default_rng(k).standard_normal(SHAPE).astype(np.float32) for k in range(50)]
    with Session(path, rebalance=True) as session:
        (board,) = (d.device for d in session._pipeline._flow.lanes if d.name == "fpga0")
        assert isinstance(board, RecordedDevice)
        after = 0

        def feeds() -> Iterator[dict[str, np.ndarray]]:
            for k in itertools.count():
                if after > 300:
                    return
                yield {"x": x[k % 50]}

        for k, (y,) in enumerate(session.stream(feeds())):
            np.testing.assert_array_equal(y, expected(x[k % 50], 4), strict=True)
            if k == 100:
                board._seconds = 5 * PACE
            after += bool(session.moves)
        (moved,) = session.moves
        assert "stage 1 is shared with the CPU" in moved
        rows = {(r.index, r.attach): r.items for r in session.last_reports}
        assert rows[1, "cpu"] > 100
        assert rows[3, "recorded"] == k + 1


def test_a_board_that_is_much_too_slow_is_left_out_until_it_is_not(tmp_path: Path) -> None:
    path = write(tmp_path / "m", ("program", "onnx"), seconds=PACE, attach="recorded",
                 devices=["fpga0", "fpga1"])  # fmt: skip
    x = np.zeros(SHAPE, np.float32)
    begun = time.monotonic()
    with Session(path, rebalance=True) as session:
        slow, _ = (lane.device for lane in session._pipeline._flow.lanes)
        assert isinstance(slow, RecordedDevice)
        slow._seconds = 50 * PACE

        def feeds() -> Iterator[dict[str, np.ndarray]]:
            while len(session.moves) < 4 and time.monotonic() < begun + 30.0:
                if len(session.moves) == 2:
                    slow._seconds = PACE / 2
                yield {"x": x}

        for (y,) in session.stream(feeds()):
            np.testing.assert_array_equal(y, expected(x, 2), strict=True)
        assert "stage 0 is shared with the CPU" in session.moves[0]
        assert session.moves[1:] == (
            "stage 0: 'fpga0' is left out, too slow for the others",
            "stage 0: 'fpga0' has items again",
            "stage 0 gives a lane on the CPU back",
        )
        assert len(list(session.stream({"x": x} for _ in range(20)))) == 20
