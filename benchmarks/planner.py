"""Times of the planner: open workloads to their proof, and large graphs of our own.

    python benchmarks/planner.py [--large] [--json]

Without ``TRIVET_SHARED`` the workloads are left out. CPU seconds are printed beside wall time: on a
busy machine only they mean something.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path

from trivet.compiler.cost_cpu import cpu_name
from trivet.compiler.planner import linear
from trivet.compiler.planner.problem import Channel, Machine, Problem, Value
from trivet.compiler.planner.solve import solve
from trivet.compiler.planner.workload import read_workload

OPTIMA = {
    "bert24": 17.789906,
    "gnmt": 32.910658,
    "resnet50": 33.774666,
    "inceptionv3": 51.551864,
    "bert_l-3": 27.918568,
    "bert_l-6": 29.579506,
}
REPLICATED = {"bert24": 15.2854, "gnmt": 30.3846}


def unrolled(layers: int, devices: int, classes: int = 1) -> Problem:
    """An unrolled LLM: ``layers`` blocks of 31 units (heads in parallel, experts) and embeddings.

    Costs follow from widths (4096, 8 head groups, 8 experts) and vary a little from block to block,
    so that no cut is as good as another. ``classes`` makes every other device slower and its link
    faster. Seconds, bytes.
    """
    names: list[str] = []
    work: list[float] = []
    weight: list[int] = []
    values: list[tuple[int, set[int], float]] = []

    def unit(name: str, seconds: float, nbytes: int, reads: list[int], out: float) -> int:
        names.append(name)
        work.append(seconds)
        weight.append(nbytes)
        values.append((len(names) - 1, set(), out))
        for r in reads:
            values[r][1].add(len(names) - 1)
        return len(names) - 1

    width = 4096
    at = unit("embed", 2e-5, 64 << 20, [], width * 2)
    for k in range(layers):
        scale = 1 + 0.13 * ((k * 7) % 11) / 11
        norm = unit(f"{k}.norm", 4e-6, 8 << 10, [at], width * 2)
        heads = []
        for h in range(8):
            qkv = unit(f"{k}.qkv{h}", 3.1e-5 * scale, 12 << 20, [norm], 3 * width / 4)
            heads.append(unit(f"{k}.attend{h}", 1.7e-5, 0, [qkv], width / 4))
        mixed = unit(f"{k}.project", 6e-5, 32 << 20, heads, width * 2)
        added = unit(f"{k}.add", 2e-6, 0, [at, mixed], width * 2)
        gate = unit(f"{k}.gate", 5e-6, 64 << 10, [added], 64)
        experts = [
            unit(f"{k}.expert{e}", 4.3e-5 * scale * (1 + 0.05 * e), 24 << 20, [added, gate],
                 width * 2)
            for e in range(8)
        ]  # fmt: skip
        joined = unit(f"{k}.join", 3e-6, 0, experts, width * 2)
        at = unit(f"{k}.out", 2e-6, 0, [added, joined], width * 2)
        at = unit(f"{k}.clip", 1e-6, 0, [at], width * 2)
    unit("head", 2e-4, 64 << 20, [at], width * 8)
    n = len(names)
    machines = []
    for d in range(devices):
        slow = 1 + 0.35 * (d % classes)
        machines.append(
            Machine(
                f"device{d}",
                "gpu",
                tuple(w * slow for w in work),
                Channel(12e9 * (1 + d % classes), 5e-6),
                model=f"class{d % classes}",
            )
        )
    return Problem(
        tuple(names),
        tuple(Value(names[u], u, tuple(sorted(r)), b, u == n - 1) for u, r, b in values),
        tuple(machines),
        macs=(0,) * n,
        memory=tuple(weight),
    )


def timed(name: str, problem: Problem, gap: float, seconds: float) -> dict[str, object]:
    wall, cpu = time.perf_counter(), time.process_time()
    start = linear.solve(problem)
    quick = time.perf_counter() - wall
    found = solve(problem, start=start, gap=gap, seconds=seconds - quick)
    return {
        "name": name,
        "units": len(problem.units),
        "machines": len(problem.machines),
        "value": found.objective,
        "gap": found.gap,
        "status": found.status,
        "linear_s": quick,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="graphs of 1,000 and 10,000 units")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    shared = os.environ.get("TRIVET_SHARED")
    for name, optimum in OPTIMA.items() if shared else ():
        path = Path(str(shared)) / "workloads" / f"{name}_inference.json"
        row = timed(name, read_workload(path).problem, 1e-6, 60)
        rows.append({**row, "expected": optimum})
        if name in REPLICATED:
            problem = read_workload(path, replicas=tuple(range(1, 8))).problem
            rows.append({**timed(f"{name}, replicas", problem, 1e-6, 60),
                         "expected": REPLICATED[name]})  # fmt: skip
    if options.large:
        rows.append(timed("LLM, 8 devices", unrolled(44, 8), 1e-3, 60))
        rows.append(timed("LLM, 8 devices", unrolled(434, 8), 5e-3, 120))
        rows.append(timed("LLM, 16 devices", unrolled(434, 16), 5e-3, 120))
        rows.append(timed("LLM, 9 devices of 3 classes", unrolled(44, 9, 3), 1e-3, 60))
    if options.json:
        print(json.dumps({"machine": cpu_name(), "rows": rows}, indent=1))
        return
    print(f"{cpu_name()}, {os.cpu_count()} cores")
    for row in rows:
        expected = row.get("expected")
        away = "" if expected is None else f"  published {expected:.6f}"
        print(
            f"{row['name']:28} {row['units']:6} units {row['machines']:3} machines  "
            f"{row['value']:.6g}  gap {row['gap']:.1e} {row['status']:8} "
            f"linear {row['linear_s']:6.2f} s  all {row['wall_s']:6.2f} s "
            f"(CPU {row['cpu_s']:6.2f})  {row['memory_mb']:6.0f} MB{away}"
        )


if __name__ == "__main__":
    main()
