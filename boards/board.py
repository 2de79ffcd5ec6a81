"""What a board offers, as plain figures with their sources."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Board", "HostLink", "Resources", "Toolchain", "Wiring"]


@dataclass(frozen=True)
class Resources:
    """What the FPGA has: ``dsps`` hard multipliers, ``brams`` blocks of ``bram_bits`` each."""

    luts: int
    ffs: int
    dsps: int
    brams: int
    bram_bits: int
    source: str

    @property
    def budget(self) -> dict[str, int]:
        """The counts by the names that predictions and reports give them."""
        return {"lut": self.luts, "ff": self.ffs, "dsp": self.dsps, "bram": self.brams}


@dataclass(frozen=True)
class HostLink:
    """The way from the host to the board, in board time.

    ``bandwidth_bytes_per_second`` is payload each way; ``latency_seconds`` is one transfer's fixed
    share. ``source`` is a word of Cost's provenance, ``detail`` says where the figures are from.
    """

    kind: str
    bandwidth_bytes_per_second: float
    latency_seconds: float
    source: str
    detail: str


@dataclass(frozen=True)
class Toolchain:
    """How a bitstream is made: the family, nextpnr's device arguments, the packer's arguments."""

    family: Literal["ecp5", "ice40", "gowin", "xilinx"]
    arguments: tuple[str, ...] = ()
    pack: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wiring:
    """The board's pins, as resources of an Amaranth platform.

    ``platform`` is ``module:class``. ``leds`` show, in this order: alive, active, error; a board
    with fewer shows the first of these; ``name.part`` is a part of a resource. ``receive_depth`` is
    the FIFO behind the receiver in bytes. ``clocking``: whose clock manager it is, where one tool
    chain serves several kinds; see :class:`trivet.hdl.board.clocks.ClockSource`.
    """

    platform: str
    baud: int
    leds: tuple[tuple[str, int], ...]
    uart: int = 0
    receive_depth: int = 2048
    clocking: Literal["", "xilinxup"] = ""


@dataclass(frozen=True)
class Board:
    """A physical FPGA board.

    ``engine`` holds the fields of ``hdl.config.EngineConfig`` as a plain dict, or is None when no
    engine configuration has been made for the board: it cannot take a stage then.
    ``clock_hz`` is the engine's clock and ``clock_status`` says whether it is planned or measured.
    ``status`` has the keys "simulated", "routed" and "hardware"; each text says what was done.
    """

    name: str
    title: str
    vendor: str
    device: str
    package: str
    speed_grade: str
    oscillator_hz: int
    resources: Resources
    link: HostLink
    source: str
    status: dict[str, str]
    engine: dict[str, int] | None = None
    clock_hz: int | None = None
    clock_status: str = "no engine yet"
    power_busy_w: float | None = None
    notes: tuple[str, ...] = field(default=())
    toolchain: Toolchain | None = None
    wiring: Wiring | None = None
