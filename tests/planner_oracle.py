"""The best plan of a small problem by dynamic programming over ideals, and random problems for it.

An ideal is a set of units that holds everything its members read. Every plan is a chain of ideals,
one run between each and the next, so labels on (ideal, machines used) reach all plans; of labels,
those stay that no other beats in every figure that the rest of a plan could still care about.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations

from trivet.compiler.planner.check import Evaluation, check
from trivet.compiler.planner.problem import Channel, Machine, Problem, Run, Value, weights

Vector = tuple[float, ...]
RUN_FAULTS = (
    "cannot",
    "split together",
    "breaks a rule",
    "communicates for more",
    "reorders bytes",
    "not allowed",
)


def ideals(problem: Problem) -> list[frozenset[int]]:
    """All ideals, small ones first."""
    before: dict[int, set[int]] = {u: set() for u in range(len(problem.units))}
    for value in problem.values:
        if value.producer is not None:
            for c in value.consumers:
                before[c].add(value.producer)
    found = {frozenset[int]()}
    front = list(found)
    while front:
        made = {i | {u} for i in front for u in before if u not in i and before[u] <= i}
        front = [i for i in made if i not in found]
        found.update(front)
    return sorted(found, key=lambda i: (len(i), sorted(i)))


def best(problem: Problem) -> tuple[float, int] | None:
    """(objective, MACs on FPGAs) of the best plan; None when there is no plan."""
    weight = weights(problem)
    chain = ideals(problem)
    links = sorted({m.channel.group for m in problem.machines if m.channel and m.channel.group})
    pooled = [m for m in problem.machines if m.pooled]
    boards = sorted(problem.capacity)
    size = 4 + 2 * len(pooled) + len(links) + sum(len(problem.capacity[b]) for b in boards)
    # A label: -MACs, largest load of a run, seconds, joules; loads and memory of pooled machines;
    # links; boards.
    start: Vector = (0.0,) * size
    labels: dict[tuple[frozenset[int], frozenset[str]], list[Vector]] = {
        (chain[0], frozenset()): [start]
    }
    order = {u: k for k, u in enumerate(_order(problem))}
    for here in chain:
        for used in sorted({u for i, u in labels if i == here}, key=sorted):
            rows = labels[here, used]
            for there in chain:
                if not here < there:
                    continue
                units = tuple(sorted(there - here, key=order.__getitem__))
                for run, verdict in _runs(problem, units, used):
                    after = frozenset({*used, *run.members} - {m.name for m in pooled})
                    for row in rows:
                        new = _extend(problem, row, run, verdict, pooled, links, boards)
                        if new is not None:
                            _keep(labels.setdefault((there, after), []), new)
    ends = [row for (i, _), rows in labels.items() if i == chain[-1] for row in rows]
    found = []
    for row in ends:
        loads = row[4 : 4 + len(pooled)]
        rest = row[4 + 2 * len(pooled) : 4 + 2 * len(pooled) + len(links)]
        pace = max([row[1], *loads, *rest])
        found.append((weight.bottleneck * pace + row[3] + weight.serial * row[2], int(-row[0])))
    if not found:
        return None
    if problem.place == "fpga":
        most = max(m for _, m in found)
        found = [f for f in found if f[1] == most]
    return min(found)


def _order(problem: Problem) -> list[int]:
    done: list[int] = []
    while len(done) < len(problem.units):
        for u in range(len(problem.units)):
            reads = {v.producer for v in problem.values if u in v.consumers} - {None}
            if u not in done and reads <= set(done):
                done.append(u)
    return done


def _runs(
    problem: Problem, units: tuple[int, ...], used: frozenset[str]
) -> Iterator[tuple[Run, Evaluation]]:
    """Every run of the units that is possible on its own."""
    for machine in problem.machines:
        if machine.pooled and len(units) > 1:
            continue  # one at a time reaches the same
        if machine.name in used:
            continue
        free = [m.name for m in problem.machines if m.sort == machine.sort
                and not m.pooled and m.name not in used and m.name != machine.name]  # fmt: skip
        for t in (1, *sorted({t for _, _, t in problem.splits})):
            for r in problem.replicas:
                for others in combinations(free, r * t - 1):
                    run = Run(machine.name, units, others, t)
                    elsewhere = any(problem.pins.get(u, n) != n for u in units for n in run.members)
                    verdict = check(problem, [run])
                    if not elsewhere and not any(
                        fault in v for v in verdict.violations for fault in RUN_FAULTS
                    ):
                        yield run, verdict


def _extend(
    problem: Problem,
    row: Vector,
    run: Run,
    verdict: Evaluation,
    pooled: list[Machine],
    links: list[str],
    boards: list[str],
) -> Vector | None:
    new = list(row)
    (cost,) = verdict.runs
    new[0] -= verdict.fpga_macs
    new[2] += cost.seconds
    new[3] += sum(weights(problem).busy[m] * cost.load for m in run.members)
    names = [m.name for m in pooled]
    for name in run.members:
        machine = problem.machine(name)
        if not machine.pooled:
            new[1] = max(new[1], cost.load)
            if machine.memory_limit is not None and verdict.memory[name] > machine.memory_limit:
                return None
        else:
            at = 4 + names.index(name)
            new[at] += cost.load
            new[at + len(pooled)] += verdict.memory[name]
            limit = machine.memory_limit
            if limit is not None and new[at + len(pooled)] > limit:
                return None
        at = 4 + 2 * len(pooled) + len(links)
        for board in boards:
            for need, has in zip(machine.needs, problem.capacity[board], strict=False):
                new[at] += need if machine.board == board else 0
                if new[at] > has:
                    return None
                at += 1
    for group, seconds in verdict.groups.items():
        new[4 + 2 * len(pooled) + links.index(group)] += seconds
    return tuple(new)


def _keep(rows: list[Vector], new: Vector) -> None:
    if any(all(a <= b for a, b in zip(row, new, strict=True)) for row in rows):
        return
    rows[:] = [r for r in rows if not all(a <= b for a, b in zip(new, r, strict=True))]
    rows.append(new)


def random_problem(
    rng: random.Random, n: int, *, cpus: int = 1, boards: int = 1, twins: int = 0, gpus: int = 0,
    pooled: bool = True, plain: bool = False, **switches: object,
) -> Problem:  # fmt: skip
    """A random DAG of ``n`` units, machines with random costs, ``twins`` more of the first board.

    ``plain`` leaves out what only some problems have: barred values, views, pins, misfits, limits.
    """
    values = [Value("x", None, (0,), rng.randint(1, 4000),
                    barred="float" if rng.random() < 0.2 and not plain else None)]  # fmt: skip
    readers: dict[int, set[int]] = {u: set() for u in range(n)}
    for u in range(1, n):
        for _ in range(rng.choice((1, 1, 2))):
            readers[max(0, u - rng.choice((1, 1, 2, 3)))].add(u)
    for u in range(n):
        barred = "float" if rng.random() < 0.1 and not plain else None
        last = not readers[u] or rng.random() < 0.05
        values.append(
            Value(f"t{u}", u, tuple(sorted(readers[u])), rng.randint(1, 4000), last, barred,
                  rng.choice((1, 1, 2)), rng.choice((1, 1, 2)))
        )  # fmt: skip
    group = "usb0" if rng.random() < 0.4 and not plain else None

    def limit() -> int | None:
        return None if plain else rng.choice((None, None, 60 * n))

    def row(low: float, high: float, able: float = 1.0) -> tuple[float | None, ...]:
        return tuple(rng.uniform(low, high) if rng.random() < able else None for _ in range(n))

    machines = [
        Machine(f"cpu{k}", "cpu", row(0.1, 3.0), memory_limit=limit(), pooled=pooled,
                busy_watts=rng.uniform(5, 20), idle_watts=rng.uniform(0, 5))
        for k in range(cpus)
    ]  # fmt: skip
    for k in range(boards):
        channel = Channel(rng.uniform(2e3, 5e4), rng.uniform(0, 0.2), group,
                          0 if plain else rng.choice((0, 1)), rng.random() < 0.3)  # fmt: skip
        overlap = rng.random() < 0.5 and not plain
        machine = Machine(f"fpga{k}", "fpga", row(0.05, 1.5, 0.8), channel, limit(), overlap,
                          rng.choice((0.0, 0.05)), model=f"m{k}", busy_watts=rng.uniform(1, 5),
                          idle_watts=rng.uniform(0, 1))  # fmt: skip
        machines.append(machine)
        for t in range(twins if k == 0 else 0):
            machines.append(Machine(**{**machine.__dict__, "name": f"twin{t}"}))
    for k in range(gpus):
        machines.append(
            Machine(f"gpu{k}", "gpu", row(0.05, 0.8, 0.9), Channel(rng.uniform(1e4, 1e5), 0.02),
                    busy_watts=rng.uniform(50, 80), idle_watts=rng.uniform(5, 9))
        )  # fmt: skip
    pins, misfits = {}, {}
    if rng.random() < 0.3 and not plain:
        pins[rng.randrange(n)] = rng.choice(machines).name
    if boards and rng.random() < 0.3 and not plain:
        start = rng.randrange(n)
        misfits["m0"] = (frozenset(range(start, min(n, start + 3))),)
    fields: dict[str, object] = {
        "inner": frozenset(u for u in range(n) if rng.random() < 0.15 and not plain),
        "pins": pins,
        "misfits": misfits,
        **switches,
    }
    return Problem(
        tuple(f"u{u}" for u in range(n)),
        tuple(values),
        tuple(machines),
        macs=tuple(rng.randint(0, 50) for _ in range(n)),
        memory=tuple(rng.randint(1, 100) for _ in range(n)),
        **fields,  # type: ignore[arg-type]
    )
