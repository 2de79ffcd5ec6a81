"""OrangeCrab r0.2 with an ECP5 85F, as a platform of Amaranth with a serial line.

amaranth-boards knows the pins; the line is on the header's pins 0 (from the host) and 1 (to the
host), for a serial adapter of 3.3 V: the board's own USB is a bare pair of wires at the FPGA.
"""

from amaranth.build import Attrs, Pins, Resource, Subsignal
from amaranth_boards.orangecrab_r0_2 import OrangeCrabR0_2_85FPlatform

__all__ = ["OrangeCrab85FPlatform"]


class OrangeCrab85FPlatform(OrangeCrabR0_2_85FPlatform):
    resources = [  # noqa: RUF012
        *OrangeCrabR0_2_85FPlatform.resources,
        Resource(
            "uart", 0,
            Subsignal("rx", Pins("0", dir="i", conn=("io", 0))),
            Subsignal("tx", Pins("1", dir="o", conn=("io", 0))),
            Attrs(IO_TYPE="LVCMOS33"),
        ),
    ]
