"""Planning from end to end: the problem, its solution, and the plan that is written down.

What the search returns is optimal: its FPGA runs are exact, and every other plan was judged by a
lower bound of its cost.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from trivet.compiler.cost import Cost, cycles, link_seconds, seconds_at, total
from trivet.compiler.cost_fpga import FORMULA, EngineCosts, program_cycles
from trivet.compiler.errors import CompileError
from trivet.compiler.rig import Power, Rig, RigDevice
from trivet.compiler.split import shard_axis
from trivet.compiler.stages import StageUnits, cut, moves_bytes, travels
from trivet.compiler.units import ConvSpec, Graph, Unit
from trivet.hdl.isa import Program
from trivet.hdl.overlap import EARLY_MAX
from trivet.hdl.transfer import LOAD_BYTES, PAYLOAD_BYTES, expand_cycles, expand_frames, frames

from .conflict import smallest_conflict
from .edit import runs_of
from .plan import AutoPlan, CostEntry, Plan, RuleResult, StagePlan
from .problem import Channel, Machine, Problem, Run, Value
from .rules import judge, over_budget
from .search import Found, Lowered, add_splits, find, given
from .solve import Solution
from .write import infeasible, plan_of, stage_of

__all__ = ["Costs", "Planned", "make_plan", "make_problem"]


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
    """The plan with what later steps need: stages and the programs of the FPGA ones by index.

    A stage that is split has a program for each part in ``parts`` and none in ``programs``.
    """

    plan: Plan
    stages: tuple[StageUnits, ...]
    programs: dict[int, Program]
    parts: dict[int, tuple[Program, ...]] = field(default_factory=dict)


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
            _frames(graph, rig, name, LOAD_BYTES),
            _frames(graph, rig, name, PAYLOAD_BYTES),
        )
        for name in names
        if name in readers or name in producer
    )
    pins = rig.pinned({u.name: u.nodes for u in graph.units})
    for name, device in pins.items():
        reason = over_budget(rig, rig.device(device)) or costs.refusal(device, name)
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
        objective=rig.planner.objective,
        batch=rig.planner.batch,
        place=rig.planner.place,
        replicas=tuple(range(1, rig.planner.replicas + 1)),
    )


def _hwc(graph: Graph, name: str) -> tuple[int, int, int]:
    """Height, width and channels of a tensor as an engine holds it."""
    shape = graph.tensors[name].shape
    if len(shape) == 4:
        return shape[2], shape[3], shape[1]
    return 1, 1, math.prod(shape)


def _frames(graph: Graph, rig: Rig, name: str, most: int) -> int:
    """Round trips that carry a tensor, by the engine that needs the fewest."""
    words = [d.engine.word_bytes for d in rig.devices if d.engine is not None]
    return min((frames(_hwc(graph, name), w, most=most) for w in words), default=1)


def _nbytes(graph: Graph, name: str) -> int:
    tensor = graph.tensors[name]
    size = {"int8": 1, "uint8": 1, "bool": 1, "float16": 2, "int16": 2, "float64": 8, "int64": 8}
    count = 1
    for dim in tensor.shape:
        count *= dim
    return count * size.get(tensor.dtype, 4)


def _machine(device: RigDevice, graph: Graph, rig: Rig, costs: Costs) -> Machine:
    power = device.power or Power(0.0, 0.0, "given")
    if device.kind == "cpu":
        found = costs.cpu[device.name]
        row: tuple[float | None, ...] = tuple(found[u.name].value for u in graph.units)
        limit = device.memory_bytes
        if limit is not None:
            limit = int(limit * min(1.0, rig.rules.get("memory_max", 1.0)))
        return Machine(
            device.name,
            "cpu",
            row,
            memory_limit=limit,
            pooled=True,
            busy_watts=power.busy,
            idle_watts=power.idle,
        )
    engine = costs.fpga[device.name]
    link = rig.link_of(device.name)
    assert device.clock_hz is not None  # the rig's reader sees to both
    assert link is not None
    clock = device.clock_hz
    refused = over_budget(rig, device) is not None
    row = tuple(
        None if refused or u.name in engine.refusals else engine.cycles.get(u.name, 0) / clock
        for u in graph.units
    )
    channel = Channel(link.bandwidth_bytes_per_second, link.latency_seconds, link.shared, 1)
    # Boards that differ by nothing but their names are planned for as one kind.
    sort = (device.board, device.engine, clock, link.bandwidth_bytes_per_second,
            link.latency_seconds, link.shared, device.power)  # fmt: skip
    return Machine(
        device.name,
        "fpga",
        row,
        channel,
        overlap=rig.planner.overlap,
        saving=EARLY_MAX / clock,
        model=hashlib.sha256(repr(sort).encode()).hexdigest(),
        busy_watts=power.busy,
        idle_watts=power.idle,
    )


def make_plan(
    graph: Graph,
    rig: Rig,
    costs: Costs,
    *,
    edited: Plan | None = None,
    strict: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Planned:
    """Plan the graph over the rig; an infeasible plan has no stages and says what conflicts.

    ``edited`` is taken instead of the best plan, if it keeps every condition and rule, and what it
    loses against the best is in ``auto``; with ``strict`` it may lose nothing. CompileError else.
    """
    started = time.perf_counter()
    lowered = Lowered(graph, rig)
    start = add_splits(rig, make_problem(graph, rig, costs), lowered)
    found = find(rig, start, lowered, progress)
    problem, solution, verdict = found.problem, found.solution, found.verdict
    if not solution.runs:
        conflict = smallest_conflict(rig, start, found, lowered)
        plan = infeasible(problem, conflict, model=graph.model_sha256, rig=rig.sha256, unit="s")
        seconds = time.perf_counter() - started
        return Planned(_replace(plan, rules=list(found.broken), seconds=seconds), (), {})
    auto: Solution | None = None
    if edited is not None:
        auto = solution
        runs = runs_of(edited, graph, rig, problem)
        found = given(rig, start, runs, lowered, solution.lower_bound)
        problem, solution, verdict = found.problem, found.solution, found.verdict
        loss = solution.objective / auto.objective - 1.0 if auto.objective > 0 else 0.0
        if strict and loss > 1e-6:
            raise CompileError(
                f"plan: it takes {1 + loss:.4g} times as long as the best one, and --strict allows "
                "no loss; drop --strict or edit it"
            )
    elif rig.planner.place != "auto" or rig.pins:
        free = replace(problem, place="auto", pins={}, banned=frozenset(), share_max=None)
        auto = find(rig, free, lowered, progress).solution
    stages = cut(graph, rig, solution.runs)
    plan = _write(graph, rig, costs, found, stages)
    if auto is not None and auto.runs:
        plan = _with_auto(plan, graph, auto)
    plan = _with_notes(plan, rig, costs, found)
    rules = judge(rig, problem, solution, verdict, found.programs)
    seconds = time.perf_counter() - started
    plan = _replace(plan, rules=rules, seconds=seconds)
    programs = {k: ps[0] for k, ps in found.programs.items() if len(ps) == 1}
    parts = {k: ps for k, ps in found.programs.items() if len(ps) > 1}
    return Planned(plan, stages, programs, parts)


def _replace(plan: Plan, **changes: object) -> Plan:
    return msgspec.structs.replace(plan, **changes)


def _write(
    graph: Graph, rig: Rig, costs: Costs, found: Found, stages: tuple[StageUnits, ...]
) -> Plan:
    problem, solution, verdict = found.problem, found.solution, found.verdict
    entries = []
    for stage, run, cost in zip(stages, solution.runs, verdict.runs, strict=True):
        programs = found.programs.get(stage.index, ())
        named = _stage_costs(graph, rig, costs, stage, run, programs)
        power = rig.device(stage.device).power
        axis = None
        if run.shards > 1:
            unit = graph.unit(stage.units[0])
            axis = shard_axis(graph, unit, nhwc=unit.outputs[0] in stage.nhwc)
        entry = stage_of(problem, stage.index, run, cost)
        entries.append(
            _replace_stage(
                entry,
                nodes=list(stage.nodes),
                memory_bytes=_memory(problem, run, programs),
                costs={name: CostEntry.of(c) for name, c in named.items()},
                engine=programs[0].config_sha256 if programs else None,
                fpga=_budget(programs) if programs else None,
                energy_j=None if power is None else power.busy * cost.busy * run.shards,
                shard_axis=axis,
            )
        )
    return plan_of(
        problem, solution, verdict, entries, model=graph.model_sha256, rig=rig.sha256, unit="s"
    )


def _replace_stage(stage: StagePlan, **changes: object) -> StagePlan:
    return msgspec.structs.replace(stage, **changes)


def _memory(problem: Problem, run: Run, programs: tuple[Program, ...]) -> int:
    """Bytes on each device of the run, the most where parts differ."""
    if not programs:
        return sum(problem.memory[u] for u in run.units)
    return max(len(p.weights) + len(p.params) + len(p.tables) + len(p.addends) for p in programs)


def _budget(programs: tuple[Program, ...]) -> dict[str, float]:
    """Multipliers, and the share of each program memory that is used: counted."""
    config = programs[0].config
    weights = config.weight_word_bytes * config.weight_words
    params = 8 * config.requantisers * config.param_words
    return {
        "multipliers": float(config.multipliers),
        "weight_memory": max(len(p.weights) for p in programs) / weights,
        "param_memory": max(len(p.params) for p in programs) / params,
        "instructions": max(len(p.instructions) for p in programs) / config.instructions,
    }


def _overlaps(rig: Rig) -> bool:
    return rig.planner.overlap and rig.planner.objective != "latency"


def _stage_costs(
    graph: Graph,
    rig: Rig,
    costs: Costs,
    stage: StageUnits,
    run: Run,
    programs: tuple[Program, ...],
) -> dict[str, Cost]:
    """Where a stage's seconds come from; of parts, those of the slowest."""
    device = rig.device(stage.device)
    if not programs:
        return {"compute": total([costs.cpu[stage.device][u] for u in stage.units])}
    assert device.clock_hz is not None
    program = max(programs, key=program_cycles)
    config = program.config
    count = program_cycles(program)
    what = f"of a {config.lanes} x {config.simd} engine in {len(program.layers)} layers"
    if _overlaps(rig) and program.interval is not None:
        count = program.interval
        what += " from item to item of a stream"
    counted = cycles(count, f"{count:,} cycles {what}, {FORMULA},")
    link = rig.link_of(stage.device)
    assert link is not None
    clock = f"clock {device.clock_status}"
    spread = {p.tensor: p.expand for p in program.inputs if p.expand is not None}

    def moved(name: str, most: int, shards: int = 1) -> Cost:
        trips = _frames(graph, rig, name, most)
        if most == LOAD_BYTES and name in spread:
            trips = expand_frames(spread[name])
        whole = link_seconds(_nbytes(graph, name), link, trips)
        if shards == 1:
            return whole
        detail = f"a part in {shards} of: {whole.detail}"
        return Cost(whole.value / shards, "s", whole.source, detail)

    received = [
        *(moved(n, LOAD_BYTES) for n in stage.inputs),
        Cost(link.latency_seconds, "s", link.source, "a round trip that starts the run"),
        *(
            seconds_at(
                cycles(n := expand_cycles(e), f"{n:,} cycles to spread it over windows"),
                device.clock_hz,
                clock,
            )
            for e in spread.values()
        ),
    ]
    return {
        "cycles": counted,
        "compute": seconds_at(counted, device.clock_hz, clock),
        "receive": total(received),
        "send": total([moved(n, PAYLOAD_BYTES, run.shards) for n in stage.outputs]),
    }


def _with_auto(plan: Plan, graph: Graph, solution: Solution) -> Plan:
    rows = [
        {"device": r.machine, "nodes": [n for u in sorted(r.units) for n in graph.units[u].nodes]}
        for r in solution.runs
    ]
    assert plan.bottleneck is not None
    loss = plan.bottleneck / solution.objective - 1.0 if solution.objective > 0 else 0.0
    return _replace(plan, auto=AutoPlan(solution.objective, rows, max(0.0, loss)))


def _with_notes(plan: Plan, rig: Rig, costs: Costs, found: Found) -> Plan:
    problem = found.problem
    notes = []
    broken = " and ".join(dict.fromkeys(f"{r.name!r} ({_limit(r)})" for r in found.broken))
    used = {r.machine for r in found.solution.runs}
    for device in rig.devices:
        if device.kind != "fpga" or device.name in used:
            continue
        refused = over_budget(rig, device)
        able = [u for u in problem.units if u not in costs.fpga[device.name].refusals]
        if refused is not None:
            notes.append(f"{device.name} is left empty: {refused}")
        elif not any(m for u, m in zip(problem.units, problem.macs, strict=True) if u in able):
            notes.append(f"{device.name} is left empty: no layer with MACs can go there")
        elif broken:
            notes.append(
                f"{device.name} is left empty: the plans tried that use it and would be preferred "
                f"break the rule {broken}"
            )
        elif rig.planner.place == "auto":
            notes.append(
                f"{device.name} is left empty: every plan that uses it is slower on this rig; "
                "--place fpga uses it all the same and shows the loss"
            )
    if found.broken and used - {d.name for d in rig.devices if d.kind == "cpu"}:
        notes.append(f"a plan that would be preferred breaks the rule {broken}")
    if not found.certain:
        notes.append(
            "not every plan was held against the rules: the bound is that of plans without them"
        )
    for run in found.solution.runs if rig.planner.overlap else ():
        if problem.overlaps(run):
            notes.append(
                f"{run.machine} computes one item while the next goes in and the last comes out: "
                "it takes as long as the longer of its engine and its link"
            )
        elif problem.machine(run.machine).kind == "fpga":
            why = (
                "for one item's latency"
                if problem.objective == "latency"
                else ("memory holds its inputs and outputs but once")
            )
            notes.append(f"on {run.machine} transfer and computation add up: {why}")
    return _replace(plan, notes=notes)


def _limit(rule: RuleResult) -> str:
    side = "at least" if rule.name == "balance" else "at most"
    return f"{side} {rule.limit:g}"
