"""Radiona ULX3S with an ECP5 45F."""

from __future__ import annotations

from dataclasses import replace

from .board import Resources, Toolchain, Wiring
from .ulx3s_85f import ULX3S_85F

__all__ = ["ULX3S_45F"]

ULX3S_45F = replace(
    ULX3S_85F,
    name="ulx3s-45f",
    title="Radiona ULX3S, ECP5 45F",
    device="LFE5U-45F",
    resources=Resources(
        luts=43_848,
        ffs=43_848,
        dsps=72,
        brams=108,
        bram_bits=18_432,
        source="Lattice FPGA-DS-02012, selection guide: 44k LUTs, 72 multipliers, 108 EBR",
    ),
    status={
        "simulated": "the engine's top level, above the byte stream of the UART",
        "routed": "no: no bitstream of this release",
        "hardware": "no: never run on a board",
    },
    engine={
        "lanes": 8,
        "simd": 8,
        "requantisers": 1,
        "act_banks": 3,
        "act_bank_words": 2048,
        "weight_words": 2048,
        "param_words": 512,
        "tables": 8,
        "addends": 4,
        "instructions": 64,
        "isa": 1,
    },
    clock_hz=75_000_000,
    clock_status="planned: an engine of one multiplier was routed at 109 MHz on this family",
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
