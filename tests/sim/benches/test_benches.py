"""Runs the cocotb benches: the same ones under Verilator and under Icarus.

A design is compiled once and kept in Trivet's cache folder, named by the hash of what it is made
from. ``TRIVET_BENCH_SIM`` (verilator, icarus) chooses one simulator only.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import golden_graph
import numpy as np
import pytest
from cocotb_tools.runner import get_results, get_runner
from filelock import FileLock
from layerwise import feeds, nhwc
from random_graphs import random_graph, random_inputs

from trivet.compiler.build.recipe import _NEVER_MEET as NEVER_MEET
from trivet.compiler.lower import lower
from trivet.hdl import verilog
from trivet.hdl.config import DEFAULT, SMALL, EngineConfig
from trivet.hdl.engine import Engine
from trivet.hdl.top import Top
from trivet.sim.build import cache_dir, code_digest, verilator_root

pytestmark = pytest.mark.rtl

HERE = Path(__file__).parent
# Seeds of small random graphs with convolutions, pools, tables and (20, 12) an addition.
SEEDS = {"verilator": (37, 1, 4, 12), "icarus": (37,)}
STALLS = {"verilator": "0.1,0.5,0.9", "icarus": "0.1,0.6"}
# Yosys writes Verilog that the wheel's make files cannot take as they are: TOOLS in the docs.
MAKE_FLAGS = (
    "CFG_CXXFLAGS_PCH_I=-include CFG_LDLIBS_THREADS=-pthread "
    "CFG_CXXFLAGS_COROUTINES=-fcoroutines CFG_CXXFLAGS_STD=-std=gnu++20 "
    # The benches simulate some ten thousand cycles: compiling fast matters more than running fast.
    "OPT_FAST=-O0 OPT_SLOW=-O0 OPT_GLOBAL=-O0 -j2"
)
VERILATOR = ("-Wno-fatal", "-Wno-lint", "--output-split", "10000")
READ = re.compile(r"^  cell \$memrd_v2 .*?^  end\n", re.M | re.S)
MODULE = re.compile(r"^module \\(\S+)$", re.M)
KICK = re.compile(r"^  reg (\\\$auto\$verilog_backend\S+) +=\s*0;", re.M)


def simulator(name: str) -> str:
    """The simulator's name; the test is skipped where it is absent or not wanted."""
    wanted = os.environ.get("TRIVET_BENCH_SIM", name)
    if wanted != name:
        pytest.skip(f"TRIVET_BENCH_SIM asks for {wanted}")
    if name == "icarus" and not shutil.which("iverilog"):
        pytest.skip("Icarus Verilog is not installed; apt install iverilog")
    return name


def built(design: str, sim: str, config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A cocotb runner of the design, compiled unless the cache has it."""
    monkeypatch.setenv("MAKEFLAGS", MAKE_FLAGS)
    if sim == "verilator":
        monkeypatch.setenv("VERILATOR_ROOT", str(verilator_root()))
        monkeypatch.setenv("PATH", str(verilator_root() / "bin"), prepend=os.pathsep)
    logging.getLogger("cocotb").setLevel(logging.WARNING)
    runner = get_runner(sim)
    arguments = list(VERILATOR) if sim == "verilator" else []
    parts = [design, sim, config.to_dict(), code_digest(files("trivet.hdl")), MAKE_FLAGS, arguments]
    parts += [sys.version, KICK.pattern, NEVER_MEET, version("cocotb"), version("verilator")]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    folder = cache_dir() / "benches" / f"{design}-{sim}-{config.lanes}x{config.simd}-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        done = folder / "complete"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            component = Engine(config) if design == "engine" else Top(config, bytes(32))
            if sim == "icarus":
                merge = verilog._merge
                monkeypatch.setattr(verilog, "_merge", lambda t: merge(meeting_gives_x(t, design)))
            text = verilog.to_verilog(component, design)
            if sim == "icarus":
                # Yosys counts on an event at time 0 that Icarus 11 does not raise: logic of signals
                # that keep their initial values would stay x. Raise it a nanosecond later.
                text = KICK.sub(r"  reg \1 ;\n  initial #1 \1 = 0;", text)
            (folder / f"{design}.v").write_text(text, encoding="utf-8")
            runner.build(
                sources=[folder / f"{design}.v"],
                hdl_toplevel=design,
                build_dir=folder,
                build_args=arguments,
                always=True,
                timescale=("1ns", "1ps"),
                log_file=folder / "build.log",
            )
            done.touch()
    return runner, folder


def meeting_gives_x(text: str, top: str) -> str:
    """RTLIL in which a word that is read as it is written is x, as in a block RAM.

    Only those memories whose contract says that this never matters: the build counts on it.
    """
    parts = re.split(r"(?<=^end\n)", text, flags=re.M)
    changed = 0
    for k, part in enumerate(parts):
        match = MODULE.search(part)
        name = match[1] if match else ""
        path = name if top != "engine" else f"top.{name}"
        if any(fnmatch(path, pattern) for pattern in NEVER_MEET):
            parts[k], count = READ.subn(
                lambda cell: re.sub(
                    r"(parameter \\COLLISION_X_MASK) .*", r"\1 1'1", cell[0]
                ), part
            )  # fmt: skip
            changed += count
    assert changed > 5
    return "".join(parts)


@pytest.fixture(scope="session")
def scratch() -> Any:
    """A folder for cases and results; not below /tmp, which some tools cannot see."""
    parent = cache_dir() / "benches"
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def case(seed: int, config: EngineConfig, folder: Path) -> Path:
    """File of a random program, an item's inputs and golden's outputs."""
    path = folder / f"case-{seed}-{config.lanes}.npz"
    if not path.exists():
        graph = random_graph(seed, 3, channels=9, side=5)
        # The benches write inputs themselves, as they lie in memory.
        program = lower(graph, [u.name for u in graph.units], config, expand=False, overlap=True)
        values = golden_graph.run(graph, random_inputs(graph, seed)[0])
        arrays = {f"in:{n}": a for n, a in feeds(program, values).items()}
        for port in program.outputs:
            arrays[f"out:{port.tensor}"] = nhwc(values[port.tensor]).reshape(port.hwc)
        np.savez(path, program=np.frombuffer(program.to_bytes(), np.uint8), **arrays)
    return path


def run_bench(
    design: str, sim: str, config: EngineConfig, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, folder = built(design, simulator(sim), config, monkeypatch)
    paths = [str(case(seed, config, scratch)) for seed in SEEDS[sim]]
    results = Path(tempfile.mkdtemp(prefix=f"{design}-", dir=scratch))
    monkeypatch.syspath_prepend(str(HERE))
    try:
        runner.test(
            hdl_toplevel=design,
            hdl_toplevel_lang="verilog",
            test_module=f"{design}_bench",
            build_dir=folder,
            test_dir=results,
            results_xml=str(results / "results.xml"),
            log_file=results / "log.txt",
            seed=1,
            timescale=("1ns", "1ps"),
            extra_env={
                "TRIVET_BENCH_CASES": os.pathsep.join(paths),
                "TRIVET_BENCH_STALLS": STALLS[sim],
            },
        )
        ran, failed = get_results(results / "results.xml")
    except (SystemExit, subprocess.CalledProcessError, RuntimeError):
        ran, failed = 0, 1
    if failed or not ran:
        pytest.fail((results / "log.txt").read_text(encoding="utf-8")[-6000:], pytrace=False)


DESIGNS = ("engine", "top")


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("sim", ["verilator", "icarus"])
def test_small(design: str, sim: str, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_bench(design, sim, SMALL, scratch, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_default(design: str, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_bench(design, "verilator", DEFAULT, scratch, monkeypatch)
