"""Clock managers of AMD parts: PLLE2 of the 7 series, MMCME4 of UltraScale+.

For export only: no tool here reads them, and Vivado was not run.
"""

from dataclasses import dataclass

from amaranth import *

__all__ = ["XilinxPll", "xilinx_pll", "xilinx_pll_instance"]

# The slowest speed grades: AMD DS181 (Artix-7, PLL) and DS925 (Zynq UltraScale+, MMCM).
LIMITS = {
    "xilinx": {"phase": (19e6, 450e6), "vco": (800e6, 1_600e6), "feedback": 64, "input": 56},
    "xilinxup": {"phase": (10e6, 450e6), "vco": (800e6, 1_600e6), "feedback": 128, "input": 106},
}
OUTPUT_DIVIDER = 128


@dataclass(frozen=True)
class XilinxPll:
    """VCO = input / ``input_divider`` * ``feedback``; output = VCO / ``output``."""

    input_divider: int
    feedback: int
    output: int


def xilinx_pll(family, input_hz, output_hz):
    """The dividers that give ``output_hz`` exactly: the fastest phase detector, the lowest VCO.

    ``family`` is "xilinx" for the 7 series, "xilinxup" for UltraScale+. ValueError when there are
    none.
    """
    limit = LIMITS[family]
    for input_divider in range(1, limit["input"] + 1):
        if not limit["phase"][0] <= input_hz / input_divider <= limit["phase"][1]:
            continue
        for output in range(1, OUTPUT_DIVIDER + 1):
            feedback, rest = divmod(output_hz * output * input_divider, input_hz)
            if (not rest and 2 <= feedback <= limit["feedback"]
                    and limit["vco"][0] <= output_hz * output <= limit["vco"][1]):
                return XilinxPll(input_divider, feedback, output)
    raise ValueError(
        f"clock: an AMD clock manager makes no {output_hz / 1e6:g} MHz of {input_hz / 1e6:g} MHz; "
        "choose a clock that is a simple fraction of the oscillator's"
    )


def xilinx_pll_instance(source, clock, locked):
    pll = source.pll
    feedback = Signal()
    common = {
        "p_DIVCLK_DIVIDE": pll.input_divider,
        "p_CLKIN1_PERIOD": 1e9 / source.oscillator_hz,
        "i_CLKIN1": source.oscillator,
        "i_CLKFBIN": feedback,
        "i_PWRDWN": Const(0),
        "i_RST": Const(0),
        "o_CLKFBOUT": feedback,
        "o_LOCKED": locked,
    }
    m = Module()
    fast = Signal()
    if source.family == "xilinxup":
        m.submodules.manager = Instance(
            "MMCME4_BASE", p_CLKFBOUT_MULT_F=float(pll.feedback),
            p_CLKOUT0_DIVIDE_F=float(pll.output), o_CLKOUT0=fast, **common)
    else:
        m.submodules.manager = Instance(
            "PLLE2_BASE", p_CLKFBOUT_MULT=pll.feedback, p_CLKOUT0_DIVIDE=pll.output,
            o_CLKOUT0=fast, **common)
    m.submodules.buffer = Instance("BUFG", i_I=fast, o_O=clock)
    return m
