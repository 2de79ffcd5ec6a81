"""The linear planner finds the optimum of its family, and its bound never exceeds it."""

import itertools
import random
from dataclasses import replace

import pytest

from trivet.compiler.planner.linear import Solution, orders, solve
from trivet.compiler.planner.problem import Channel, Machine, Problem, Run, Value, check


def random_problem(
    rng: random.Random, n: int, cpus: int, boards: int, *, chain: bool = False
) -> Problem:
    """Up to `n` units in a chain or DAG: random costs, views, barred values, pins and limits."""
    values = [
        Value("x", None, (0,), rng.randint(1, 4000), barred="float" if rng.random() < 0.3 else None)
    ]
    readers: dict[int, list[int]] = {u: [] for u in range(n)}
    for u in range(1, n):
        count = 1 if chain else rng.choice((1, 1, 2))
        for source in {u - 1} if chain else {rng.randrange(u) for _ in range(count)}:
            readers[source].append(u)
    for u in range(n):
        barred = "float" if rng.random() < 0.1 else None
        last = not readers[u]
        values.append(Value(f"t{u}", u, tuple(readers[u]), rng.randint(1, 4000), last, barred))
    group = "usb0" if rng.random() < 0.4 else None
    machines = [
        Machine(
            f"cpu{k}",
            "cpu",
            tuple(rng.uniform(0.1, 3.0) for _ in range(n)),
            memory_limit=rng.choice((None, None, 60 * n)),
        )
        for k in range(cpus)
    ]
    machines += [
        Machine(
            f"fpga{k}",
            "fpga",
            tuple(rng.uniform(0.05, 1.5) if rng.random() < 0.8 else None for _ in range(n)),
            channel=Channel(rng.uniform(2e3, 5e4), rng.uniform(0, 0.2), group),
            overlap=rng.random() < 0.5,
        )
        for k in range(boards)
    ]
    pins = {}
    if rng.random() < 0.3:
        pins[rng.randrange(n)] = rng.choice(machines).name
    misfits = {}
    if boards and rng.random() < 0.3:
        start = rng.randrange(n)
        misfits["fpga0"] = (frozenset(range(start, min(n, start + 3))),)
    return Problem(
        tuple(f"u{u}" for u in range(n)),
        tuple(values),
        tuple(machines),
        macs=tuple(rng.randint(0, 50) for _ in range(n)),
        memory=tuple(rng.randint(1, 100) for _ in range(n)),
        inner=frozenset(u for u in range(n) if rng.random() < 0.15),
        pins=pins,
        objective=rng.choice(("throughput", "throughput", "latency")),
        place=rng.choice(("auto", "fpga")),
        misfits=misfits,
    )


def runs_of(order: tuple[int, ...], names: tuple[str, ...]) -> list[Run]:
    return [
        Run(name, tuple(u for u, _ in group))
        for name, group in itertools.groupby(zip(order, names, strict=True), key=lambda x: x[1])
    ]


def brute_force(problem: Problem) -> tuple[float, int]:
    """Best objective (and its MACs on FPGAs) over every assignment along every searched order."""
    names = [m.name for m in problem.machines]
    found = []
    for order in orders(problem):
        for chosen in itertools.product(names, repeat=len(order)):
            verdict = check(problem, runs_of(order, chosen))
            if not verdict.violations:
                found.append((verdict.objective, verdict.fpga_macs))
    if not found:
        return float("inf"), -1
    if problem.place == "fpga":
        most = max(macs for _, macs in found)
        found = [f for f in found if f[1] == most]
    return min(found)


@pytest.mark.parametrize(
    ("n", "cpus", "boards", "cases"),
    [(4, 1, 1, 60), (10, 1, 1, 12), (6, 1, 2, 20), (6, 2, 1, 20), (5, 2, 2, 12)],
)
def test_equals_brute_force(n: int, cpus: int, boards: int, cases: int) -> None:
    rng = random.Random(1000 * n + 10 * cpus + boards)
    for case in range(cases):
        problem = random_problem(rng, n, cpus, boards, chain=case % 3 == 0)
        best, macs = brute_force(problem)
        found = solve(problem)
        limited = any(m.memory_limit for m in problem.machines)
        if best == float("inf"):
            assert not found.runs, case
            continue
        verdict = check(problem, found.runs)
        assert verdict.violations == (), case
        if not (limited and problem.place == "fpga"):
            assert found.objective == pytest.approx(best, rel=1e-9), case
            if problem.place == "fpga":
                assert verdict.fpga_macs == macs
            assert found.lower_bound <= found.objective
            assert found.gap == pytest.approx(0.0)
            assert found.proven


def test_a_cut_search_still_has_a_bound_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    for _ in range(8):
        problem = random_problem(rng, 7, 2, 1)
        problem = replace(problem, place="auto", objective="throughput")
        exact = solve(problem)
        with monkeypatch.context() as patch:
            patch.setattr("trivet.compiler.planner.linear.MAX_LABELS", 2)
            cut = solve(problem)
        if not exact.runs or not cut.runs:
            continue
        assert cut.lower_bound <= exact.objective + 1e-12
        assert cut.objective >= exact.objective - 1e-12
        if not cut.proven:
            assert cut.gap >= 0.0


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
    assert found.lower_bound == found.objective


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
    rng = random.Random(3)
    for _ in range(20):
        problem = replace(random_problem(rng, 6, 1, 1), place="auto")
        fast = tuple(
            replace(
                m,
                channel=Channel(
                    m.channel.bandwidth_bytes_per_second * 10, m.channel.latency_seconds
                ),
            )
            if m.channel
            else m
            for m in problem.machines
        )
        assert solve(replace(problem, machines=fast)).objective <= solve(problem).objective + 1e-12


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
