"""What cannot be kept together, when no plan is feasible: no pin, limit or rule too many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from trivet.compiler.rig import Rig

from .plan import RuleResult
from .problem import Problem
from .search import Found, Lowered, find
from .solve import solve

__all__ = ["smallest_conflict"]

_T = TypeVar("_T")
# Rules of a rig by the name that a judged plan shows, without those that hold by themselves.
_KEYS = {
    "communication share": "communication_share_max",
    "memory": "memory_max",
    "link load": "link_load_max",
    "balance": "balance_min",
}


def smallest_conflict(rig: Rig, start: Problem, found: Found, lowered: Lowered) -> list[str]:
    """Sentences that name pins, memory limits and rules, each of which is needed for the conflict.

    Parameters
    ----------
    rig, start
        The rig and the problem as the search began with it.
    found
        What the search ended with; ``broken`` are the figures of the best plan without the rules.
    lowered
        Programs that the search has made.
    """
    pins = list(start.pins.items())
    limited = [m.name for m in start.machines if m.memory_limit is not None]
    rules = list(rig.rules)

    def feasible(pins: list[tuple[int, str]], limited: list[str], rules: list[str]) -> bool:
        machines = tuple(
            m if m.name in limited else replace(m, memory_limit=None) for m in start.machines
        )
        free = replace(start, pins=dict(pins), machines=machines, place="auto")
        if not solve(free).runs:
            return False
        under = replace(rig, rules={k: v for k, v in rig.rules.items() if k in rules})
        return bool(find(under, free, lowered.under(under)).solution.runs)

    rules = _needed(rules, lambda rest: not feasible(pins, limited, rest))
    limited = _needed(limited, lambda rest: not feasible(pins, rest, rules))
    pins = _needed(pins, lambda rest: not feasible(rest, limited, rules))
    conflict = [_rule(key, rig.rules[key], found) for key in rules]
    conflict += [f"{start.units[u]} is pinned to {device}" for u, device in pins]
    conflict += [
        f"{name} has memory for {start.machine(name).memory_limit} bytes of weights"
        for name in limited
    ]
    boards = {m.name for m in start.machines if m.kind == "fpga"}
    if any(device in boards for _, device in pins):
        conflict.append("an FPGA runs one contiguous interval of layers that it can hold")
    if not found.certain:
        conflict.append("not every plan was tried")
    return conflict


def _needed(things: list[_T], conflicts: Callable[[list[_T]], bool]) -> list[_T]:
    """Those without which there would be no conflict, the others left out one by one."""
    kept = list(things)
    for thing in things:
        rest = [t for t in kept if t != thing]
        if conflicts(rest):
            kept = rest
    return kept


def _rule(key: str, limit: float, found: Found) -> str:
    """A rule with its limit and the figure of the best plan that breaks it."""
    name = next((n for n, k in _KEYS.items() if k == key), key)
    side = "at least" if key == "balance_min" else "at most"
    broken: RuleResult | None = next((r for r in found.broken if r.name == name), None)
    best = "" if broken is None else f", {broken.value:.4g} at {broken.where} in the best plan"
    return f"rule {name!r} is {side} {limit:g}{best}"
