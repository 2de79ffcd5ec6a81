"""The planner finds the optimum of every small problem, under every switch, and proves it."""

import random
from dataclasses import replace
from typing import Any

import pytest
from planner_oracle import best, random_problem

from trivet.compiler.planner import cpsat, highs, linear
from trivet.compiler.planner.check import check
from trivet.compiler.planner.formulate import Formulation
from trivet.compiler.planner.problem import Channel, Machine, Problem, Run, Value
from trivet.compiler.planner.solve import Solution, solve

# name -> how many machines of each kind, and the switches of the problem.
SWITCHES: dict[str, dict[str, Any]] = {
    "stages": {"pooled": False, "plain": True, "boards": 2},
    "one board": {"boards": 1},
    "two boards": {"boards": 2},
    "two cpus": {"cpus": 2, "boards": 1},
    "gpu": {"boards": 1, "gpus": 1},
    "latency": {"boards": 2, "objective": "latency"},
    "batch": {"boards": 2, "objective": "batch", "batch": 5},
    "energy": {"boards": 1, "gpus": 1, "objective": "energy"},
    "place fpga": {"boards": 2, "place": "fpga"},
    "place fpga beside a gpu": {"boards": 1, "gpus": 1, "place": "fpga"},
    "replicas": {"boards": 1, "twins": 2, "replicas": (1, 2, 3)},
    "replicas of stages": {"pooled": False, "boards": 1, "twins": 2, "replicas": (1, 2)},
    "shards": {"boards": 1, "twins": 2, "replicas": (1, 2), "split": True},
    "share": {"boards": 2, "share_max": 0.5},
    "known runs": {"boards": 2, "facts": True},
    "budget": {"boards": 2, "gpus": 1, "budget": True},
}


def problem_of(name: str, seed: int, most: int) -> Problem:
    switches = dict(SWITCHES[name])
    split, facts, budget = (switches.pop(k, False) for k in ("split", "facts", "budget"))
    rng = random.Random(f"{name} {seed}")
    problem = random_problem(rng, rng.randint(2, most), **switches)
    if split:
        row = problem.machine("fpga0").seconds
        problem = replace(problem, splits={
            ("m0", u, 2): rng.uniform(0.1, 0.7) * s
            for u, s in enumerate(row) if s is not None and rng.random() < 0.6
        })  # fmt: skip
    if facts:
        problem = with_facts(rng, problem)
    if budget:  # the boards are two engines for one FPGA, which holds either
        problem = replace(
            problem,
            machines=tuple(
                replace(m, board="b", needs=(3, 1)) if m.kind == "fpga" else m
                for m in problem.machines
            ),
            capacity={"b": (5, 9)},
        )
    return problem


def with_facts(rng: random.Random, problem: Problem) -> Problem:
    """Runs of consecutive units whose cost is known better, that cannot overlap or are banned."""
    n = len(problem.units)
    exact, interval, entry = {}, {}, {}
    serial, banned = set(), set()
    for machine in problem.machines:
        for start in range(n) if machine.kind == "fpga" else ():
            units = range(start, rng.randint(start + 1, n))
            row = [machine.seconds[u] for u in units]
            if None in row:
                continue
            key = machine.sort, frozenset(units)
            total = sum(s for s in row if s is not None)
            exact[key] = total * rng.uniform(1.0, 1.3)
            interval[key] = max(0.0, (total - machine.saving)) * rng.uniform(1.0, 1.2)
            entry[key] = rng.choice((0.0, 0.1))
            if rng.random() < 0.3:
                serial.add(key)
            if rng.random() < 0.2:
                banned.add(key)
    return replace(problem, exact=exact, interval=interval, entry=entry,
                   serial=frozenset(serial), banned=frozenset(banned))  # fmt: skip


@pytest.mark.parametrize("name", SWITCHES)
def test_equals_the_oracle(name: str) -> None:
    feasible = 0
    for seed in range(20):
        problem = problem_of(name, seed, 7)
        expected = best(problem)
        found = solve(problem)
        if expected is None:
            assert (found.status, found.runs) == ("infeasible", ()), seed
            continue
        feasible += 1
        verdict = check(problem, found.runs)
        assert verdict.violations == (), seed
        assert verdict.objective == found.objective
        assert found.status == "optimal", seed
        assert found.objective == pytest.approx(expected[0], rel=2e-6), seed
        assert found.lower_bound <= expected[0] * (1 + 1e-9), seed
        if problem.place == "fpga":
            assert verdict.fpga_macs == expected[1]
    assert feasible >= 8


@pytest.mark.slow
@pytest.mark.parametrize("name", SWITCHES)
def test_equals_the_oracle_up_to_twelve_units(name: str) -> None:
    for seed in range(100, 112):
        problem = problem_of(name, seed, 12)
        expected = best(problem)
        found = solve(problem)
        assert (expected is None) == (found.status == "infeasible"), seed
        if expected is not None:
            assert found.objective == pytest.approx(expected[0], rel=2e-6), seed
            assert found.lower_bound <= expected[0] * (1 + 1e-9), seed


@pytest.mark.parametrize("name", ["stages", "two boards", "replicas", "latency"])
def test_both_solvers_agree_without_a_plan_to_start_from(name: str) -> None:
    for seed in range(6):
        problem = problem_of(name, seed, 8)
        formulation = Formulation(problem)
        one, two = cpsat.solve(formulation), highs.solve(formulation)
        assert one.closed
        assert two.closed
        assert (one.runs is None) == (two.runs is None)
        if one.runs is not None and two.runs is not None:
            value = check(problem, two.runs).objective
            assert check(problem, one.runs).objective == pytest.approx(value, rel=1e-6)
            assert one.bound == pytest.approx(value, rel=1e-6)
            assert two.bound == pytest.approx(value, rel=1e-6)


def test_the_linear_search_is_never_better_than_the_optimum() -> None:
    for seed in range(10):
        problem = problem_of("two boards", seed, 8)
        found = linear.solve(problem)
        if found.verdict is not None:
            assert found.verdict.violations == ()
            assert solve(problem).objective <= found.objective


def test_out_of_time_the_bound_still_holds() -> None:
    for seed in range(5):
        problem = problem_of("two cpus", seed, 8)
        start = linear.solve(problem)
        quick = solve(problem, seconds=0.0, start=start)
        full = solve(problem)
        if quick.runs:
            assert quick.lower_bound <= full.objective * (1 + 1e-9)
            assert full.objective <= quick.objective
            assert quick.status == ("optimal" if quick.gap <= 1.1e-6 else "feasible")


def test_one_more_machine_never_makes_a_plan_worse() -> None:
    for seed in range(10):
        problem = problem_of("one board", seed, 7)
        board = replace(problem.machine("fpga0"), name="fpga9")
        more = replace(problem, machines=(*problem.machines, board))
        assert solve(more).objective <= solve(problem).objective * (1 + 2e-6)


def chain(seconds: dict[str, list[float | None]], nbytes: list[int], **options: object) -> Problem:
    n = len(nbytes) - 1
    values = [Value("x", None, (0,), nbytes[0])] + [
        Value(f"t{u}", u, (u + 1,) if u + 1 < n else (), nbytes[u + 1], u + 1 == n)
        for u in range(n)
    ]
    machines = [
        Machine(
            name,
            "cpu" if name.startswith("cpu") else "fpga",
            tuple(row),
            channel=None if name.startswith("cpu") else Channel(1000.0, 0.0),
            pooled=name.startswith("cpu"),
        )
        for name, row in seconds.items()
    ]
    return Problem(
        tuple(f"u{u}" for u in range(n)),
        tuple(values),
        tuple(machines),
        macs=(1,) * n,
        memory=(0,) * n,
        **options,  # type: ignore[arg-type]
    )


def names(solution: Solution) -> list[tuple[str, tuple[int, ...]]]:
    return [(run.machine, run.units) for run in solution.runs]


def test_cpu_fpga_cpu_around_units_that_only_a_cpu_can_run() -> None:
    problem = chain(
        {"cpu0": [1.0, 9.0, 9.0, 1.0], "fpga0": [None, 1.0, 1.0, None]}, [0, 100, 100, 100, 0]
    )
    found = solve(problem)
    assert names(found) == [("cpu0", (0,)), ("fpga0", (1, 2)), ("cpu0", (3,))]
    assert found.objective == pytest.approx(2.2)  # 2 s of work, 2 x 100 bytes at 1,000 B/s
    assert found.lower_bound == pytest.approx(found.objective, rel=2e-6)


def test_auto_leaves_a_slow_board_empty_and_place_fpga_uses_it() -> None:
    problem = chain({"cpu0": [0.1, 0.1], "fpga0": [0.1, 0.1]}, [1000, 1000, 1000])
    assert names(solve(problem)) == [("cpu0", (0, 1))]
    forced = solve(replace(problem, place="fpga"))
    assert names(forced) == [("fpga0", (0, 1))]
    assert forced.objective == pytest.approx(2.2)


def test_two_boards_share_the_work() -> None:
    seconds: dict[str, list[float | None]] = {
        "cpu0": [9.0] * 4,
        "fpga0": [1.0] * 4,
        "fpga1": [1.0] * 4,
    }
    found = solve(chain(seconds, [1, 1, 1, 1, 1]))
    assert {run.machine for run in found.runs} == {"fpga0", "fpga1"}
    assert found.objective == pytest.approx(2.002)


def test_a_shared_link_is_one_more_machine() -> None:
    problem = chain({"cpu0": [9.0] * 2, "fpga0": [1.0] * 2, "fpga1": [1.0] * 2}, [500, 500, 500])
    shared = tuple(
        replace(m, channel=Channel(1000.0, 0.0, "usb0")) if m.channel else m
        for m in problem.machines
    )
    runs = [Run("fpga0", (0,)), Run("fpga1", (1,))]
    assert check(problem, runs).objective == pytest.approx(2.0)
    assert check(replace(problem, machines=shared), runs).groups["usb0"] == pytest.approx(2.0)


def test_pins_are_kept() -> None:
    problem = chain({"cpu0": [9.0, 9.0], "fpga0": [0.1, 0.1]}, [1, 1, 1], pins={0: "cpu0"})
    assert names(solve(problem)) == [("cpu0", (0,)), ("fpga0", (1,))]


def test_a_run_that_does_not_fit_is_avoided_and_so_are_larger_ones() -> None:
    problem = chain({"cpu0": [9.0] * 3, "fpga0": [0.1] * 3}, [1] * 4)
    cut = replace(problem, misfits={"fpga0": (frozenset({0, 1}),)}, place="fpga")
    assert names(solve(cut)) == [("cpu0", (0,)), ("fpga0", (1, 2))]


def test_the_exact_cost_of_a_run_replaces_the_sum() -> None:
    problem = chain({"cpu0": [9.0] * 2, "fpga0": [1.0] * 2}, [1] * 3)
    dear = replace(problem, exact={("fpga0", frozenset({0, 1})): 30.0})
    assert solve(dear).objective == pytest.approx(9.0)
    assert check(dear, [Run("fpga0", (0, 1))]).objective == pytest.approx(30.002)


def test_more_bandwidth_never_makes_a_plan_worse() -> None:
    for seed in range(12):
        problem = problem_of("two boards", seed, 7)
        fast = tuple(
            replace(
                m,
                channel=replace(
                    m.channel,
                    bandwidth_bytes_per_second=m.channel.bandwidth_bytes_per_second * 10,
                ),
            )
            if m.channel
            else m
            for m in problem.machines
        )
        quick = solve(replace(problem, machines=fast))
        assert quick.objective <= solve(problem).objective * (1 + 2e-6)


def test_the_evaluator_names_broken_conditions() -> None:
    problem = chain({"cpu0": [1.0] * 3, "fpga0": [1.0, None, 1.0]}, [1] * 4, inner=frozenset({0}))
    text = " | ".join(check(problem, [Run("fpga0", (0, 1)), Run("cpu0", (2,))]).violations)
    assert "u1 cannot run on fpga0" in text
    assert "u0 reorders bytes at the border of fpga0" in text
    text = " | ".join(check(problem, [Run("cpu0", (1, 0, 2))]).violations)
    assert "u1 comes before u0, which it reads" in text
    text = " | ".join(
        check(problem, [Run("fpga0", (0,)), Run("cpu0", (1,)), Run("fpga0", (2,))]).violations
    )
    assert "fpga0 owns 2 runs, at most 1 is possible" in text
    assert "the runs hold 1 units" in check(problem, [Run("cpu0", (0,))]).violations[0]


def test_the_evaluator_counts_replicas_and_shards() -> None:
    problem = chain({"cpu0": [1.0] * 2, "fpga0": [4.0, 4.0], "fpga1": [4.0, 4.0]}, [0, 1000, 1000])
    twins = tuple(replace(m, model="b") if m.kind == "fpga" else m for m in problem.machines)
    problem = replace(problem, machines=twins, memory=(7, 9), splits={("b", 0, 2): 2.5})
    both = Run("fpga0", (0, 1), ("fpga1",))
    assert "2 replicas are not allowed" in check(problem, [both]).violations
    found = check(replace(problem, replicas=(1, 2)), [both])
    assert found.violations == ()
    assert found.objective == pytest.approx((8.0 + 1.0) / 2)
    assert found.memory == {"cpu0": 0, "fpga0": 16, "fpga1": 16}
    shards = Run("fpga0", (0,), ("fpga1",), 2)
    found = check(problem, [shards, Run("cpu0", (1,))])
    assert found.violations == ()
    assert found.loads["fpga1"] == pytest.approx(2.5 + 0.5)  # each sends its half
    assert found.memory["fpga0"] == 4
    text = " | ".join(check(problem, [Run("fpga0", (0, 1), ("fpga1",), 2)]).violations)
    assert "2 units are split together, 1 is possible" in text
    assert "u1 cannot run on 2 shards of fpga0" in text
    assert "cannot share a run" in " | ".join(
        check(problem, [Run("fpga0", (0, 1), ("cpu0",))]).violations
    )


def test_the_evaluator_counts_what_engines_need_of_their_board() -> None:
    problem = chain({"cpu0": [1.0] * 2, "fpga0": [1.0] * 2, "fpga1": [1.0] * 2}, [0, 0, 0])
    engines = tuple(
        replace(m, board="b", needs=(3, 2)) if m.kind == "fpga" else m for m in problem.machines
    )
    problem = replace(problem, machines=engines, capacity={"b": (6, 3)})
    two = [Run("fpga0", (0,)), Run("fpga1", (1,))]
    assert check(problem, two).violations == (
        "the engines on b need 4 of a resource, it has 3",
    )  # fmt: skip
    assert check(replace(problem, capacity={"b": (6, 4)}), two).violations == ()
