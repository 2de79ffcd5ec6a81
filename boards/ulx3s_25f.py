"""Radiona ULX3S with an ECP5 25F."""

from __future__ import annotations

from dataclasses import replace

from .board import Resources, Toolchain, Wiring
from .ulx3s_85f import ULX3S_85F

__all__ = ["ULX3S_25F"]

ULX3S_25F = replace(
    ULX3S_85F,
    name="ulx3s-25f",
    title="Radiona ULX3S, ECP5 25F",
    device="LFE5U-25F",
    resources=Resources(
        luts=24_288,
        ffs=24_288,
        dsps=28,
        brams=56,
        bram_bits=18_432,
        source="Lattice FPGA-DS-02012, selection guide: 24k LUTs, 28 multipliers, 56 EBR",
    ),
    status={
        "simulated": "the top level through the UART's pins, with another engine of 4 x 4",
        "routed": "100.2 MHz by nextpnr, worst corner, seed 1 (docs/builds)",
        "hardware": "no: never run on a board",
    },
    engine={
        "lanes": 4,
        "simd": 4,
        "requantisers": 1,
        "act_banks": 3,
        "act_bank_words": 2048,
        "weight_words": 3072,
        "param_words": 512,
        "tables": 8,
        "addends": 2,
        "instructions": 64,
        "isa": 1,
    },
    clock_hz=75_000_000,
    clock_status="routed: 100.2 MHz reached in the worst corner",
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
