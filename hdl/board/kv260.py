"""AMD Kria KV260, as a platform of Amaranth.

The programmable side has no oscillator of its own: its clock is ``pl_clk0`` of the processor, which
Kria's boot firmware sets. The line is on the PMOD connector, pins 1 (from the host) and 2 (to the
host), the light on pin 3. Pins: litex-boards, platforms/xilinx_kv260.py.
"""

from amaranth import *
from amaranth.build import Attrs, Pins, Resource, Subsignal
from amaranth.vendor import XilinxPlatform

from .rtlil import WithRtlil

__all__ = ["Kv260Platform"]


class Kv260Platform(WithRtlil, XilinxPlatform):
    device = "xck26"
    package = "sfvc784"
    speed = "2LV-c"
    resources = [  # noqa: RUF012
        Resource(
            "uart", 0,
            Subsignal("rx", Pins("H12", dir="i")),
            Subsignal("tx", Pins("E10", dir="o")),
            Attrs(IOSTANDARD="LVCMOS33"),
        ),
        Resource("led", 0, Pins("D10", dir="o"), Attrs(IOSTANDARD="LVCMOS33")),
    ]
    connectors = []  # noqa: RUF012

    def oscillator(self, m, clock_hz):
        """The processor's clock for the programmable side, buffered."""
        clocks = Signal(4)
        pl_clk0 = Signal()
        m.submodules.processor = Instance("PS8", o_PLCLK=clocks)
        m.submodules.processor_clock = Instance("BUFG_PS", i_I=clocks[0], o_O=pl_clk0)
        self.add_clock_constraint(pl_clk0, clock_hz)
        return pl_clk0
