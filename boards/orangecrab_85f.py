"""OrangeCrab r0.2 with an ECP5 85F."""

from __future__ import annotations

from .board import Board, HostLink, Resources, Toolchain, Wiring

__all__ = ["ORANGECRAB_85F"]

ORANGECRAB_85F = Board(
    name="orangecrab-85f",
    title="OrangeCrab r0.2, ECP5 85F",
    vendor="Lattice ECP5",
    device="LFE5U-85F",
    package="MG285",
    speed_grade="8",
    oscillator_hz=48_000_000,
    resources=Resources(
        luts=83_640,
        ffs=83_640,
        dsps=156,
        brams=208,
        bram_bits=18_432,
        source="Lattice FPGA-DS-02012, selection guide: 84k LUTs, 156 multipliers, 208 EBR",
    ),
    link=HostLink(
        kind="uart",
        bandwidth_bytes_per_second=300_000.0,
        latency_seconds=0.00044,
        source="given",
        detail="serial adapter at the header, assumed at 3 Mbaud 8N1; latency as for the ULX3S",
    ),
    source="amaranth-boards 0.0.21, orangecrab_r0_2.py (device, package, speed grade, clk)",
    status={
        "simulated": "the engine's top level, above the byte stream of the UART",
        "routed": "no: no bitstream of this release",
        "hardware": "no: never run on a board",
    },
    engine={
        "lanes": 16,
        "simd": 8,
        "requantisers": 4,
        "act_banks": 3,
        "act_bank_words": 2048,
        "weight_words": 2112,
        "param_words": 512,
        "tables": 8,
        "addends": 4,
        "instructions": 64,
        "isa": 1,
    },
    clock_hz=96_000_000,
    clock_status="planned: 164 MHz were routed for an engine of this size on speed grade 8",
    toolchain=Toolchain(
        family="ecp5",
        arguments=("--85k", "--package", "CSFBGA285", "--speed", "8"),
        pack=("--compress",),
    ),
    wiring=Wiring(
        platform="trivet.hdl.board.orangecrab:OrangeCrab85FPlatform",
        baud=3_000_000,
        leds=(("rgb_led.g", 0), ("rgb_led.b", 0), ("rgb_led.r", 0)),
    ),
)
