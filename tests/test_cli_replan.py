"""``trivet replan``: stages placed anew by what a stream took; the bytes stay the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import SHAPE, expected, write
from entry_point import Call, entry_point

from trivet import Bundle, Session
from trivet._cli_replan import measured_times
from trivet.compiler.cost import Cost
from trivet.compiler.errors import CompileError
from trivet.compiler.planner.replan import PlacedStage, Replanned, replan


@pytest.fixture
def trivet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    return entry_point(tmp_path, monkeypatch, capsys)


RIG = {"cpu0": ("cpu", ""), "fpga0": ("fpga", "a"), "fpga1": ("fpga", "a"), "fpga2": ("fpga", "b")}


def chain(*rows: tuple[str, dict[str, float]]) -> Replanned:
    """Replan stages ``t0 -> t1 -> ...``, each with its device and seconds by device."""
    stages = [
        PlacedStage(
            (f"t{k}",), (f"t{k + 1}",), tuple(home.split("+")),
            {name: Cost(s, "s", "measured", "a test") for name, s in seconds.items()},
        )
        for k, (home, seconds) in enumerate(rows)
    ]  # fmt: skip
    entries = [{"index": k, "device": s.members[0]} for k, s in enumerate(stages)]
    return replan({"version": 1, "stages": entries}, stages, RIG)


def test_a_slow_board_loses_its_stage_to_the_cpu() -> None:
    found = chain(("cpu0", {"cpu0": 1.0}), ("fpga0", {"fpga0": 10.0, "fpga1": 10.0, "cpu0": 2.0}))
    assert found.homes == (("cpu0",), ("cpu0",))
    assert (found.before, found.after) == (10.0, 3.0)
    assert found.solution.status == "optimal"
    assert found.solution.lower_bound == pytest.approx(3.0, rel=1e-5)
    (_, entry) = found.plan["stages"]
    assert (entry["device"], entry["compute"]) == ("cpu0", 2.0)
    assert entry["costs"]["compute"]["source"] == "measured"


def test_a_free_board_becomes_a_replica() -> None:
    found = chain(("cpu0", {"cpu0": 1.0}), ("fpga0", {"fpga0": 4.0, "fpga1": 4.0, "cpu0": 9.0}))
    assert found.homes == (("cpu0",), ("fpga0", "fpga1"))
    assert found.after == pytest.approx(2.0)
    assert found.plan["stages"][1]["replicas"] == 2


def test_a_board_holds_one_stage() -> None:
    board = {"fpga0": 1.0, "fpga1": 1.0, "cpu0": 50.0}
    found = chain(("fpga0", board), ("fpga1", board), ("cpu0", {"cpu0": 0.5}))
    assert {found.homes[0], found.homes[1]} == {("fpga0",), ("fpga1",)}
    assert found.before == found.after == 1.0


def test_what_cannot_be_placed_is_said() -> None:
    with pytest.raises(CompileError, match="stage 0 has no time on fpga0, where it runs"):
        chain(("fpga0", {"cpu0": 1.0}))
    stage = PlacedStage(("x",), ("y",), ("fpga0", "fpga1"), {})
    with pytest.raises(CompileError, match="stage 0 is split over devices"):
        replan({"stages": [{"index": 0, "shards": 2}]}, [stage], RIG)


def trace(path: Path, spans: list[tuple[int, str, float, float]], **facts: Any) -> Path:
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1}]
    events += [
        {"ph": "X", "name": f"stage {stage}", "cat": "measured", "ts": ts, "dur": dur, "pid": 1,
         "tid": stage, "args": {"stage": stage, "device": device, **facts}}
        for stage, device, ts, dur in spans
    ]  # fmt: skip
    events.append({"ph": "X", "name": "p", "cat": "predicted", "ts": 0, "dur": 1, "pid": 2,
                   "args": {"stage": 0, "device": "cpu0"}})  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_time_of_items_that_overlap_is_counted_once(tmp_path: Path) -> None:
    spans = [(1, "fpga0", 10.0 * k, 20.0) for k in range(9)]
    spans += [(1, "fpga1", 100.0 * k, 5.0) for k in range(4)]
    times = measured_times(trace(tmp_path / "t.json", spans, attach="uart"))
    assert times == {
        (1, "fpga0"): (pytest.approx(10e-6), "uart"), (1, "fpga1"): (pytest.approx(5e-6), "uart")
    }  # fmt: skip


def test_what_the_cpu_did_in_a_boards_place_is_left_out(tmp_path: Path) -> None:
    rows = [
        {"stage": 0, "device": "fpga0", "attach": "virtual", "items": 10, "busy": 2.0},
        {"stage": 0, "device": "fpga0", "attach": "cpu", "items": 90, "busy": 0.9},
        {"stage": 1, "device": "fpga1", "attach": "uart", "items": 0, "busy": 0.0},
    ]
    (tmp_path / "r.json").write_text(json.dumps({"stages": rows}))
    assert measured_times(tmp_path / "r.json") == {(0, "fpga0"): (0.2, "virtual")}


def test_times_of_a_simulator_are_named(tmp_path: Path, trivet: Call) -> None:
    write(tmp_path / "m.trivet", ("program",))
    row = {"stage": 0, "device": "fpga0", "attach": "virtual", "items": 10, "busy": 2.0}
    (tmp_path / "r.json").write_text(json.dumps({"stages": [row]}))
    code, out, err = trivet("replan", "m.trivet", "--from-trace", "r.json")
    assert code == 0
    assert "the times of fpga0 are a simulator's and say nothing of a board" in err
    assert "stage 0 on cpu0, was on fpga0" in out


def test_a_stream_is_traced_and_the_bundle_placed_anew(tmp_path: Path, trivet: Call) -> None:
    write(tmp_path / "m.trivet", ("onnx", "program", "onnx"), seconds=0.001, batch="N",
          attach="recorded")  # fmt: skip
    x = np.random.default_rng(1).standard_normal((30, *SHAPE[1:])).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    code, out, err = trivet(
        "run", "m.trivet", "-i", "x.npz", "-o", "y.npz", "--json",
        "--device", "fpga0=recorded:seconds=0.005",
    )  # fmt: skip
    assert code == 0, err
    (tmp_path / "run.json").write_text(out)
    code, out, err = trivet("replan", "m.trivet", "--from-trace", "run.json", "-o", "new.trivet")
    assert code == 0, err
    assert "stage 1 on cpu0, was on fpga0" in out
    assert "ms from item to item become" in out
    with Bundle.open(tmp_path / "new.trivet") as bundle:
        assert [s.device for s in bundle.plan().stages] == ["cpu0"] * 3
    with Session(tmp_path / "new.trivet") as session:
        (y,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, expected(x, 3), strict=True)
    code, out, err = trivet("replan", "m.trivet", "--from-trace", "run.json", "--json")
    assert code == 0, err
    assert json.loads(out)["status"] == "optimal"


def test_run_scrubs_and_rebalances(tmp_path: Path, trivet: Call) -> None:
    write(tmp_path / "m.trivet", ("onnx", "program"), attach="recorded")
    np.savez(tmp_path / "x.npz", x=np.zeros(SHAPE, np.float32))
    code, out, err = trivet(
        "run", "m.trivet", "-i", "x.npz", "-o", "y.npz", "--scrub", "--rebalance"
    )
    assert code == 0, err
    assert out.count("scrub: stage 1 on fpga0 (recorded): sound") == 2


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "cannot be read"),
        ("{", "not JSON"),
        ("{}", "neither a trace nor what trivet run --json prints"),
        ('{"traceEvents": []}', "no item of any stage is in it"),
        ('{"stages": [{"stage": 7, "device": "cpu0", "attach": "cpu", "items": 1, "busy": 1}]}',
         "has stage 7 on cpu0, which"),
    ],
)  # fmt: skip
def test_a_trace_that_is_none(tmp_path: Path, trivet: Call, content: str | None, text: str) -> None:
    write(tmp_path / "m.trivet", ("onnx",))
    if content is not None:
        (tmp_path / "t.json").write_text(content)
    code, _, err = trivet("replan", "m.trivet", "--from-trace", "t.json")
    assert code == 2
    assert text in err
    assert len(err.splitlines()) == 1
