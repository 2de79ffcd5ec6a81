"""Colorlight i5: an LED receiver card with an ECP5 25F."""

from __future__ import annotations

from .board import Board, HostLink, Toolchain, Wiring
from .parts import ECP5_25F, ENGINE_4X4

__all__ = ["COLORLIGHT_I5"]

COLORLIGHT_I5 = Board(
    name="colorlight-i5",
    title="Colorlight i5, ECP5 25F",
    vendor="Lattice ECP5",
    device="LFE5U-25F",
    package="BG381",
    speed_grade="6",
    oscillator_hz=25_000_000,
    resources=ECP5_25F,
    link=HostLink(
        kind="uart",
        bandwidth_bytes_per_second=11_520.0,
        latency_seconds=0.00044,
        source="given",
        detail="UART of the extension board assumed at 115,200 baud 8N1; latency as for the ULX3S",
    ),
    source="litex-boards, colorlight_i5.py (LFE5U-25F-6BG381C, clk25)",
    status={
        "simulated": "the engine's top level, above the byte stream of the UART",
        "routed": "97.3 MHz by nextpnr, worst corner, seed 1 (docs/builds)",
        "hardware": "no: never run on a board",
    },
    engine=ENGINE_4X4,
    clock_hz=75_000_000,
    clock_status="routed: 97.3 MHz reached in the worst corner",
    toolchain=Toolchain(
        family="ecp5",
        arguments=("--25k", "--package", "CABGA381", "--speed", "6"),
        pack=("--compress",),
    ),
    wiring=Wiring(
        platform="trivet.hdl.board.colorlight_i5:ColorlightI5Platform",
        baud=115_200,
        leds=(("led", 0),),
    ),
)
