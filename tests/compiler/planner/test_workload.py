"""Open workloads: the reader, and the published optima, proven."""

import json
import os
import random
from pathlib import Path
from typing import Any

import networkx
import pytest

from trivet.compiler.errors import CompileError
from trivet.compiler.planner import highs, linear
from trivet.compiler.planner.check import check
from trivet.compiler.planner.formulate import Formulation
from trivet.compiler.planner.problem import Run
from trivet.compiler.planner.solve import solve
from trivet.compiler.planner.workload import plan_workload, read_workload

FOLDER = (
    Path(os.environ.get("TRIVET_SHARED", Path(__file__).parents[3] / "../shared")) / "workloads"
)
# Proven optima of contiguous ordered stages, confirmed by the authors' own evaluator.
OPTIMA = {
    "bert24": 17.789906,
    "gnmt": 32.910658,
    "resnet50": 33.774666,
    "inceptionv3": 51.551864,
    "bert_l-3": 27.918568,
    "bert_l-6": 29.579506,
}


def workload(name: str) -> Path:
    return FOLDER / f"{name}_inference.json"


def file_of(nodes: list[dict[str, Any]], edges: list[tuple[int, int, float]], **more: Any) -> bytes:
    given = [
        {"supportedOnFpga": 1, "cpuLatency": 4.0, "fpgaLatency": 1.0, "isBackwardNode": 0,
         "size": 10, "id": k, **n} for k, n in enumerate(nodes)
    ]  # fmt: skip
    body = {
        "maxSizePerFPGA": 25, "maxFPGAs": 2, "maxCPUs": 1, "nodes": given,
        "edges": [{"sourceId": a, "destId": b, "cost": c} for a, b, c in edges], **more,
    }  # fmt: skip
    return json.dumps(body).encode()


@pytest.mark.parametrize("name", OPTIMA)
def test_the_published_optimum_is_found_and_proven(name: str) -> None:
    plan = plan_workload(workload(name))
    assert plan.status == "optimal"
    assert plan.bottleneck == pytest.approx(OPTIMA[name], rel=1e-4)
    assert plan.gap is not None
    assert plan.gap <= 1e-4


@pytest.mark.parametrize(("name", "optimum"), [("bert24", 15.2854), ("gnmt", 30.3846)])
def test_the_published_optimum_with_replicas(name: str, optimum: float) -> None:
    plan = plan_workload(workload(name), most_replicas=7)
    assert plan.status == "optimal"
    assert plan.bottleneck == pytest.approx(optimum, rel=1e-4)
    assert max(s.replicas for s in plan.stages) > 1


@pytest.mark.parametrize("name", ["bert24", "gnmt", "resnet50", "bert_l-3"])
def test_highs_agrees(name: str) -> None:
    problem = read_workload(workload(name)).problem
    # From a bound a little above the optimum it has to find the plan itself.
    answer = highs.solve(Formulation(problem, OPTIMA[name] * 1.001))
    assert answer.closed
    assert answer.bound == pytest.approx(OPTIMA[name], rel=1e-4)
    assert answer.runs is not None
    assert check(problem, answer.runs).objective == pytest.approx(OPTIMA[name], rel=1e-4)


def test_a_small_file_costs_what_its_definition_says() -> None:
    data = file_of([{}, {}, {"size": 20}], [(0, 1, 0.5), (0, 2, 0.5), (1, 2, 0.25)])
    problem = read_workload(Path("w.json"), data).problem
    runs = [Run("accelerator0", (0, 1)), Run("accelerator1", (2,))]
    found = check(problem, runs)
    assert found.violations == ()
    # Both tensors leave the first stage and enter the second, each once.
    assert [c.load for c in found.runs] == [2.75, 1.75]
    assert check(problem, [Run("accelerator0", (0, 1)), Run("cpu0", (2,))]).objective == 4.0
    assert "needs 30 bytes, has 25" in str(
        check(problem, [Run("cpu0", (0,)), Run("accelerator0", (1, 2))]).violations
    )
    assert solve(problem).objective == pytest.approx(2.75)


def test_colours_and_their_cycles_are_contracted() -> None:
    nodes = [{"colorClass": 1}, {}, {"colorClass": 1}, {"supportedOnFpga": 0}]
    data = file_of(nodes, [(0, 1, 1.0), (1, 2, 1.0), (2, 3, 2.0)])
    found = read_workload(Path("w.json"), data)
    assert found.members == (("0", "1", "2"), ("3",))
    assert found.problem.machines[0].seconds == (3.0, None)
    assert [(v.name, v.producer, v.consumers) for v in found.problem.values] == [("2", 0, (1,))]


@pytest.mark.parametrize("seed", range(6))
def test_contraction_is_that_of_networkx(seed: int) -> None:
    rng = random.Random(seed)
    n = 30
    edges = [(rng.randrange(n), rng.randrange(n), 1.0) for _ in range(32)]
    found = read_workload(Path("w.json"), file_of([{}] * n, edges))
    graph = networkx.DiGraph([(a, b) for a, b, _ in edges])
    graph.add_nodes_from(range(n))
    expected = {frozenset(map(str, c)) for c in networkx.strongly_connected_components(graph)}
    assert {frozenset(m) for m in found.members} == expected
    assert all(v.producer is not None and v.producer < min(v.consumers)
               for v in found.problem.values)  # fmt: skip


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"[]", r"workload w.json: Expected `object`, got `array`.* the format is that of"),
        (file_of([], []), "it has no nodes"),
        (file_of([{}], [], maxFPGAs=0, maxCPUs=0), "give one device at least"),
        (file_of([{"isBackwardNode": 1}], []), "node 0 is a backward node"),
        (file_of([{"id": 3}, {"id": 3}], []), "two nodes have one id"),
        (file_of([{"cpuLatency": -1}], []), "node 0 has a negative cost"),
        (file_of([{}], [(0, 9, 1.0)]), "an edge leads to node 9, which is not there"),
        (file_of([{}, {}, {}], [(0, 1, 1.0), (0, 2, 2.0)]), "from node 0 cost 1 and 2"),
    ],
)
def test_mistakes_are_one_line(data: bytes, text: str) -> None:
    with pytest.raises(CompileError, match=text):
        read_workload(Path("w.json"), data)


def test_a_workload_that_fits_nowhere_is_infeasible_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_bytes(file_of([{"size": 20}] * 3, [(0, 1, 1.0), (1, 2, 1.0)], maxCPUs=0))
    plan = plan_workload(path)
    assert (plan.status, plan.stages) == ("infeasible", [])
    assert plan.conflict[0] == "2 accelerators hold 25 bytes each, the nodes have 60"


def test_equal_calls_give_equal_plans() -> None:
    problem = read_workload(workload("resnet50"), replicas=(1, 2)).problem
    start = linear.solve(problem)
    one, two = solve(problem, start=start), solve(problem)
    assert one == two
