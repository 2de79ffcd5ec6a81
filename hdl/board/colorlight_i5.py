"""Colorlight i5 (7.0) on its extension board, as a platform of Amaranth.

Pins: litex-boards, platforms/colorlight_i5.py (revision 7.0). The line goes to the extension
board's CMSIS-DAP, which is a serial port on USB.
"""

from amaranth.build import Attrs, Clock, Pins, PinsN, Resource, Subsignal
from amaranth.vendor import LatticeECP5Platform

__all__ = ["ColorlightI5Platform"]


class ColorlightI5Platform(LatticeECP5Platform):
    device = "LFE5U-25F"
    package = "BG381"
    speed = "6"
    default_clk = "clk25"
    resources = [  # noqa: RUF012
        Resource("clk25", 0, Pins("P3", dir="i"), Clock(25e6), Attrs(IO_TYPE="LVCMOS33")),
        Resource("led", 0, PinsN("U16", dir="o"), Attrs(IO_TYPE="LVCMOS33")),
        Resource(
            "uart", 0,
            Subsignal("tx", Pins("J17", dir="o")),
            Subsignal("rx", Pins("H18", dir="i")),
            Attrs(IO_TYPE="LVCMOS33"),
        ),
    ]
    connectors = []  # noqa: RUF012
