"""The search on a rig: lower what the solver chose, hold it against the rules, and solve again.

The planner first sees sums over units, which are lower bounds of an FPGA run's cycles. A run that
is chosen is lowered; its exact cycles replace the sum, a run that does not fit is ruled out. The
quick search along topological orders goes first, until what it chooses is exact; then the proof
either finds a better plan, which is lowered in turn, or that there is none. A plan of exact runs is
held against the rules of the rig. A run that breaks one by itself (its share of communication) is
forbidden, and the search goes on: what comes out is the optimum of the plans that keep the rules. A
rule over the whole plan (balance, link load) forbids the plan's runs as well; where other plans
might have used those, the bound stays that of the search before. So it does when the attempts run
out and only runs that keep the rules for certain are left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from trivet.compiler.cost_fpga import program_cycles
from trivet.compiler.errors import CompileError
from trivet.compiler.lower import lower
from trivet.compiler.rig import Rig, RigDevice
from trivet.compiler.split import split_refusal, split_unit
from trivet.compiler.stages import moves_bytes
from trivet.compiler.units import Graph
from trivet.hdl.isa import Program
from trivet.hdl.transfer import expand_cycles, expand_frames

from . import linear
from .check import Evaluation, check
from .linear import better, judged
from .plan import RuleResult
from .problem import Problem, Run
from .rules import limits
from .solve import TOLERANCE, Solution, solve

__all__ = ["Found", "Lowered", "add_splits", "find", "given"]

MAX_ROUNDS = 60
PROOF_SECONDS = 60.0  # then the plan is what was found by then, with the gap that is left
RULE_ATTEMPTS = 40  # plans that may break a rule before only runs that keep it for sure are tried
INFINITE = float("inf")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Found:
    """The best plan that keeps the rules; ``solution.runs`` is empty when there is none.

    ``broken`` are rules as the best plan broke them that does not keep them, () where it does;
    ``certain`` is False when there may be plans that keep the rules and were not tried.
    """

    problem: Problem
    solution: Solution
    verdict: Evaluation
    programs: dict[int, tuple[Program, ...]]  # by index of the run, one for each shard
    broken: tuple[RuleResult, ...] = ()
    certain: bool = True


class Lowered:
    """Programs of runs on the rig's engines, or why there is none: each made once."""

    def __init__(self, graph: Graph, rig: Rig) -> None:
        self._graph = graph
        self._rig = rig
        self._known: dict[tuple[str, frozenset[int]], Program | CompileError] = {}
        self._parts: dict[tuple[str, int, int], tuple[Program, ...] | None] = {}

    def programs(self, run: Run) -> tuple[Program, ...]:
        """Of a run that was lowered: one for each shard."""
        device = self._rig.device(run.machine)
        if run.shards > 1:
            parts = self.split(device, run.units[0], run.shards)
            assert parts is not None
            return parts
        found = self._known[self._key(device, run.units)]
        assert isinstance(found, Program)
        return (found,)

    def reason(self, device: RigDevice, units: tuple[int, ...]) -> str:
        """Why :meth:`lower` has no program for the run."""
        found = self._known[self._key(device, units)]
        return str(found) if isinstance(found, CompileError) else "it breaks the rule 'memory'"

    def split(self, device: RigDevice, unit: int, parts: int) -> tuple[Program, ...] | None:
        """Programs of the parts of a unit; None when it cannot be split or a part does not fit."""
        assert device.engine is not None
        key = device.engine.sha256, unit, parts
        if key not in self._parts:
            name = self._graph.units[unit].name
            self._parts[key] = None
            if split_refusal(self._graph.units[unit], parts) is None:
                pieces = split_unit(self._graph, name, parts)
                with suppress(CompileError):
                    self._parts[key] = tuple(
                        lower(piece, [name], device.engine, overlap=True) for piece in pieces
                    )
        return self._parts[key]

    def _key(self, device: RigDevice, units: tuple[int, ...]) -> tuple[str, frozenset[int]]:
        """Boards with equal engines run equal programs."""
        assert device.engine is not None
        return device.engine.sha256, frozenset(units)

    def lower(self, device: RigDevice, units: tuple[int, ...]) -> Program | None:
        """A run's program; None when it does not fit, or takes more memory than ``memory_max``."""
        key = self._key(device, units)
        if key not in self._known:
            self._known[key] = self._try(device, units)
        found = self._known[key]
        if isinstance(found, CompileError):
            return None
        return found if _keeps_memory(self._rig, found) else None

    def _try(self, device: RigDevice, units: tuple[int, ...]) -> Program | CompileError:
        assert device.engine is not None
        graph = self._graph
        names = [graph.units[u].name for u in units]
        # A beginning or end of views alone is no stage; what matters is whether its layers fit.
        if all(graph.unit(n).kind == "view" for n in names):
            return CompileError("views only")
        while graph.unit(names[-1]).kind == "view" and moves_bytes(graph, graph.unit(names[-1])):
            names.pop()
        try:
            return lower(graph, names, device.engine, overlap=True)
        except CompileError as e:
            return e

    def under(self, rig: Rig) -> Lowered:
        """The same programs under another rig's rules."""
        other = Lowered(self._graph, rig)
        other._known = self._known
        other._parts = self._parts
        return other


def _keeps_memory(rig: Rig, program: Program) -> bool:
    config = program.config
    share = len(program.weights) / (config.weight_word_bytes * config.weight_words)
    return share <= rig.rules.get("memory_max", 1.0) * (1 + 1e-12)


def find(rig: Rig, problem: Problem, lowered: Lowered, progress: Progress | None = None) -> Found:
    """The best plan of exact runs that keeps the rules of the rig."""
    bound = INFINITE  # of plans that were ruled out together with one that breaks a rule
    worst: tuple[RuleResult, ...] = ()
    boards = [m.name for m in problem.machines if m.kind == "fpga"]
    # With one CPU and one FPGA, a plan is what the FPGA runs: forbidding the run forbids no other.
    alone = len(problem.machines) == 2 and len(boards) == 1
    for _ in range(RULE_ATTEMPTS):
        found = _judged(rig, problem, lowered, progress)
        problem = found.problem
        if not found.solution.runs or not found.broken:
            return _bounded(found, bound, worst)
        worst = worst or found.broken
        runs = [r for r in found.solution.runs if r.machine in boards]
        guilty = {r.where for r in found.broken if r.name == "communication share"}
        blamed = [r for r in runs if r.machine in guilty] or runs
        if not blamed:
            break
        if not (guilty or alone):
            bound = min(bound, _floor(problem))
        keys = frozenset(problem.key(r) for r in blamed)
        problem = replace(problem, banned=problem.banned | keys)
    bound = min(bound, _floor(problem))
    safe = replace(problem, share_max=rig.rules.get("communication_share_max"))
    found = _judged(rig, safe, lowered, progress)
    if found.broken or not found.solution.runs:
        found = _judged(rig, _without(problem, boards), lowered, progress)
    if found.broken:
        empty = Solution((), INFINITE, INFINITE, "infeasible")
        return Found(found.problem, empty, found.verdict, {}, worst, certain=False)
    return _bounded(found, bound, worst)


def add_splits(rig: Rig, problem: Problem, lowered: Lowered) -> Problem:
    """The problem with the exact seconds of every layer's parts, where the rig allows parts."""
    splits = {}
    for machine in problem.machines if rig.planner.shards > 1 else ():
        device = rig.device(machine.name)
        if machine.kind != "fpga" or device.clock_hz is None:
            continue
        twins = sum(m.sort == machine.sort for m in problem.machines)
        for t in range(2, min(rig.planner.shards, twins) + 1):
            for u, seconds in enumerate(machine.seconds):
                key = machine.sort, u, t
                if seconds is None or key in splits:
                    continue
                parts = lowered.split(device, u, t)
                if parts is None or not all(_keeps_memory(rig, p) for p in parts):
                    continue
                if machine.overlap and any(p.interval is None for p in parts):
                    continue  # its load would not be the longer of engine and link
                splits[key] = max(
                    program_cycles(p) / device.clock_hz
                    + _entry(problem, machine.name, p, device.clock_hz)
                    for p in parts
                )
    return replace(problem, splits=splits)


def _floor(problem: Problem) -> float:
    """A bound of all plans that the problem still allows, whatever it asks to be placed where."""
    return solve(replace(problem, place="auto")).lower_bound


def _bounded(found: Found, bound: float, worst: tuple[RuleResult, ...]) -> Found:
    """The result with the bound of what else was ruled out, and the rules that were in the way."""
    certain = bound == INFINITE
    solution = found.solution
    if not certain:
        low = min(bound, solution.lower_bound)
        reached = low >= solution.lower_bound
        status = solution.status if reached else "feasible"
        solution = replace(solution, lower_bound=low, status=status)
    return replace(found, solution=solution, broken=worst, certain=certain)


def _without(problem: Problem, names: list[str]) -> Problem:
    """The problem with nothing on those machines."""
    nothing = (None,) * len(problem.units)
    machines = tuple(
        replace(m, seconds=nothing) if m.name in names else m for m in problem.machines
    )
    return replace(problem, machines=machines)


def given(
    rig: Rig, problem: Problem, runs: tuple[Run, ...], lowered: Lowered, bound: float
) -> Found:
    """A plan that somebody wrote, its runs lowered and held against the rules.

    ``bound`` is that of all plans. CompileError names what the plan breaks.
    """
    for run in _open(problem, runs):
        device = rig.device(run.machine)
        if lowered.lower(device, run.units) is None:
            raise CompileError(
                f"plan: the stage of {problem.units[run.units[0]]!r} cannot run on {run.machine}: "
                f"{lowered.reason(device, run.units)}; move layers of it elsewhere"
            )
        problem = _lower_run(rig, problem, run, lowered)
    verdict = check(problem, runs)
    if verdict.violations:
        raise CompileError(f"plan: {'; '.join(verdict.violations)}; change the stages named")
    low = min(bound, verdict.objective)
    reached = verdict.objective - low <= 2 * TOLERANCE * verdict.objective
    status: Literal["optimal", "feasible"] = "optimal" if reached else "feasible"
    found = _held(rig, problem, lowered, Solution(runs, verdict.objective, low, status))
    if found.broken:
        rule = found.broken[0]
        raise CompileError(
            f"plan: it breaks the rule {rule.name!r} at {rule.where}: {rule.value:.4g}, the limit "
            f"is {rule.limit:g}; change the stages or the rule"
        )
    return found


def _judged(rig: Rig, problem: Problem, lowered: Lowered, progress: Progress | None) -> Found:
    """The best plan of exact runs, proven unless it breaks a rule, and the rules that it breaks."""
    problem, start = _settle(rig, problem, lowered, progress)
    quick = Solution(start.runs, start.objective, 0.0, "feasible")
    found = _held(rig, problem, lowered, quick)
    if found.broken:
        return found
    problem, solution = _prove(rig, problem, start, lowered, progress)
    return _held(rig, problem, lowered, solution)


def _held(rig: Rig, problem: Problem, lowered: Lowered, solution: Solution) -> Found:
    """A plan of exact runs with its programs, held against the rules."""
    verdict = check(problem, solution.runs)
    if not solution.runs:
        return Found(problem, solution, verdict, {})
    programs = {
        k: lowered.programs(run)
        for k, run in enumerate(solution.runs)
        if problem.machine(run.machine).kind == "fpga"
    }
    rules = limits(rig, problem, solution, verdict, programs)
    broken = tuple(r for r in rules if r.hard and not r.ok)
    return Found(problem, solution, verdict, programs, broken)


def _open(problem: Problem, runs: tuple[Run, ...]) -> list[Run]:
    """Runs on FPGAs whose exact cycles are not known yet."""
    return [
        r
        for r in runs
        if problem.machine(r.machine).kind == "fpga"
        and r.shards == 1
        and problem.key(r) not in problem.exact
    ]


def _settle(
    rig: Rig, problem: Problem, lowered: Lowered, progress: Progress | None
) -> tuple[Problem, linear.Found]:
    """Plan along orders, lower what was chosen, and again until every FPGA run is exact."""
    for _ in range(MAX_ROUNDS):
        found = linear.solve(problem)
        unknown = _open(problem, found.runs)
        if not unknown:
            return problem, found
        problem = _lower_runs(rig, problem, unknown, lowered, progress)
    raise CompileError(
        f"plan: no set of layers that fits was found in {MAX_ROUNDS} attempts; "
        "pin some of its layers to a cpu"
    )


def _lower_runs(
    rig: Rig, problem: Problem, runs: list[Run], lowered: Lowered, progress: Progress | None
) -> Problem:
    if progress is not None:
        progress(f"lowering {len(runs[0].units)} units for {runs[0].machine}")
    for run in runs:
        problem = _lower_run(rig, problem, run, lowered)
    return problem


def _prove(
    rig: Rig,
    problem: Problem,
    best: linear.Found,
    lowered: Lowered,
    progress: Progress | None,
) -> tuple[Problem, Solution]:
    """Better plans, lowered, until there is none: the bound holds for every plan."""
    until = time.monotonic() + PROOF_SECONDS
    if progress is not None:
        progress("proving")
    while True:
        left = until - time.monotonic()
        solution = solve(problem, seconds=left, start=best)
        unknown = _open(problem, solution.runs)
        if not unknown:
            return problem, solution
        problem = _lower_runs(rig, problem, unknown, lowered, progress)
        found = judged(problem, solution.runs)
        if not _open(problem, found.runs) and better(problem, found, best):
            best = found
        if time.monotonic() > until:
            low = min(solution.lower_bound, best.objective)
            return problem, Solution(best.runs, best.objective, low, "feasible")


def _lower_run(rig: Rig, problem: Problem, run: Run, lowered: Lowered) -> Problem:
    """The problem with the run's exact seconds, or without the run when it does not fit."""
    device = rig.device(run.machine)
    assert device.clock_hz is not None
    key = problem.key(run)
    found = lowered.lower(device, run.units)
    if found is not None:
        interval = problem.interval
        if found.interval is not None:
            interval = {**interval, key: found.interval / device.clock_hz}
        elif problem.machine(run.machine).overlap:
            problem = replace(problem, serial=problem.serial | {key})
        return replace(
            problem,
            exact={**problem.exact, key: program_cycles(found) / device.clock_hz},
            interval=interval,
            entry={**problem.entry, key: _entry(problem, run.machine, found, device.clock_hz)},
        )
    # The shortest beginning that does not fit is ruled out, and with it all that contain it.
    low, high = 1, len(run.units)
    while low < high:
        middle = (low + high) // 2
        if lowered.lower(device, run.units[:middle]) is not None:
            low = middle + 1
        else:
            high = middle
    rest = tuple(run.units[:high])
    while len(rest) > 1 and lowered.lower(device, rest[1:]) is None:
        rest = rest[1:]
    sort = problem.machine(run.machine).sort
    misfits = (*problem.misfits.get(sort, ()), frozenset(rest))
    return replace(problem, misfits={**problem.misfits, sort: misfits})


def _entry(problem: Problem, machine: str, program: Program, clock_hz: float) -> float:
    """Seconds to spread inputs over windows, and in the round trips that this takes besides."""
    channel = problem.machine(machine).channel
    assert channel is not None
    plain = {v.name: v.load_trips for v in problem.values}
    seconds = 0.0
    for port in program.inputs:
        if port.expand is not None:
            more = expand_frames(port.expand) - plain[port.tensor]
            seconds += expand_cycles(port.expand) / clock_hz + more * channel.latency_seconds
    return seconds
