"""Costs add up with the weakest source; measured ones come from the profile and are cached."""

from pathlib import Path

import pytest

from trivet.compiler import cost_cpu
from trivet.compiler.cost import Cost, cycles, link_seconds, seconds_at, total
from trivet.compiler.rig import Link


def test_a_sum_takes_the_weakest_source_and_keeps_the_parts() -> None:
    a = Cost(1.0, "s", "measured", "run A", 0.1)
    b = Cost(2.0, "s", "given", "rig file")
    both = total([a, b])
    assert (both.value, both.source, both.spread) == (3.0, "given", None)
    assert "run A" in both.detail
    assert "rig file" in both.detail
    assert total([a, a]).spread == 0.1
    assert total([]).value == 0.0


def test_units_and_sources_are_checked() -> None:
    with pytest.raises(ValueError, match="cannot add cycles to s"):
        total([cycles(5, "formula")])
    with pytest.raises(ValueError, match="source 'guessed'"):
        Cost(1.0, "s", "guessed", "nowhere")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without a detail"):
        Cost(1.0, "s", "given", "")
    with pytest.raises(ValueError, match="a spread belongs to measured"):
        Cost(1.0, "s", "given", "x", 0.1)
    with pytest.raises(ValueError, match="cannot be divided by a clock"):
        seconds_at(Cost(1.0, "s", "given", "x"), 1e6, "given")


def test_cycles_and_bytes_become_seconds() -> None:
    at = seconds_at(cycles(1000, "closed form"), 1e8, "planned")
    assert at.value == pytest.approx(1e-5)
    assert at.source == "predicted"
    assert "100 MHz (planned)" in at.detail
    wire = Link(("cpu0", "fpga0"), 3e5, 0.5, "given", "rig file")
    link = link_seconds(300, wire, 2)
    assert link.value == pytest.approx(1.001)
    assert "300 bytes in 2 round trips over cpu0-fpga0, 500 ms each" in link.detail
    assert link.source == "given"


def test_kernel_times_go_to_their_units() -> None:
    owners = {"conv": "conv", "a/b": "a/b", "a": "a", "copied": "other"}
    assert cost_cpu._owner("a/b/clamp", owners) == "a/b"
    assert cost_cpu._owner("a/c", owners) == "a"
    assert cost_cpu._owner("copied", owners) == "other"
    assert cost_cpu._owner("x/nchw", owners) is None
    events = [
        {"name": "model_run", "ts": 0, "dur": 100},
        {"name": "conv_kernel_time", "ts": 10, "dur": 20},
        {"name": "a/b/clamp_kernel_time", "ts": 40, "dur": 5},
        {"name": "model_run", "ts": 200, "dur": 100},
        {"name": "conv_kernel_time", "ts": 210, "dur": 30},
        {"name": "conv_fence_before", "ts": 209, "dur": 7},
    ]
    first, second = cost_cpu._per_run(events, owners, 2)
    assert first == pytest.approx({"conv": 20e-6, "a/b": 5e-6})
    assert second == pytest.approx({"conv": 30e-6})


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(tmp_path))
    assert cost_cpu.cache_dir() == tmp_path
    monkeypatch.delenv("TRIVET_CACHE_DIR")
    assert "trivet" in str(cost_cpu.cache_dir())
