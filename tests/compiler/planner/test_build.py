"""Plans of whole graphs: exact programs, several boards, pins, memory, rules, infeasible rigs."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from random_graphs import random_graph
from rich.console import Console

from trivet.compiler.cost import Cost
from trivet.compiler.cost_fpga import program_cycles, weigh
from trivet.compiler.errors import CompileError
from trivet.compiler.planner.build import Costs, Planned, make_plan, make_problem
from trivet.compiler.planner.check import check
from trivet.compiler.planner.plan import Plan, read_plan
from trivet.compiler.planner.problem import Run
from trivet.compiler.planner.show import duration, render, short
from trivet.compiler.rig import Rig, default_rig
from trivet.compiler.units import Graph
from trivet.hdl.config import EngineConfig


def costs_of(graph: Graph, rig: Rig, seconds: float = 1.0) -> Costs:
    """Every unit takes `seconds` on a CPU."""
    row = {u.name: Cost(seconds, "s", "given", "test") for u in graph.units}
    cpu = {d.name: row for d in rig.devices if d.kind == "cpu"}
    return Costs(cpu, {d.name: weigh(graph, d.engine) for d in rig.devices if d.engine is not None})


def with_boards(count: int, **changes: object) -> Rig:
    rig = default_rig()
    board = replace(rig.devices[1], **changes)  # type: ignore[arg-type]
    boards = tuple(replace(board, name=f"fpga{k}") for k in range(count))
    links = tuple(replace(rig.links[0], ends=("cpu0", b.name)) for b in boards)
    return replace(rig, devices=(rig.devices[0], *boards), links=links)


def judge(graph: Graph, rig: Rig, costs: Costs, planned: Planned) -> float:
    """Recompute the plan's objective from its stages alone."""
    position = {u.name: k for k, u in enumerate(graph.units)}
    problem = make_problem(graph, rig, costs)
    runs = [Run(s.device, tuple(position[u] for u in s.units)) for s in planned.stages]
    exact = {}
    for stage, run in zip(planned.stages, runs, strict=True):
        if stage.index in planned.programs:
            clock = rig.device(stage.device).clock_hz
            assert clock is not None
            program = planned.programs[stage.index]
            exact[problem.key(run)] = program_cycles(program) / clock
    verdict = check(replace(problem, exact=exact), runs)
    assert verdict.violations == ()
    return verdict.objective


@pytest.mark.parametrize("seed", range(8))
def test_the_written_plan_is_what_its_stages_cost(seed: int) -> None:
    graph = random_graph(seed, 7)
    rig = default_rig().with_options(place="fpga" if seed % 2 else "auto")
    costs = costs_of(graph, rig)
    planned = make_plan(graph, rig, costs)
    plan = planned.plan
    assert plan.status == "optimal"
    assert plan.bottleneck == pytest.approx(judge(graph, rig, costs, planned))
    assert plan.lower_bound is not None
    assert plan.lower_bound <= plan.bottleneck
    assert [n for s in plan.stages for n in s.nodes]
    assert sorted(u for s in planned.stages for u in s.units) == sorted(u.name for u in graph.units)
    for stage in plan.stages:
        assert stage.costs["compute"].value == pytest.approx(stage.compute)
        assert stage.costs["compute"].detail
        if stage.index in planned.programs:
            moved = stage.costs["receive"].value + stage.costs["send"].value
            assert stage.communication == pytest.approx(moved)


def test_every_layer_goes_to_the_board_when_asked_and_the_loss_is_told() -> None:
    graph = random_graph(3, 6, kinds=("conv", "matrix"))
    rig = default_rig().with_options(place="fpga")
    plan = make_plan(graph, rig, costs_of(graph, rig, seconds=1e-7)).plan
    on_board = {n for s in plan.stages if s.device == "fpga0" for n in s.nodes}
    assert {n for u in graph.units if u.macs for n in u.nodes} <= on_board
    assert plan.auto is not None
    assert {s["device"] for s in plan.auto.stages} == {"cpu0"}
    assert plan.auto.loss > 0


def test_auto_says_why_a_board_stays_empty() -> None:
    graph = random_graph(3, 6, kinds=("conv", "matrix"))
    plan = make_plan(graph, default_rig(), costs_of(graph, default_rig(), seconds=1e-7)).plan
    assert [s.device for s in plan.stages] == ["cpu0"]
    assert any("fpga0 is left empty" in note for note in plan.notes)
    assert plan.auto is None


def test_two_boards_split_the_layers() -> None:
    graph = random_graph(5, 8, kinds=("conv",))
    rig = with_boards(2)
    planned = make_plan(graph, rig, costs_of(graph, rig))
    assert {s.device for s in planned.plan.stages} >= {"fpga0", "fpga1"}
    one = default_rig()
    alone = make_plan(graph, one, costs_of(graph, one)).plan
    assert planned.plan.bottleneck is not None
    assert alone.bottleneck is not None
    assert planned.plan.bottleneck < alone.bottleneck


def test_a_stage_that_does_not_fit_is_made_smaller() -> None:
    graph = random_graph(5, 8, kinds=("conv",))
    config = default_rig().devices[1].engine
    assert config is not None
    whole = make_plan(
        graph, default_rig().with_options(place="fpga"), costs_of(graph, default_rig())
    )
    words = len(next(iter(whole.programs.values())).weights) // config.weight_word_bytes
    tight = EngineConfig.from_dict({**config.to_dict(), "weight_words": words * 2 // 3})
    rig = with_boards(1, engine=tight).with_options(place="fpga")
    planned = make_plan(graph, rig, costs_of(graph, rig))
    macs = {u.name: u.macs for u in graph.units}
    placed = sum(macs[u] for s in planned.stages if s.kind == "fpga" for u in s.units)
    assert 0 < placed < sum(macs.values())
    assert all(len(p.weights) <= tight.weight_word_bytes * tight.weight_words
               for p in planned.programs.values())  # fmt: skip


def test_pins_are_kept_or_refused_in_one_line() -> None:
    graph = random_graph(5, 6, kinds=("conv",))
    middle = graph.units[3]
    rig = default_rig().with_options(place="fpga", pins=[(middle.nodes[0], "cpu0")])
    planned = make_plan(graph, rig, costs_of(graph, rig))
    assert next(s for s in planned.stages if middle.name in s.units).device == "cpu0"
    refused = replace(middle, refusals={"fpga": "its kernel is 99 wide, the limit is 16"})
    odd = replace(graph, units=tuple(refused if u is middle else u for u in graph.units))
    rig = default_rig().with_options(pins=[(middle.nodes[0], "fpga0")])
    with pytest.raises(CompileError, match=r"is pinned to fpga0, which cannot run it: its kernel"):
        make_plan(odd, rig, costs_of(odd, rig))


def test_an_infeasible_rig_names_the_smallest_conflict() -> None:
    graph = random_graph(5, 6, kinds=("conv",))
    first, middle, last = graph.units[0], graph.units[2], graph.units[-1]
    pins = [(first.nodes[0], "fpga0"), (middle.nodes[0], "cpu0"), (last.nodes[0], "fpga0")]
    rig = default_rig().with_options(pins=pins)
    plan = make_plan(graph, rig, costs_of(graph, rig)).plan
    assert plan.status == "infeasible"
    assert plan.stages == []
    assert len([c for c in plan.conflict if "pinned" in c]) == 3
    assert any("one contiguous interval" in c for c in plan.conflict)


def test_the_plan_survives_its_json() -> None:
    graph = random_graph(2, 5)
    rig = default_rig()
    plan = make_plan(graph, rig, costs_of(graph, rig)).plan
    assert read_plan(Path("plan.json"), plan.to_json()) == plan
    with pytest.raises(CompileError, match=r"plan plan.json: .*make it again"):
        read_plan(Path("plan.json"), b'{"version": "x"}')
    odd = plan.to_json().replace(b'"version": 1', b'"version": 7')
    with pytest.raises(CompileError, match="version 7, this release reads 1"):
        read_plan(Path("plan.json"), odd)


def test_the_plan_is_readable() -> None:
    graph = random_graph(3, 6, kinds=("conv", "matrix"))
    rig = default_rig().with_options(place="fpga")
    plan: Plan = make_plan(graph, rig, costs_of(graph, rig)).plan
    screen = io.StringIO()
    Console(file=screen, width=80).print(render(plan))
    text = screen.getvalue()
    for word in (
        "lower bound",
        "(optimal, solved in",
        "> bottleneck: stage",
        "auto would use",
        "fpga0",
        "rule",
    ):
        assert word in text
    assert "items/s" in text
    first, last = (graph.units[k].name for k in (0, -1))
    assert f"{short(first, 16)} .. {short(last, 16)} ({len(graph.units)})" in text
    slow = render(make_plan(graph, replace(rig, planner=replace(rig.planner, objective="latency")),
                            costs_of(graph, rig)).plan)  # fmt: skip
    Console(file=(screen := io.StringIO()), width=80).print(slow)
    assert "latency" in screen.getvalue()
    assert "items/s" not in screen.getvalue()
    assert duration(0.00123) == "1.23 ms"
    assert duration(2e-7) == "0.2 us"
    assert short("a" * 50, 12) == "aaaaa..aaaaa"


@pytest.mark.parametrize("bandwidth", [1e6, 1e9])
def test_in_overlap_a_board_takes_the_longer_of_engine_and_link(bandwidth: float) -> None:
    graph = random_graph(3, 5)
    rig = default_rig().with_options(place="fpga")
    link = replace(rig.links[0], bandwidth_bytes_per_second=bandwidth, latency_seconds=1e-9)
    rig = replace(rig, links=(link,), planner=replace(rig.planner, overlap=True))
    costs = costs_of(graph, rig, 1e-9)
    planned = make_plan(graph, rig, costs)
    plan = planned.plan
    assert (plan.status, plan.execution) == ("optimal", "overlap")
    ((index, program),) = planned.programs.items()
    stage = plan.stages[index]
    clock = rig.device("fpga0").clock_hz
    assert clock is not None
    assert program.interval is not None
    assert stage.compute == pytest.approx(program.interval / clock)
    assert plan.bottleneck == pytest.approx(max(stage.compute, stage.communication))
    assert plan.bottleneck_reason == ("link" if bandwidth == 1e6 else plan.bottleneck_reason)
    assert "from item to item of a stream" in (stage.costs["compute"].detail or "")
    assert any("the longer of its engine and its link" in note for note in plan.notes)
    # One item alone waits for both.
    rig = replace(rig, planner=replace(rig.planner, objective="latency"))
    plan = make_plan(graph, rig, costs).plan
    assert plan.execution == "sync"
    assert any("for one item's latency" in note for note in plan.notes)
