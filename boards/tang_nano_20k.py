"""Sipeed Tang Nano 20K with a Gowin GW2AR-18; experimental."""

from __future__ import annotations

from .board import Board, HostLink, Resources, Toolchain, Wiring
from .parts import ENGINE_2X4

__all__ = ["TANG_NANO_20K"]

TANG_NANO_20K = Board(
    name="tang-nano-20k",
    title="Sipeed Tang Nano 20K, Gowin GW2AR-18 (experimental)",
    vendor="Gowin",
    device="GW2AR-LV18",
    package="QN88",
    speed_grade="C8/I7",
    oscillator_hz=27_000_000,
    resources=Resources(
        luts=20_736,
        ffs=15_552,
        dsps=48,
        brams=46,
        bram_bits=18_432,
        source="Gowin DS226: 20,736 LUT4, 15,552 flip-flops, 46 BSRAM, 48 multipliers 18 x 18",
    ),
    link=HostLink(
        kind="uart",
        bandwidth_bytes_per_second=200_000.0,
        latency_seconds=0.00044,
        source="given",
        detail="UART of the BL616 assumed at 2 Mbaud 8N1; latency assumed as for the ULX3S",
    ),
    source="litex-boards, sipeed_tang_nano_20k.py (GW2AR-LV18QN88C8/I7, clk27)",
    status={
        "simulated": "the engine's top level; a smaller engine's netlist from the UART's pins on",
        "routed": "packed; 180.5 MHz by nextpnr, seed 1, is not to be relied upon (docs/builds)",
        "hardware": "no: never run on a board",
    },
    notes=(
        "experimental: 13 multipliers route and pack in 8 minutes, 96 did not in 15",
        "nextpnr's clock figures for Gowin are not to be relied upon",
    ),
    engine=ENGINE_2X4,
    clock_hz=27_000_000 * 3 // 2,
    clock_status="routed, by clock figures that are not to be relied upon",
    toolchain=Toolchain(
        family="gowin",
        arguments=("--device", "GW2AR-LV18QN88C8/I7", "--vopt", "family=GW2A-18C"),
        pack=("-d", "GW2A-18C"),
    ),
    wiring=Wiring(
        platform="trivet.hdl.board.tang_nano_20k:TangNano20kPlatform",
        baud=2_000_000,
        leds=(("led", 0), ("led", 1), ("led", 2)),
    ),
)
