"""A small engine through the real tools, to a bitstream for an ECP5-25F, twice the same."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import platformdirs
import pytest

from trivet import boards
from trivet.compiler.build import tools
from trivet.compiler.build.build import Built, build
from trivet.hdl.config import EngineConfig

TINY = EngineConfig(
    lanes=1, simd=1, requantisers=1, act_bank_words=512, weight_words=512, param_words=64,
    tables=1, addends=1, instructions=16,
)  # fmt: skip
CLOCK_HZ = 50_000_000  # so there is a PLL


def build_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Built:
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(folder))
    return build(replace(boards.get("colorlight-i5"), clock_hz=CLOCK_HZ), TINY)


@pytest.mark.synth
@pytest.mark.slow
def test_a_small_engine_becomes_a_bitstream_twice_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not tools.installed("ecp5"):
        pytest.skip("yosys or nextpnr is not installed; pip install 'trivet[build-ecp5]'")
    root = Path(os.environ.get("TRIVET_CACHE_DIR") or platformdirs.user_cache_dir("trivet"))
    folder = root / "synth" / f"build-{os.getpid()}"
    try:
        built = build_in(folder / "one", monkeypatch)
        data = built.bitstream.read_bytes()
        # The preamble of an ECP5 bitstream, and the size of a 25F's.
        assert b"\xff\xff\xbd\xb3" in data[:200]
        assert 50_000 < len(data) < 600_000
        report = built.report
        assert report.met
        assert report.resources["dsp"].error == 0
        assert report.resources["bram"].error == 0
        assert report.absorbed["ram_outputs"] > 10
        assert report.absorbed["multiplier_outputs"] >= 5
        assert report.critical_path is not None
        assert report.critical_path.text.startswith("from ")
        again = build_in(folder / "two", monkeypatch)
        assert not again.cached
        assert again.bitstream.read_bytes() == data
    finally:
        shutil.rmtree(folder, ignore_errors=True)
