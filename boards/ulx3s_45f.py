"""Radiona ULX3S with an ECP5 45F."""

from __future__ import annotations

from dataclasses import replace

from .board import Toolchain, Wiring
from .parts import ECP5_45F, ENGINE_16X8
from .ulx3s_85f import ULX3S_85F

__all__ = ["ULX3S_45F"]

ULX3S_45F = replace(
    ULX3S_85F,
    name="ulx3s-45f",
    title="Radiona ULX3S, ECP5 45F",
    device="LFE5U-45F",
    resources=ECP5_45F,
    status={
        "simulated": "the engine's top level, above the byte stream of the UART",
        "routed": "62.8 MHz by nextpnr, worst corner, seed 1: misses its clock (docs/builds)",
        "hardware": "no: never run on a board",
    },
    engine={
        **ENGINE_16X8,
        "lanes": 8,
        "simd": 8,
        "requantisers": 1,
        "weight_words": 2048,
    },
    clock_hz=75_000_000,
    clock_status="planned: 62.8 MHz is the best that was routed so far",
    toolchain=Toolchain(
        family="ecp5",
        arguments=("--45k", "--package", "CABGA381", "--speed", "6"),
        pack=("--compress",),
    ),
    wiring=Wiring(
        platform="amaranth_boards.ulx3s:ULX3S_45F_Platform",
        baud=3_000_000,
        leds=(("led", 0), ("led", 1), ("led", 2)),
    ),
)
