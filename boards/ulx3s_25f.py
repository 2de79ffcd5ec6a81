"""Radiona ULX3S with an ECP5 25F."""

from __future__ import annotations

from dataclasses import replace

from .board import Toolchain, Wiring
from .parts import ECP5_25F, ENGINE_4X4
from .ulx3s_85f import ULX3S_85F

__all__ = ["ULX3S_25F"]

ULX3S_25F = replace(
    ULX3S_85F,
    name="ulx3s-25f",
    title="Radiona ULX3S, ECP5 25F",
    device="LFE5U-25F",
    resources=ECP5_25F,
    status={
        "simulated": "the top level through the UART's pins, with another engine of 4 x 4",
        "routed": "108.3 MHz by nextpnr, worst corner, seed 1 (docs/builds)",
        "hardware": "no: never run on a board",
    },
    engine=ENGINE_4X4,
    clock_hz=75_000_000,
    clock_status="routed: 108.3 MHz reached in the worst corner",
    toolchain=Toolchain(
        family="ecp5",
        arguments=("--25k", "--package", "CABGA381", "--speed", "6"),
        pack=("--compress",),
    ),
    wiring=Wiring(
        platform="amaranth_boards.ulx3s:ULX3S_25F_Platform",
        baud=3_000_000,
        leds=(("led", 0), ("led", 1), ("led", 2)),
    ),
)
