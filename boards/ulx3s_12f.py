"""Radiona ULX3S with an ECP5 12F."""

from __future__ import annotations

from dataclasses import replace

from .board import Toolchain, Wiring
from .parts import ECP5_12F, ENGINE_4X4
from .ulx3s_85f import ULX3S_85F

__all__ = ["ULX3S_12F"]

ULX3S_12F = replace(
    ULX3S_85F,
    name="ulx3s-12f",
    title="Radiona ULX3S, ECP5 12F",
    device="LFE5U-12F",
    resources=ECP5_12F,
    status={
        "simulated": "the engine's top level, above the byte stream of the UART",
        "routed": "104.5 MHz by nextpnr, worst corner, seed 1 (docs/builds)",
        "hardware": "no: never run on a board",
    },
    engine={**ENGINE_4X4, "weight_words": 1024, "instructions": 32},
    clock_hz=75_000_000,
    clock_status="routed: 104.5 MHz reached in the worst corner",
    notes=("the tools place on the whole 25F die; the budget is what Lattice sells as 12F",),
    toolchain=Toolchain(
        family="ecp5",
        arguments=("--12k", "--package", "CABGA381", "--speed", "6"),
        pack=("--compress",),
    ),
    wiring=Wiring(
        platform="amaranth_boards.ulx3s:ULX3S_12F_Platform",
        baud=3_000_000,
        leds=(("led", 0), ("led", 1), ("led", 2)),
    ),
)
