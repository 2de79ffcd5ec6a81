"""Sipeed Tang Nano 20K, as a platform of Amaranth.

Pins: litex-boards, platforms/sipeed_tang_nano_20k.py. The line goes to the board's BL616, which is
a serial port on USB. amaranth-boards 0.0.21 has the Tang Nano 9K only.
"""

from amaranth.build import Attrs, Clock, Pins, PinsN, Resource, Subsignal
from amaranth.vendor import GowinPlatform

__all__ = ["TangNano20kPlatform"]


class TangNano20kPlatform(GowinPlatform):
    part = "GW2AR-LV18QN88C8/I7"
    family = "GW2A-18C"
    default_clk = "clk27"
    resources = [  # noqa: RUF012
        Resource("clk27", 0, Pins("4", dir="i"), Clock(27e6), Attrs(IO_TYPE="LVCMOS33")),
        *(Resource("led", k, PinsN(pin, dir="o"), Attrs(IO_TYPE="LVCMOS33"))
          for k, pin in enumerate(("15", "16", "17", "18", "19", "20"))),
        Resource(
            "uart", 0,
            Subsignal("tx", Pins("69", dir="o")),
            Subsignal("rx", Pins("70", dir="i")),
            Attrs(IO_TYPE="LVCMOS33"),
        ),
    ]
    connectors = []  # noqa: RUF012

    def parse_part(self):
        # Amaranth 0.5 knows GW2A, not GW2AR: the same die with a memory beside it.
        part, self.part = self.part, self.part.replace("GW2AR", "GW2A")
        super().parse_part()
        self.part = part
