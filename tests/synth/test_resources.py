"""Engines are small: cells of a one-lane engine, Verilog of the default one."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from synth.ecp5 import need_tools

from trivet.hdl.config import DEFAULT, EngineConfig
from trivet.hdl.engine import Engine
from trivet.hdl.verilog import to_verilog

NNGEN_LUT4 = 6960  # one MAC of an MLP 64-32-32-10 by NNgen, the whole design
WELL_UNDER = 0.6


@pytest.mark.synth
def test_one_lane_engine_for_an_mlp_is_well_under_nngens():
    need_tools()
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "resources.py"
    spec = importlib.util.spec_from_file_location("resources", path)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    config = benchmark.ONE_LANE
    # It holds the network 64-32-32-10: weights, channels, activations.
    assert (config.lanes, config.simd, config.requantisers) == (1, 1, 1)
    assert config.weight_words >= 64 * 32 + 32 * 32 + 32 * 10
    assert config.param_words >= 32 + 32 + 10
    assert config.act_bank_words >= 64
    assert config.instructions >= 4
    found = benchmark.resources(config)
    assert found.lut4 < WELL_UNDER * NNGEN_LUT4, found


@pytest.fixture(scope="module")
def verilog():
    """The default engine, 16 x 8."""
    config = EngineConfig(**{**DEFAULT.to_dict(), "lanes": 16, "simd": 8})
    return to_verilog(Engine(config), "engine")


def test_verilog_of_the_default_engine_is_small(verilog):
    assert len(verilog.encode()) <= 400_000


def test_every_module_is_distinct(verilog):
    bodies = re.findall(r"^module (\w+)\b(.*?)^endmodule", verilog, re.M | re.S)
    assert len(bodies) > 10
    assert len({body for _, body in bodies}) == len(bodies)


def test_verilog_is_plain(verilog):
    """Nothing of SystemVerilog, no attribute but a memory's kind, no modules but its own."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*|\"[^\"]*\"", "", verilog, flags=re.S)
    later = r"\b(logic|always_ff|always_comb|always_latch|interface|typedef|enum|struct|package)\b"
    assert not re.search(later, code)
    assert set(re.findall(r"\(\*[^)].*?\*\)", code)) <= {"(* ram_style =  *)"}
    modules = set(re.findall(r"^module (\w+)", code, re.M))
    instances = set(re.findall(r"^  (\w+) \\?\S+ \(\n", code, re.M))
    assert instances
    assert instances <= modules, instances - modules


@pytest.mark.parametrize("year", ["2001", "2005"])
def test_icarus_reads_it_as_verilog_of(year, verilog, tmp_path):
    if shutil.which("iverilog") is None:
        pytest.skip("iverilog is not installed")
    (tmp_path / "engine.v").write_text(verilog)
    command = ["iverilog", f"-g{year}", "-t", "null", "-s", "engine", "engine.v"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
