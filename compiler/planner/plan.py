"""plan.json: the typed plan, its validation on load, and the rules it was held against.

Format: INTERFACES, "plan.json", with additions: ``notes`` (sentences for the user), ``auto`` (what
``place = auto`` would have done, when something else was asked for) and a stage's ``units``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from trivet.compiler.cost import Cost
from trivet.compiler.errors import CompileError

from .problem import Objective

__all__ = ["AutoPlan", "CostEntry", "Plan", "RuleResult", "StagePlan", "read_plan"]

VERSION = 1


class CostEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A :class:`~trivet.compiler.cost.Cost` as JSON."""

    value: float
    unit: str
    source: str
    detail: str
    spread: float | None = None

    @classmethod
    def of(cls, cost: Cost) -> CostEntry:
        return cls(**dataclasses.asdict(cost))


class RuleResult(msgspec.Struct, frozen=True):
    """A rule with its figure; ``limit`` None: reported only; a broken hard rule forbids a plan."""

    name: str
    hard: bool
    ok: bool
    value: float
    limit: float | None
    where: str


class StagePlan(msgspec.Struct, frozen=True):
    """Consecutive units on one device; times are seconds for one item."""

    index: int
    device: str
    members: list[str]
    nodes: list[str]
    compute: float
    communication: float
    memory_bytes: int
    costs: dict[str, CostEntry]
    replicas: int = 1
    shards: int = 1
    shard_axis: int | None = None
    engine: str | None = None
    fpga: dict[str, float] | None = None
    energy_j: float | None = None
    units: list[str] = []  # anchor nodes of what was placed as a whole


class AutoPlan(msgspec.Struct, frozen=True):
    """What the optimum without placement wishes is, and what the wishes cost."""

    bottleneck: float
    stages: list[dict[str, Any]]  # device, nodes
    loss: float  # bottleneck of the plan / that of auto - 1


class Plan(msgspec.Struct, frozen=True):
    """The plan. ``seconds`` is the solver's time, None in bundles (equal inputs, equal bytes)."""

    version: int
    model_sha256: str
    rig_sha256: str
    unit: Literal["s", "1"]
    objective: Objective
    execution: Literal["sync", "overlap"]
    bottleneck: float | None
    bottleneck_stage: int | None
    bottleneck_reason: str
    lower_bound: float | None
    gap: float | None
    status: Literal["optimal", "feasible", "infeasible"]
    seconds: float | None
    stages: list[StagePlan]
    rules: list[RuleResult]
    conflict: list[str]
    notes: list[str] = []
    auto: AutoPlan | None = None

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @property
    def feasible(self) -> bool:
        return self.status != "infeasible"


def read_plan(path: Path, data: bytes | None = None) -> Plan:
    """Read plan.json; CompileError names the file and the field."""
    try:
        raw = path.read_bytes() if data is None else data
        plan = msgspec.json.decode(raw, type=Plan)
    except OSError as e:
        raise CompileError(f"plan {path}: cannot be read ({e.strerror}); check the path") from e
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise CompileError(f"plan {path}: {e}; make it again with `trivet plan --json`") from e
    if plan.version != VERSION:
        raise CompileError(
            f"plan {path}: version {plan.version}, this release reads {VERSION}; plan again"
        )
    _check_shape(path, plan.stages)
    return plan


def _check_shape(path: Path, stages: Sequence[StagePlan]) -> None:
    for position, stage in enumerate(stages):
        if stage.index != position:
            raise CompileError(
                f"plan {path}: stage {position} is numbered {stage.index}; number them from 0"
            )
