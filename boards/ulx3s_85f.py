"""Radiona ULX3S with an ECP5 85F: the board that everything is planned for first."""

from __future__ import annotations

from .board import Board, HostLink, Toolchain, Wiring
from .parts import ECP5_85F, ENGINE_16X8

__all__ = ["ULX3S_85F"]

ULX3S_85F = Board(
    name="ulx3s-85f",
    title="Radiona ULX3S, ECP5 85F",
    vendor="Lattice ECP5",
    device="LFE5U-85F",
    package="BG381",
    speed_grade="6",
    oscillator_hz=25_000_000,
    resources=ECP5_85F,
    link=HostLink(
        kind="uart",
        bandwidth_bytes_per_second=300_000.0,
        latency_seconds=0.00044,
        source="given",
        detail="FT231X at 3 Mbaud 8N1; 0.44 ms measured on a pty, not on the board",
    ),
    source="amaranth-boards 0.0.21, ulx3s.py (device, package, speed grade, clk25)",
    status={
        "simulated": "the engine's top level, above the byte stream of the UART",
        "routed": "102.2 MHz by nextpnr, worst corner, seed 1 (docs/builds)",
        "hardware": "no: never run on a board",
    },
    engine=ENGINE_16X8,
    clock_hz=100_000_000,
    clock_status="routed: 102.2 MHz reached in the worst corner",
    toolchain=Toolchain(
        family="ecp5",
        arguments=("--85k", "--package", "CABGA381", "--speed", "6"),
        pack=("--compress",),
    ),
    wiring=Wiring(
        platform="amaranth_boards.ulx3s:ULX3S_85F_Platform",
        baud=3_000_000,
        leds=(("led", 0), ("led", 1), ("led", 2)),
    ),
)
