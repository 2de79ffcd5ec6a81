"""1BitSquared iCEBreaker with an iCE40 UP5K."""

from __future__ import annotations

from .board import Board, HostLink, Resources, Toolchain, Wiring

__all__ = ["ICEBREAKER"]

ICEBREAKER = Board(
    name="icebreaker",
    title="1BitSquared iCEBreaker, iCE40 UP5K",
    vendor="Lattice iCE40",
    device="iCE40UP5K",
    package="SG48",
    speed_grade="-",
    oscillator_hz=12_000_000,
    resources=Resources(
        luts=5_280,
        ffs=5_280,
        dsps=8,
        brams=30,
        bram_bits=4_096,
        source="Lattice FPGA-DS-02008: 5,280 LUTs, 8 multipliers, 30 EBR, 4 SPRAM of 256 kbit",
    ),
    link=HostLink(
        kind="uart",
        bandwidth_bytes_per_second=300_000.0,
        latency_seconds=0.00044,
        source="given",
        detail="FT2232H UART assumed at 3 Mbaud 8N1; latency assumed as for the ULX3S",
    ),
    source="amaranth-boards 0.0.21, icebreaker.py (device, package, clk12)",
    status={
        "simulated": "the whole netlist but PLL and pads, from the UART's pins on",
        "routed": "28.4 MHz by nextpnr, worst corner, seed 1 (docs/builds)",
        "hardware": "no: never run on a board",
    },
    notes=("a serial requantiser, weights in SPRAM; no unary tables, one residual add",),
    engine={
        "lanes": 1,
        "simd": 4,
        "requantisers": 1,
        "act_banks": 2,
        "act_bank_words": 512,
        "weight_words": 8192,
        "param_words": 256,
        "tables": 0,
        "addends": 1,
        "instructions": 16,
        "isa": 1,
        "serial": 1,
        "weight_spram": 1,
        "expander": 0,
        "counters": 0,
        "compact": 1,
    },
    clock_hz=24_000_000,
    clock_status="routed: 28.4 MHz reached in the worst corner",
    toolchain=Toolchain(
        family="ice40",
        arguments=("--up5k", "--package", "sg48"),
        pack=(),
    ),
    wiring=Wiring(
        platform="amaranth_boards.icebreaker:ICEBreakerPlatform",
        baud=3_000_000,
        leds=(("led_r", 0), ("led_g", 0)),
        receive_depth=512,
    ),
)
