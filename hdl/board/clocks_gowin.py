"""The PLL of Gowin's GW2A (rPLL)."""

from dataclasses import dataclass

from amaranth import *

__all__ = ["GowinPll", "gowin_pll", "gowin_pll_instance"]

# Speed grade C8/I7 of the GW2AR-18, as apycula 0.32 (gowin_pll.py) has them from Gowin's DS226E.
PHASE_HZ = (3_000_000, 500_000_000)
VCO_HZ = (500_000_000, 1_250_000_000)
OUTPUT_HZ = (3_906_250, 625_000_000)
OUTPUT_DIVIDERS = (2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128)


@dataclass(frozen=True)
class GowinPll:
    """output = input / ``input_divider`` * ``feedback_divider``; VCO = output * ``output_divider``.
    """

    input_divider: int
    feedback_divider: int
    output_divider: int


def gowin_pll(input_hz, output_hz):
    """The dividers that give ``output_hz`` exactly, with the fastest phase detector.

    ValueError when there are none.
    """
    if OUTPUT_HZ[0] <= output_hz <= OUTPUT_HZ[1]:
        for input_divider in range(1, 65):
            feedback_divider, rest = divmod(output_hz * input_divider, input_hz)
            if (rest or not 1 <= feedback_divider <= 64
                    or not PHASE_HZ[0] <= input_hz / input_divider <= PHASE_HZ[1]):
                continue
            for output_divider in OUTPUT_DIVIDERS:
                if VCO_HZ[0] <= output_hz * output_divider <= VCO_HZ[1]:
                    return GowinPll(input_divider, feedback_divider, output_divider)
    raise ValueError(
        f"clock: a GW2A's PLL makes no {output_hz / 1e6:g} MHz of {input_hz / 1e6:g} MHz; choose "
        "a clock that is a simple fraction of the oscillator's"
    )


def gowin_pll_instance(source, clock, locked):
    pll = source.pll
    return Instance(
        "rPLL",
        p_FCLKIN=f"{source.oscillator_hz / 1e6:g}",
        p_DEVICE="GW2AR-18C",
        p_IDIV_SEL=pll.input_divider - 1,
        p_FBDIV_SEL=pll.feedback_divider - 1,
        p_ODIV_SEL=pll.output_divider,
        p_DYN_IDIV_SEL="false",
        p_DYN_FBDIV_SEL="false",
        p_DYN_ODIV_SEL="false",
        p_CLKFB_SEL="internal",
        i_CLKIN=source.oscillator,
        i_CLKFB=Const(0),
        i_RESET=Const(0),
        i_RESET_P=Const(0),
        i_FBDSEL=Const(0, 6),
        i_IDSEL=Const(0, 6),
        i_ODSEL=Const(0, 6),
        i_DUTYDA=Const(0, 4),
        i_PSDA=Const(0, 4),
        i_FDLY=Const(0, 4),
        o_CLKOUT=clock,
        o_LOCK=locked,
    )
