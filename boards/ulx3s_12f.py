"""Radiona ULX3S with an ECP5 12F."""

from __future__ import annotations

from dataclasses import replace

from .board import Resources, Toolchain, Wiring
from .ulx3s_85f import ULX3S_85F

__all__ = ["ULX3S_12F"]

ULX3S_12F = replace(
    ULX3S_85F,
    name="ulx3s-12f",
    title="Radiona ULX3S, ECP5 12F",
    device="LFE5U-12F",
    resources=Resources(
        luts=12_144,
        ffs=12_144,
        dsps=28,
        brams=32,
        bram_bits=18_432,
        source="Lattice FPGA-DS-02012, selection guide: 12k LUTs, 28 multipliers, 32 EBR",
    ),
    status={
        "simulated": "the engine's top level, above the byte stream of the UART",
        "routed": "no: no bitstream of this release",
        "hardware": "no: never run on a board",
    },
    engine={
        "lanes": 4,
        "simd": 4,
        "requantisers": 1,
        "act_banks": 3,
        "act_bank_words": 2048,
        "weight_words": 1024,
        "param_words": 512,
        "tables": 8,
        "addends": 2,
        "instructions": 32,
        "isa": 1,
    },
    clock_hz=75_000_000,
    clock_status="planned: an engine of one multiplier was routed at 109 MHz on this family",
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
