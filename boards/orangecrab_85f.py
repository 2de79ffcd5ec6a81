"""OrangeCrab r0.2 with an ECP5 85F."""

from __future__ import annotations

from .board import Board, HostLink, Toolchain, Wiring
from .parts import ECP5_85F, ENGINE_16X8

__all__ = ["ORANGECRAB_85F"]

ORANGECRAB_85F = Board(
    name="orangecrab-85f",
    title="OrangeCrab r0.2, ECP5 85F",
    vendor="Lattice ECP5",
    device="LFE5U-85F",
    package="MG285",
    speed_grade="8",
    oscillator_hz=48_000_000,
    resources=ECP5_85F,
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
    engine=ENGINE_16X8,
    clock_hz=96_000_000,
    clock_status="planned: not routed yet",
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
