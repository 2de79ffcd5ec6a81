"""Rules of the rig steer the search: the best plan that keeps them, or a proven conflict."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from random_graphs import random_graph

from trivet.compiler.cost import Cost
from trivet.compiler.cost_fpga import program_cycles, weigh
from trivet.compiler.errors import CompileError
from trivet.compiler.lower import lower
from trivet.compiler.planner import search
from trivet.compiler.planner.build import Costs, make_plan, make_problem
from trivet.compiler.planner.check import Evaluation, check
from trivet.compiler.planner.plan import Plan
from trivet.compiler.planner.problem import Run
from trivet.compiler.rig import Rig, default_rig
from trivet.compiler.units import Graph
from trivet.hdl.transfer import expand_cycles, expand_frames


def rig_with(rate: float = 4e7, *, boards: int = 1, place: str = "auto", **rules: float) -> Rig:
    """CPU and boards on links of ``rate`` bytes/s and 20 us."""
    rig = default_rig().with_options(place=place)
    fpga, link = rig.devices[1], rig.links[0]
    fpgas = tuple(replace(fpga, name=f"fpga{k}") for k in range(boards))
    links = tuple(
        replace(link, ends=("cpu0", f.name), bandwidth_bytes_per_second=rate, latency_seconds=2e-5)
        for f in fpgas
    )
    return replace(rig, devices=(rig.devices[0], *fpgas), links=links, rules=rules)


def costs_of(graph: Graph, rig: Rig, seconds: float) -> Costs:
    row = {u.name: Cost(seconds, "s", "given", "test") for u in graph.units}
    return Costs(
        {"cpu0": row},
        {d.name: weigh(graph, d.engine) for d in rig.devices if d.engine is not None},
    )


def every_plan(graph: Graph, rig: Rig, costs: Costs) -> Iterator[Evaluation]:
    """All plans of one CPU and one FPGA in the model's order, each with its exact program."""
    problem = make_problem(graph, rig, costs)
    device, link = rig.devices[1], rig.links[0]
    assert device.engine is not None
    assert device.clock_hz is not None
    n = len(graph.units)
    yield check(problem, [Run("cpu0", tuple(range(n)))])
    for start in range(n):
        for stop in range(start + 1, n + 1):
            units = tuple(range(start, stop))
            runs = [
                Run("cpu0", tuple(range(start))),
                Run("fpga0", units),
                Run("cpu0", tuple(range(stop, n))),
            ]
            if check(problem, [r for r in runs if r.units]).violations:
                continue
            try:
                program = lower(graph, [graph.units[u].name for u in units], device.engine)
            except CompileError:
                continue
            key = problem.machine("fpga0").sort, frozenset(units)
            taken = 0.0
            for port in program.inputs:
                if port.expand is not None:
                    trips = next(v.load_trips for v in problem.values if v.name == port.tensor)
                    taken += expand_cycles(port.expand) / device.clock_hz
                    taken += (expand_frames(port.expand) - trips) * link.latency_seconds
            exact = {key: program_cycles(program) / device.clock_hz}
            yield check(
                replace(problem, exact=exact, entry={key: taken}), [r for r in runs if r.units]
            )


def share(found: Evaluation) -> float:
    return max(
        (c.communication / (c.communication + c.compute) for c in found.runs if c.communication),
        default=0.0,
    )


def balance(found: Evaluation) -> float:
    loads = [x for x in found.loads.values() if x > 0]
    return sum(loads) / len(loads) / max(loads)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limit", [0.3, 0.6, 0.8])
def test_the_plan_is_the_best_of_those_that_keep_the_share(seed: int, limit: float) -> None:
    graph = random_graph(seed, 5, kinds=("conv",))
    rig = rig_with(communication_share_max=limit)
    costs = costs_of(graph, rig, 4e-5)
    plan = make_plan(graph, rig, costs).plan
    best = min(p.objective for p in every_plan(graph, rig, costs) if share(p) <= limit)
    assert plan.bottleneck == pytest.approx(best)
    assert plan.status == "optimal"
    assert all(r.ok for r in plan.rules if r.hard)


@pytest.mark.parametrize("limit", [0.6, 0.9])
def test_the_plan_is_the_best_of_those_that_are_balanced(limit: float) -> None:
    graph = random_graph(2, 5, kinds=("conv",))
    rig = rig_with(balance_min=limit)
    costs = costs_of(graph, rig, 4e-5)
    plan = make_plan(graph, rig, costs).plan
    best = min(p.objective for p in every_plan(graph, rig, costs) if balance(p) >= limit)
    assert plan.bottleneck == pytest.approx(best)
    assert plan.status == "optimal"


def test_a_board_that_cannot_keep_the_rule_stays_empty_and_the_plan_says_so() -> None:
    graph = random_graph(5, 4, kinds=("conv",))
    for place in ("auto", "fpga"):
        rig = rig_with(place=place, communication_share_max=0.01)
        plan = make_plan(graph, rig, costs_of(graph, rig, 1.0)).plan
        assert {s.device for s in plan.stages} == {"cpu0"}
        (note,) = [n for n in plan.notes if "fpga0 is left empty" in n]
        assert "'communication share' (at most 0.01)" in note


def test_after_the_last_attempt_the_bound_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(1, 5, kinds=("conv",))
    for limit in (0.3, 0.6):
        rig = rig_with(communication_share_max=limit)
        costs = costs_of(graph, rig, 4e-5)
        best = min(p.objective for p in every_plan(graph, rig, costs) if share(p) <= limit)
        monkeypatch.setattr(search, "RULE_ATTEMPTS", 1)
        plan: Plan = make_plan(graph, rig, costs).plan
        assert plan.lower_bound is not None
        assert plan.bottleneck is not None
        assert plan.lower_bound <= best * (1 + 1e-9) <= plan.bottleneck * (1 + 2e-9)
        assert all(r.ok for r in plan.rules if r.hard)


def test_several_boards_keep_the_rules_too() -> None:
    graph = random_graph(5, 6, kinds=("conv",))
    rig = rig_with(boards=2, communication_share_max=0.6, balance_min=0.7)
    plan = make_plan(graph, rig, costs_of(graph, rig, 4e-5)).plan
    assert plan.feasible
    assert all(r.ok for r in plan.rules if r.hard)
    assert plan.lower_bound is not None
    assert plan.bottleneck is not None
    assert plan.lower_bound <= plan.bottleneck


def test_only_a_real_conflict_is_infeasible_and_nothing_in_it_is_too_much() -> None:
    graph = random_graph(5, 4, kinds=("conv",))
    node = graph.units[1].nodes[0]
    other = graph.units[3].nodes[0]
    rig = rig_with(communication_share_max=0.01, balance_min=0.001)
    rig = rig.with_options(pins=[(node, "fpga0"), (other, "cpu0")])
    plan = make_plan(graph, rig, costs_of(graph, rig, 1.0)).plan
    assert plan.status == "infeasible"
    assert plan.stages == []
    assert any(r.hard and not r.ok for r in plan.rules)
    rule, pin, engine = plan.conflict
    assert rule.startswith("rule 'communication share' is at most 0.01, 0.")
    assert rule.endswith(" at fpga0 in the best plan")
    assert pin == f"{graph.units[1].name} is pinned to fpga0"
    assert "one contiguous interval" in engine


def test_a_limit_of_the_weight_memory_makes_the_stage_smaller() -> None:
    graph = random_graph(5, 8, kinds=("conv",))
    rig = rig_with(place="fpga")
    whole = next(r for r in make_plan(graph, rig, costs_of(graph, rig, 1.0)).plan.rules
                 if r.name == "memory")  # fmt: skip
    rig = rig_with(place="fpga", memory_max=whole.value * 2 / 3)
    plan = make_plan(graph, rig, costs_of(graph, rig, 1.0)).plan
    (rule,) = [r for r in plan.rules if r.name == "memory"]
    assert 0 < rule.value <= whole.value * 2 / 3


def test_an_engine_beyond_the_budget_is_not_used() -> None:
    graph = random_graph(5, 4, kinds=("conv",))
    rig = rig_with(budget_max=0.5)
    plan = make_plan(graph, rig, costs_of(graph, rig, 1.0)).plan
    assert [s.device for s in plan.stages] == ["cpu0"]
    assert any("its engine takes 0.949 of the multipliers" in n for n in plan.notes)
    rig = rig.with_options(pins=[(graph.units[0].nodes[0], "fpga0")])
    with pytest.raises(CompileError, match=r"cannot run it: its engine takes 0\.949"):
        make_plan(graph, rig, costs_of(graph, rig, 1.0))
