"""Small netlists as yosys writes them in JSON, for tests of the passes over them."""

from __future__ import annotations

from typing import Any

CLOCK = 2


def flip_flop(d: int, q: int, **changes: Any) -> dict[str, Any]:
    parameters = {
        "CEMUX": "1 ", "CLKMUX": "CLK", "GSR": "DISABLED", "LSRMUX": "LSR", "REGSET": "RESET",
    }  # fmt: skip
    connections = {"CLK": [CLOCK], "DI": [d], "Q": [q], "LSR": ["0"]}
    for name, value in changes.items():
        (parameters if name in parameters else connections)[name] = value
    return cell("TRELLIS_FF", connections, outputs={"Q"}, parameters=parameters)


def cell(
    kind: str,
    connections: dict[str, list[Any]],
    outputs: set[str],
    parameters: dict[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "type": kind,
        "parameters": dict(parameters or {}),
        "attributes": {},
        "port_directions": {p: "output" if p in outputs else "input" for p in connections},
        "connections": connections,
    }


def ram(bits: list[int], **changes: Any) -> dict[str, Any]:
    """Port B reads ``bits``; port A is written only."""
    outputs = {f"DOB{k}": [bit] for k, bit in enumerate(bits)}
    connections = {
        "CLKA": [CLOCK], "CLKB": [CLOCK], "CEB": ["1"], "RSTB": ["0"], "OCEB": ["1"], **outputs,
    }  # fmt: skip
    parameters = {"REGMODE_A": "NOREG", "REGMODE_B": "NOREG", "CLKBMUX": "CLKB"}
    for name, value in changes.items():
        (parameters if name in parameters else connections)[name] = value
    return cell("DP16KD", connections, set(outputs), parameters)


def multiplier(a: list[Any], b: list[Any], p: list[int], **changes: Any) -> dict[str, Any]:
    connections: dict[str, list[Any]] = {"SIGNEDA": ["1"], "SIGNEDB": ["1"]}
    connections |= {f"A{k}": [bit] for k, bit in enumerate(a)}
    connections |= {f"B{k}": [bit] for k, bit in enumerate(b)}
    outputs = {f"P{k}": [bit] for k, bit in enumerate(p)}
    return cell("MULT18X18D", {**connections, **outputs, **changes}, set(outputs))


def netlist(cells: dict[str, dict[str, Any]], out: list[int]) -> dict[str, Any]:
    ports = {
        "clk": {"direction": "input", "bits": [CLOCK]},
        "o": {"direction": "output", "bits": out},
    }
    return {"modules": {"top": {"ports": ports, "cells": cells, "netnames": {}}}}


def cells_of(design: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = design["modules"]["top"]["cells"]
    return found
