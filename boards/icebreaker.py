"""1BitSquared iCEBreaker with an iCE40 UP5K."""

from __future__ import annotations

from .board import Board, HostLink, Resources, Toolchain

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
        "simulated": "no: no engine configuration yet",
        "routed": "no: no bitstream of this release",
        "hardware": "no: never run on a board",
    },
    notes=("the default engine needs 128 multipliers, this part has 8",),
    toolchain=Toolchain(
        family="ice40",
        arguments=("--up5k", "--package", "sg48"),
        pack=(),
    ),
)
