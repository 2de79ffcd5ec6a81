"""Open partitioning workloads (NeurIPS 2020, "Efficient Algorithms for Device Placement").

A JSON file with ``maxSizePerFPGA`` (bytes), ``maxFPGAs``, ``maxCPUs``, ``nodes`` and ``edges``;
"FPGA" there means any accelerator. An accelerator pays for every tensor that enters or leaves its
stage, a CPU for none; loads add up. Nodes of one colour belong together, and so do those which are
on a cycle once the colours are contracted.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trivet.compiler.errors import CompileError

from .check import check
from .plan import Plan
from .problem import Channel, Machine, Problem, Value
from .solve import solve
from .write import infeasible, plan_of, stage_of

__all__ = ["Workload", "plan_workload", "read_workload"]

# The file's costs are numbers without a unit, and so is a byte here: one a second.
_CHANNEL = Channel(1.0, 0.0)
Flag = bool | int


class _Node(msgspec.Struct):
    id: int | str
    supportedOnFpga: Flag
    cpuLatency: float
    fpgaLatency: float
    isBackwardNode: Flag = False
    colorClass: int | str | None = None
    size: float = 0.0
    name: str | None = None


class _Edge(msgspec.Struct):
    sourceId: int | str
    destId: int | str
    cost: float


class _File(msgspec.Struct):
    maxSizePerFPGA: float
    maxFPGAs: int
    maxCPUs: int
    nodes: list[_Node]
    edges: list[_Edge]


@dataclass(frozen=True)
class Workload:
    """The problem, and for each of its units the ids of the file's nodes that it contracts."""

    problem: Problem
    members: tuple[tuple[str, ...], ...]


def read_workload(
    path: Path, data: bytes | None = None, replicas: tuple[int, ...] = (1,)
) -> Workload:
    """Read a workload file. CompileError names the file and what is wrong in it."""
    where = f"workload {path}"
    raw = _bytes(path) if data is None else data
    try:
        file = msgspec.json.decode(raw, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise CompileError(
            f"{where}: {e}; the format is that of msr-fiddle/dnn-partitioning, throughput-inputs"
        ) from e
    _refuse(where, file)
    unit = _contract(file)
    count = max(unit.values()) + 1
    members: list[list[_Node]] = [[] for _ in range(count)]
    for node in file.nodes:
        members[unit[node.id]].append(node)
    values = _values(file, unit)
    cpu = tuple(sum(n.cpuLatency for n in ns) for ns in members)
    fast = tuple(
        sum(n.fpgaLatency for n in ns) if all(n.supportedOnFpga for n in ns) else None
        for ns in members
    )
    machines = [
        Machine(f"accelerator{k}", "gpu", fast, _CHANNEL, int(file.maxSizePerFPGA), model="a")
        for k in range(file.maxFPGAs)
    ]
    machines += [Machine(f"cpu{k}", "cpu", cpu, model="c") for k in range(file.maxCPUs)]
    problem = Problem(
        units=tuple(str(ns[0].name or ns[0].id) for ns in members),
        values=values,
        machines=tuple(machines),
        macs=(0,) * count,
        memory=tuple(int(sum(n.size for n in ns)) for ns in members),
        replicas=replicas,
    )
    return Workload(problem, tuple(tuple(str(n.id) for n in ns) for ns in members))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise CompileError(f"workload {path}: cannot be read ({e.strerror}); check the path") from e


def plan_workload(path: Path, *, most_replicas: int = 1, seconds: float = 60.0) -> Plan:
    """The plan of a workload file; stages name the file's node ids."""
    began = time.perf_counter()
    data = _bytes(path)
    workload = read_workload(path, data, tuple(range(1, most_replicas + 1)))
    problem = workload.problem
    digest = hashlib.sha256(data).hexdigest()
    machines = "\n".join(f"{m.name} {m.memory_limit}" for m in problem.machines)
    devices = hashlib.sha256(machines.encode()).hexdigest()
    found = solve(problem, seconds=seconds)
    if found.status == "infeasible":
        return infeasible(problem, _conflict(problem), model=digest, rig=devices, unit="1")
    if not found.runs:
        raise CompileError(
            f"workload {path}: no plan was found in {seconds:g} s, nor a proof that there is none; "
            "give it more time"
        )
    verdict = check(problem, found.runs)
    stages = [
        msgspec.structs.replace(
            stage_of(problem, k, run, cost),
            nodes=[n for u in run.units for n in workload.members[u]],
        )
        for k, (run, cost) in enumerate(zip(found.runs, verdict.runs, strict=True))
    ]
    plan = plan_of(problem, found, verdict, stages, model=digest, rig=devices, unit="1")
    return msgspec.structs.replace(plan, seconds=time.perf_counter() - began)


def _conflict(problem: Problem) -> list[str]:
    """Why a workload has no plan: the limits that its nodes meet."""
    limited = [m for m in problem.machines if m.memory_limit is not None]
    able = [m for m in problem.machines if m.memory_limit is None]
    found = []
    stuck = [
        name
        for u, name in enumerate(problem.units)
        if not any(m.seconds[u] is not None for m in problem.machines)
    ]
    if stuck:
        return [f"no device can run {', '.join(stuck[:3])}"]
    if limited:
        size = limited[0].memory_limit
        found.append(
            f"{len(limited)} accelerators hold {size} bytes each, the nodes have "
            f"{sum(problem.memory)}"
        )
    found.append(f"there are {len(able)} cpus for what accelerators do not support or hold")
    return found


def _refuse(where: str, file: _File) -> None:
    if not file.nodes:
        raise CompileError(f"{where}: it has no nodes, there is nothing to plan")
    if file.maxFPGAs < 0 or file.maxCPUs < 0 or file.maxFPGAs + file.maxCPUs < 1:
        raise CompileError(
            f"{where}: maxFPGAs {file.maxFPGAs} and maxCPUs {file.maxCPUs}; "
            "give one device at least"
        )
    ids = {n.id for n in file.nodes}
    if len(ids) != len(file.nodes):
        raise CompileError(f"{where}: two nodes have one id; number them apart")
    for node in file.nodes:
        if node.isBackwardNode:
            raise CompileError(
                f"{where}: node {node.id} is a backward node; training is not planned here, use "
                "an inference workload"
            )
        if min(node.cpuLatency, node.fpgaLatency, node.size) < 0:
            raise CompileError(f"{where}: node {node.id} has a negative cost; costs are at least 0")
    cost: dict[Any, float] = {}
    for edge in file.edges:
        for end in (edge.sourceId, edge.destId):
            if end not in ids:
                raise CompileError(f"{where}: an edge leads to node {end}, which is not there")
        if edge.cost < 0 or cost.setdefault(edge.sourceId, edge.cost) != edge.cost:
            raise CompileError(
                f"{where}: the edges from node {edge.sourceId} cost {cost[edge.sourceId]:g} and "
                f"{edge.cost:g}; they carry one tensor, so its cost is one number of at least 0"
            )


def _values(file: _File, unit: dict[Any, int]) -> tuple[Value, ...]:
    """A value for every node whose tensor is read in another unit."""
    readers: dict[Any, dict[int, None]] = {}
    cost: dict[Any, float] = {}
    for edge in file.edges:
        cost[edge.sourceId] = edge.cost
        if unit[edge.sourceId] != unit[edge.destId]:
            readers.setdefault(edge.sourceId, {})[unit[edge.destId]] = None
    return tuple(
        Value(str(source), unit[source], tuple(sorted(found)), cost[source])
        for source, found in readers.items()
    )


def _contract(file: _File) -> dict[Any, int]:
    """Node id -> unit; units are numbered along the edges."""
    colour = {n.id: ("colour", n.colorClass) if n.colorClass is not None else ("node", n.id)
              for n in file.nodes}  # fmt: skip
    number: dict[Any, int] = {}
    for key in colour.values():
        number.setdefault(key, len(number))
    after: list[dict[int, None]] = [{} for _ in number]
    for edge in file.edges:
        a, b = number[colour[edge.sourceId]], number[colour[edge.destId]]
        if a != b:
            after[a][b] = None
    component = _components(after)
    return {node: component[number[key]] for node, key in colour.items()}


def _components(after: list[dict[int, None]]) -> list[int]:
    """Strongly connected components (Tarjan), numbered so that edges lead to larger numbers."""
    n = len(after)
    index = [-1] * n
    low = [0] * n
    component = [-1] * n
    stack: list[int] = []
    made = count = 0
    for root in range(n):
        if index[root] >= 0:
            continue
        work = [(root, iter(after[root]))]
        index[root] = low[root] = made
        made += 1
        stack.append(root)
        while work:
            v, children = work[-1]
            for c in children:
                if index[c] < 0:
                    index[c] = low[c] = made
                    made += 1
                    stack.append(c)
                    work.append((c, iter(after[c])))
                    break
                if component[c] < 0:
                    low[v] = min(low[v], index[c])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[v])
                if low[v] == index[v]:
                    while True:
                        c = stack.pop()
                        component[c] = count
                        if c == v:
                            break
                    count += 1
    return [count - 1 - c for c in component]
