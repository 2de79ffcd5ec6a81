"""Digilent Arty A7-100T with an AMD Artix-7: exported for Vivado."""

from __future__ import annotations

from .board import Board, HostLink, Resources, Toolchain, Wiring
from .parts import ENGINE_16X8

__all__ = ["ARTY_A7_100T"]

ARTY_A7_100T = Board(
    name="arty-a7-100t",
    title="Digilent Arty A7-100T, Artix-7 100T (export)",
    vendor="AMD 7 series",
    device="xc7a100t",
    package="csg324",
    speed_grade="1",
    oscillator_hz=100_000_000,
    resources=Resources(
        luts=63_400,
        ffs=126_800,
        dsps=240,
        brams=270,
        bram_bits=18_432,
        source="AMD DS180: 63,400 LUTs, 126,800 flip-flops, 240 DSP slices, 270 block RAMs of "
        "18 kbit",
    ),
    link=HostLink(
        kind="uart",
        bandwidth_bytes_per_second=300_000.0,
        latency_seconds=0.00044,
        source="given",
        detail="UART of the FT2232HQ assumed at 3 Mbaud 8N1; latency assumed as for the ULX3S",
    ),
    source="amaranth-boards 0.0.21, arty_a7.py (package, clk100, uart, led)",
    status={
        "simulated": "the engine's top level, above the byte stream of the UART",
        "routed": "no: exported only; place and route need Vivado, which was not run",
        "hardware": "no: never run on a board",
    },
    engine=ENGINE_16X8,
    clock_hz=100_000_000,
    clock_status="planned: nothing was placed or routed",
    toolchain=Toolchain(
        family="xilinx",
        arguments=("-family", "xc7"),
        pack=("xc7a100tcsg324-1",),
    ),
    wiring=Wiring(
        platform="trivet.hdl.board.arty_a7:ArtyA7Platform",
        baud=3_000_000,
        leds=(("led", 0), ("led", 1), ("led", 2)),
    ),
)
