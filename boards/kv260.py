"""AMD Kria KV260 with a Zynq UltraScale+ K26: exported for Vivado."""

from __future__ import annotations

from .board import Board, HostLink, Resources, Toolchain, Wiring
from .parts import ENGINE_16X8

__all__ = ["KV260"]

KV260 = Board(
    name="kv260",
    title="AMD Kria KV260, Zynq UltraScale+ K26 (export)",
    vendor="AMD UltraScale+",
    device="xck26",
    package="sfvc784",
    speed_grade="2LV-c",
    oscillator_hz=100_000_000,
    resources=Resources(
        luts=117_120,
        ffs=234_240,
        dsps=1_248,
        brams=288,
        bram_bits=18_432,
        source="AMD DS987 (K26): 117,120 LUTs, 234,240 flip-flops, 1,248 DSP slices, 144 block "
        "RAMs of 36 kbit (288 of 18 kbit)",
    ),
    link=HostLink(
        kind="uart",
        bandwidth_bytes_per_second=300_000.0,
        latency_seconds=0.00044,
        source="given",
        detail="serial adapter on the PMOD connector assumed at 3 Mbaud 8N1; latency assumed",
    ),
    source="litex-boards, xilinx_kv260.py (part, PMOD pins); pl_clk0 of the processor assumed at "
    "100 MHz",
    status={
        "simulated": "the engine's top level, above the byte stream of the UART",
        "routed": "no: exported only; place and route need Vivado, which was not run",
        "hardware": "no: never run on a board",
    },
    notes=("the clock is the processor's pl_clk0: its boot firmware must have set it to 100 MHz",),
    engine=ENGINE_16X8,
    clock_hz=150_000_000,
    clock_status="planned: nothing was placed or routed",
    toolchain=Toolchain(
        family="xilinx",
        arguments=("-family", "xcup"),
        pack=("xck26-sfvc784-2LV-c",),
    ),
    wiring=Wiring(
        platform="trivet.hdl.board.kv260:Kv260Platform",
        baud=3_000_000,
        leds=(("led", 0),),
        clocking="xilinxup",
    ),
)
