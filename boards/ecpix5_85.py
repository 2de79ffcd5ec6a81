"""LambdaConcept ECPIX-5 with an ECP5 85F (5G)."""

from __future__ import annotations

from .board import Board, HostLink, Toolchain, Wiring
from .parts import ECP5_85F, ENGINE_16X8

__all__ = ["ECPIX5_85"]

ECPIX5_85 = Board(
    name="ecpix5-85",
    title="LambdaConcept ECPIX-5, ECP5-5G 85F",
    vendor="Lattice ECP5-5G",
    device="LFE5UM5G-85F",
    package="BG554",
    speed_grade="8",
    oscillator_hz=100_000_000,
    resources=ECP5_85F,
    link=HostLink(
        kind="uart",
        bandwidth_bytes_per_second=300_000.0,
        latency_seconds=0.00044,
        source="given",
        detail="FT2232H UART assumed at 3 Mbaud 8N1; latency assumed as for the ULX3S",
    ),
    source="amaranth-boards 0.0.21, ecpix5.py (device, package, speed grade, clk100)",
    status={
        "simulated": "the engine's top level, above the byte stream of the UART",
        "routed": "165.3 MHz by nextpnr, worst corner, seed 2 (docs/builds)",
        "hardware": "no: never run on a board",
    },
    notes=("seed 1 finds no route in 20 minutes, seed 2 does in 9: --seeds 2 --time-limit 11",),
    engine=ENGINE_16X8,
    clock_hz=125_000_000,
    clock_status="routed: 165.3 MHz reached in the worst corner",
    toolchain=Toolchain(
        family="ecp5",
        arguments=("--um5g-85k", "--package", "CABGA554", "--speed", "8"),
        pack=("--compress",),
    ),
    wiring=Wiring(
        platform="amaranth_boards.ecpix5:ECPIX585Platform",
        baud=3_000_000,
        leds=(("rgb_led.g", 0), ("rgb_led.b", 1), ("rgb_led.r", 2)),
    ),
)
