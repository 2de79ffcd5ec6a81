"""Planning from end to end: problem, solution, exact programs, and the plan that is written down.

The planner first sees sums over units, which are lower bounds of an FPGA run's cycles. The run that
it chooses is lowered; its exact cycles replace the sum, a run that does not fit is ruled out, and
the search is repeated until the chosen runs are exact. What it then returns is optimal, since every
other plan was judged by a lower bound of its cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from trivet.compiler.cost import Cost, cycles, link_seconds, seconds_at, total
from trivet.compiler.cost_fpga import FORMULA, EngineCosts, program_cycles
from trivet.compiler.errors import CompileError
from trivet.compiler.lower import lower
from trivet.compiler.rig import Rig, RigDevice
from trivet.compiler.stages import StageUnits, cut, moves_bytes, travels
from trivet.compiler.units import ConvSpec, Graph, Unit
from trivet.hdl.isa import Program

from .linear import Solution, solve
from .plan import VERSION, AutoPlan, CostEntry, Plan, StagePlan
from .problem import Channel, Evaluation, Machine, Problem, Run, Value, check
from .rules import judge

__all__ = ["Costs", "Planned", "make_plan", "make_problem"]

MAX_ROUNDS = 60


@dataclass(frozen=True)
class Costs:
    """What the cost step found: seconds of every unit by CPU, cycles of every unit by FPGA."""

    cpu: dict[str, dict[str, Cost]]  # device -> unit -> cost
    fpga: dict[str, EngineCosts]  # device -> costs

    def refusal(self, device: str, unit: str) -> str | None:
        engine = self.fpga.get(device)
        return None if engine is None else engine.refusals.get(unit)


@dataclass(frozen=True)
class Planned:
    """The plan with what later steps need: stages and the programs of the FPGA ones by index."""

    plan: Plan
    stages: tuple[StageUnits, ...]
    programs: dict[int, Program]


def constants_bytes(unit: Unit) -> int:
    """Weights and biases of a unit in bytes."""
    if isinstance(unit.spec, ConvSpec):
        return int(unit.spec.weight.size + 4 * unit.spec.bias.size + 4 * unit.spec.m.size)
    return 0


def make_problem(graph: Graph, rig: Rig, costs: Costs) -> Problem:
    """The planning problem of a graph on a rig. CompileError for a pin that cannot be kept."""
    position = {u.name: k for k, u in enumerate(graph.units)}
    producer = {n: position[u.name] for u in graph.units for n in u.outputs}
    readers: dict[str, list[int]] = {}
    for unit in graph.units:
        for name in dict.fromkeys(unit.inputs):
            readers.setdefault(name, []).append(position[unit.name])
    names = dict.fromkeys([*graph.inputs, *producer])
    values = tuple(
        Value(
            name,
            producer.get(name),
            tuple(readers.get(name, ())),
            _nbytes(graph, name),
            name in graph.outputs,
            travels(graph, name),
        )
        for name in names
        if name in readers or name in producer
    )
    pins = rig.pinned({u.name: u.nodes for u in graph.units})
    for name, device in pins.items():
        reason = costs.refusal(device, name)
        if reason is not None:
            raise CompileError(
                f"node {name!r} is pinned to {device}, which cannot run it: {reason}; "
                "drop the pin or pin it to a cpu"
            )
    return Problem(
        units=tuple(position),
        values=values,
        machines=tuple(_machine(d, graph, rig, costs) for d in rig.devices),
        macs=tuple(u.macs for u in graph.units),
        memory=tuple(constants_bytes(u) for u in graph.units),
        inner=frozenset(
            k
            for k, u in enumerate(graph.units)
            if u.kind == "view"
            and any(u.name not in e.refusals for e in costs.fpga.values())
            and moves_bytes(graph, u)
        ),
        pins={position[u]: device for u, device in pins.items()},
        objective="latency" if rig.planner.objective == "latency" else "throughput",
        place=rig.planner.place,
    )


def _nbytes(graph: Graph, name: str) -> int:
    tensor = graph.tensors[name]
    size = {"int8": 1, "uint8": 1, "bool": 1, "float16": 2, "int16": 2, "float64": 8, "int64": 8}
    count = 1
    for dim in tensor.shape:
        count *= dim
    return count * size.get(tensor.dtype, 4)


def _machine(device: RigDevice, graph: Graph, rig: Rig, costs: Costs) -> Machine:
    if device.kind == "cpu":
        found = costs.cpu[device.name]
        row: tuple[float | None, ...] = tuple(found[u.name].value for u in graph.units)
        return Machine(device.name, "cpu", row, memory_limit=device.memory_bytes)
    engine = costs.fpga[device.name]
    link = rig.link_of(device.name)
    assert device.clock_hz is not None  # the rig's reader sees to both
    assert link is not None
    clock = device.clock_hz
    row = tuple(
        None if u.name in engine.refusals else engine.cycles.get(u.name, 0) / clock
        for u in graph.units
    )
    channel = Channel(link.bandwidth_bytes_per_second, link.latency_seconds, link.shared)
    return Machine(device.name, "fpga", row, channel)


def make_plan(
    graph: Graph, rig: Rig, costs: Costs, *, progress: Callable[[str], None] | None = None
) -> Planned:
    """Plan the graph over the rig; an infeasible plan has no stages and says what conflicts."""
    started = time.perf_counter()
    problem = make_problem(graph, rig, costs)
    lowered: dict[tuple[str, frozenset[int]], Program] = {}
    problem, solution = _settle(graph, rig, problem, lowered, progress)
    if not solution.runs:
        plan = _infeasible(graph, rig, problem, time.perf_counter() - started)
        return Planned(plan, (), {})
    auto: tuple[Problem, Solution] | None = None
    if rig.planner.place != "auto" or rig.pins:
        free = replace(problem, place="auto", pins={})
        auto = _settle(graph, rig, free, lowered, progress)
    stages = cut(graph, rig, solution.runs)
    programs = {
        stage.index: lowered[run.machine, frozenset(run.units)]
        for stage, run in zip(stages, solution.runs, strict=True)
        if stage.kind == "fpga"
    }
    verdict = check(problem, solution.runs)
    plan = _write(graph, rig, costs, problem, solution, stages, programs, verdict)
    if auto is not None and auto[1].runs:
        plan = _with_auto(plan, graph, auto[1])
    plan = _with_notes(plan, rig, costs, problem, solution)
    rules = judge(rig, problem, solution, verdict, programs)
    seconds = time.perf_counter() - started
    broken = [r for r in rules if r.hard and not r.ok]
    if broken:
        conflict = [
            f"rule {r.name!r} at {r.where} is {r.value:.4g}, its limit {r.limit:.4g}"
            for r in broken
        ]
        plan = _empty(graph, rig, problem, seconds, conflict)
        return Planned(_replace(plan, rules=rules), (), {})
    return Planned(_replace(plan, rules=rules, seconds=seconds), stages, programs)


def _replace(plan: Plan, **changes: object) -> Plan:
    return msgspec.structs.replace(plan, **changes)


def _settle(
    graph: Graph,
    rig: Rig,
    problem: Problem,
    lowered: dict[tuple[str, frozenset[int]], Program],
    progress: Callable[[str], None] | None,
) -> tuple[Problem, Solution]:
    """Solve, lower what was chosen, and again until every chosen FPGA run is exact and fits."""
    for _ in range(MAX_ROUNDS):
        solution = solve(problem)
        boards = [r for r in solution.runs if problem.machine(r.machine).kind == "fpga"]
        open_runs = [r for r in boards if (r.machine, frozenset(r.units)) not in problem.exact]
        if not open_runs:
            return problem, solution
        if progress is not None:
            progress(f"lowering {len(open_runs[0].units)} units for {open_runs[0].machine}")
        for run in open_runs:
            problem = _lower_run(graph, rig, problem, run, lowered)
    raise CompileError(
        f"plan of {graph.name!r}: no set of layers that fits was found in {MAX_ROUNDS} attempts; "
        "pin some of its layers to a cpu"
    )


def _lower_run(
    graph: Graph,
    rig: Rig,
    problem: Problem,
    run: Run,
    lowered: dict[tuple[str, frozenset[int]], Program],
) -> Problem:
    """The problem with the run's exact seconds, or without the run when it does not fit."""
    device = rig.device(run.machine)
    assert device.engine is not None
    assert device.clock_hz is not None
    key = (run.machine, frozenset(run.units))
    found = lowered.get(key) or _try_lower(graph, device, run.units)
    if isinstance(found, Program):
        lowered[key] = found
        exact = {**problem.exact, key: program_cycles(found) / device.clock_hz}
        return replace(problem, exact=exact)
    # The shortest beginning that does not fit is ruled out, and with it all that contain it.
    low, high = 1, len(run.units)
    while low < high:
        middle = (low + high) // 2
        if isinstance(_try_lower(graph, device, run.units[:middle]), Program):
            low = middle + 1
        else:
            high = middle
    misfit = frozenset(run.units[:high])
    rest = tuple(run.units[:high])
    while len(rest) > 1 and not isinstance(_try_lower(graph, device, rest[1:]), Program):
        rest = rest[1:]
        misfit = frozenset(rest)
    misfits = {**problem.misfits, run.machine: (*problem.misfits.get(run.machine, ()), misfit)}
    return replace(problem, misfits=misfits)


def _try_lower(graph: Graph, device: RigDevice, units: tuple[int, ...]) -> Program | CompileError:
    assert device.engine is not None
    names = [graph.units[u].name for u in units]
    # A beginning or end of views alone is no stage; what matters is whether its layers fit.
    if all(graph.unit(n).kind == "view" for n in names):
        return CompileError("views only")
    while graph.unit(names[-1]).kind == "view" and moves_bytes(graph, graph.unit(names[-1])):
        names.pop()
    try:
        return lower(graph, names, device.engine)
    except CompileError as e:
        return e


def _write(
    graph: Graph,
    rig: Rig,
    costs: Costs,
    problem: Problem,
    solution: Solution,
    stages: tuple[StageUnits, ...],
    programs: dict[int, Program],
    verdict: Evaluation,
) -> Plan:
    entries = []
    for stage, run, cost in zip(stages, solution.runs, verdict.runs, strict=True):
        device = rig.device(stage.device)
        found = _stage_costs(graph, rig, costs, stage, programs.get(stage.index))
        program = programs.get(stage.index)
        power = device.power
        entries.append(
            StagePlan(
                index=stage.index,
                device=stage.device,
                members=[stage.device],
                nodes=list(stage.nodes),
                compute=cost.compute,
                communication=cost.communication,
                memory_bytes=_memory(problem, run, program),
                costs={name: CostEntry.of(c) for name, c in found.items()},
                engine=None if program is None else program.config_sha256,
                fpga=None if program is None else _budget(program),
                energy_j=None if power is None else power.busy * cost.compute,
            )
        )
    worst, reason = _bottleneck(problem, solution, verdict)
    return Plan(
        version=VERSION,
        model_sha256=graph.model_sha256,
        rig_sha256=rig.sha256,
        unit="s",
        objective=problem.objective,
        execution="sync",
        bottleneck=verdict.objective,
        bottleneck_stage=worst,
        bottleneck_reason=reason,
        lower_bound=solution.lower_bound,
        gap=solution.gap,
        status="optimal" if solution.gap <= 1e-9 else "feasible",
        seconds=None,
        stages=entries,
        rules=[],
        conflict=[],
    )


def _memory(problem: Problem, run: Run, program: Program | None) -> int:
    if program is None:
        return sum(problem.memory[u] for u in run.units)
    return len(program.weights) + len(program.params) + len(program.tables) + len(program.addends)


def _budget(program: Program) -> dict[str, float]:
    """Multipliers, and the share of each program memory that is used: counted."""
    config = program.config
    return {
        "multipliers": float(config.multipliers),
        "weight_memory": len(program.weights) / (config.weight_word_bytes * config.weight_words),
        "param_memory": len(program.params) / (8 * config.requantisers * config.param_words),
        "instructions": len(program.instructions) / config.instructions,
    }


def _stage_costs(
    graph: Graph, rig: Rig, costs: Costs, stage: StageUnits, program: Program | None
) -> dict[str, Cost]:
    device = rig.device(stage.device)
    if program is None:
        return {"compute": total([costs.cpu[stage.device][u] for u in stage.units])}
    assert device.clock_hz is not None
    config = program.config
    counted = cycles(
        program_cycles(program),
        f"{program_cycles(program):,} cycles of a {config.lanes} x {config.simd} engine in "
        f"{len(program.layers)} layers, {FORMULA},",
    )
    link = rig.link_of(stage.device)
    assert link is not None
    moved = {
        what: total(
            [
                link_seconds(
                    _nbytes(graph, n),
                    link.bandwidth_bytes_per_second,
                    link.latency_seconds,
                    link.source,
                    link.name,
                    link.detail,
                )
                for n in names
            ]
        )
        for what, names in (("receive", stage.inputs), ("send", stage.outputs))
    }
    return {
        "cycles": counted,
        "compute": seconds_at(counted, device.clock_hz, f"clock {device.clock_status}"),
        **moved,
    }


def _bottleneck(problem: Problem, solution: Solution, verdict: Evaluation) -> tuple[int, str]:
    """The largest stage of the busiest device, and why it is the largest."""
    if problem.objective == "latency":
        sizes = [c.compute + c.communication for c in verdict.runs]
        worst = sizes.index(max(sizes))
    else:
        name, load = max(verdict.loads.items(), key=lambda x: x[1])
        busiest = max(verdict.groups.items(), key=lambda x: x[1], default=("", 0.0))
        owned = [k for k, r in enumerate(solution.runs) if r.machine == name]
        if busiest[1] > load:
            owned = [
                k
                for k, r in enumerate(solution.runs)
                if (c := problem.machine(r.machine).channel) is not None and c.group == busiest[0]
            ]
        worst = max(owned, key=lambda k: verdict.runs[k].compute + verdict.runs[k].communication)
    cost = verdict.runs[worst]
    if cost.communication > cost.compute:
        return worst, "link"
    if len(solution.runs[worst].units) == 1:
        return worst, "indivisible unit"
    return worst, "compute"


def _with_auto(plan: Plan, graph: Graph, solution: Solution) -> Plan:
    rows = [
        {"device": r.machine, "nodes": [n for u in sorted(r.units) for n in graph.units[u].nodes]}
        for r in solution.runs
    ]
    assert plan.bottleneck is not None
    loss = plan.bottleneck / solution.objective - 1.0 if solution.objective > 0 else 0.0
    return _replace(plan, auto=AutoPlan(solution.objective, rows, max(0.0, loss)))


def _with_notes(plan: Plan, rig: Rig, costs: Costs, problem: Problem, solution: Solution) -> Plan:
    notes = [
        "the bound holds for plans in which each FPGA runs one contiguous interval of a "
        "topological order and CPUs run the rest"
    ]
    used = {r.machine for r in solution.runs}
    for device in rig.devices:
        if device.kind != "fpga" or device.name in used:
            continue
        able = [u for u in problem.units if u not in costs.fpga[device.name].refusals]
        if not any(m for u, m in zip(problem.units, problem.macs, strict=True) if u in able):
            notes.append(f"{device.name} is left empty: no layer with MACs can go there")
        elif rig.planner.place == "auto":
            notes.append(
                f"{device.name} is left empty: every plan that uses it is slower on this rig; "
                "--place fpga uses it all the same and shows the loss"
            )
    if rig.planner.overlap and any(d.kind == "fpga" for d in rig.devices):
        notes.append(
            "overlap was asked for; the boards of this release take one item at a time, so "
            "transfer and computation add up"
        )
    return _replace(plan, notes=notes)


def _infeasible(graph: Graph, rig: Rig, problem: Problem, seconds: float) -> Plan:
    """The smallest set of pins and memory limits that cannot be kept together."""
    kept = list(problem.pins.items())
    limits = [m.name for m in problem.machines if m.memory_limit is not None]

    def feasible(pins: list[tuple[int, str]], limited: list[str]) -> bool:
        machines = tuple(
            m if m.name in limited else replace(m, memory_limit=None) for m in problem.machines
        )
        free = replace(problem, pins=dict(pins), machines=machines, place="auto")
        return bool(solve(free).runs)

    for pin in list(kept):
        rest = [p for p in kept if p != pin]
        if not feasible(rest, limits):
            kept = rest
    for name in list(limits):
        rest_limits = [n for n in limits if n != name]
        if not feasible(kept, rest_limits):
            limits = rest_limits
    conflict = [f"{problem.units[u]} is pinned to {device}" for u, device in kept]
    conflict += [
        f"{name} has memory for {problem.machine(name).memory_limit} bytes of weights"
        for name in limits
    ]
    boards = {m.name for m in problem.machines if m.kind == "fpga"}
    if any(device in boards for _, device in kept):
        conflict.append("an FPGA runs one contiguous interval of layers that it can hold")
    return _empty(graph, rig, problem, seconds, conflict)


def _empty(graph: Graph, rig: Rig, problem: Problem, seconds: float, conflict: list[str]) -> Plan:
    return Plan(
        version=VERSION,
        model_sha256=graph.model_sha256,
        rig_sha256=rig.sha256,
        unit="s",
        objective=problem.objective,
        execution="sync",
        bottleneck=None,
        bottleneck_stage=None,
        bottleneck_reason="",
        lower_bound=None,
        gap=None,
        status="infeasible",
        seconds=seconds,
        stages=[],
        rules=[],
        conflict=conflict,
    )
