"""Clocks: PLLs of the families, their parameters by plain functions."""

from dataclasses import dataclass

from amaranth import *
from amaranth.lib.cdc import AsyncFFSynchronizer

from .clocks_gowin import gowin_pll, gowin_pll_instance
from .clocks_xilinx import xilinx_pll, xilinx_pll_instance

__all__ = ["ClockSource", "Ecp5Pll", "Ice40Pll", "ecp5_pll", "ice40_pll"]

ECP5_INPUT_HZ = (8_000_000, 400_000_000)
ECP5_OUTPUT_HZ = (3_125_000, 400_000_000)
ECP5_PHASE_HZ = (3_125_000, 400_000_000)  # at the phase detector
ECP5_VCO_HZ = (400_000_000, 800_000_000)
ECP5_DIVIDERS = 128
ICE40_INPUT_HZ = (10_000_000, 133_000_000)
ICE40_VCO_HZ = (533_000_000, 1_066_000_000)
# Where the loop filter's next range begins.
ICE40_FILTER_HZ = (17_000_000, 26_000_000, 44_000_000, 66_000_000, 101_000_000)


@dataclass(frozen=True)
class Ecp5Pll:
    """Dividers of EHXPLLL with its feedback from CLKOP; figures are in Hz.

    output = input / ``input_divider`` * ``feedback_divider``; VCO = output * ``output_divider``.
    """

    input_divider: int
    feedback_divider: int
    output_divider: int
    vco_hz: float


def ecp5_pll(input_hz, output_hz):
    """The dividers that give ``output_hz`` exactly, with the fastest phase detector.

    Limits are those of Lattice FPGA-DS-02012 (sysCLOCK PLL timing, the worst speed grade).
    ValueError when there are none.
    """
    if (ECP5_INPUT_HZ[0] <= input_hz <= ECP5_INPUT_HZ[1]
            and ECP5_OUTPUT_HZ[0] <= output_hz <= ECP5_OUTPUT_HZ[1]):
        for input_divider in range(1, ECP5_DIVIDERS + 1):
            phase_hz = input_hz / input_divider
            feedback_divider, rest = divmod(output_hz * input_divider, input_hz)
            if rest or not 1 <= feedback_divider <= 80:
                continue
            if not ECP5_PHASE_HZ[0] <= phase_hz <= ECP5_PHASE_HZ[1]:
                continue
            # The middle of the VCO's range is the farthest from both ends.
            aim = sum(ECP5_VCO_HZ) / 2
            dividers = [
                n for n in range(1, ECP5_DIVIDERS + 1)
                if ECP5_VCO_HZ[0] <= output_hz * n <= ECP5_VCO_HZ[1]
            ]
            if dividers:
                n = min(dividers, key=lambda n: abs(output_hz * n - aim))
                return Ecp5Pll(input_divider, feedback_divider, n, output_hz * n)
    raise ValueError(
        f"clock: an ECP5's PLL makes no {output_hz / 1e6:g} MHz of {input_hz / 1e6:g} MHz; choose "
        "a clock that is a simple fraction of the oscillator's"
    )


@dataclass(frozen=True)
class Ice40Pll:
    """Parameters of an SB_PLL40 in SIMPLE feedback.

    VCO = input * (``feedback`` + 1); output = VCO / 2^``output``.
    """

    feedback: int
    output: int
    filter_range: int


def ice40_pll(input_hz, output_hz):
    """The parameters that give ``output_hz`` exactly.

    Limits and filter ranges are those of Project IceStorm's ``icepll``, which gives the same
    parameters (tests/hdl/board/test_clocks.py). ValueError when there are none.
    """
    if ICE40_INPUT_HZ[0] <= input_hz <= ICE40_INPUT_HZ[1]:
        for output in range(1, 7):
            feedback, rest = divmod(output_hz << output, input_hz)
            if (not rest and 1 <= feedback <= 128
                    and ICE40_VCO_HZ[0] <= output_hz << output <= ICE40_VCO_HZ[1]):
                filter_range = 1 + sum(input_hz >= bound for bound in ICE40_FILTER_HZ)
                return Ice40Pll(feedback - 1, output, filter_range)
    raise ValueError(
        f"clock: an iCE40's PLL makes no {output_hz / 1e6:g} MHz of {input_hz / 1e6:g} MHz; choose "
        "a clock that is a simple fraction of the oscillator's"
    )


class ClockSource(Elaboratable):
    """Clock and reset of the domain ``sync``, made of the board's oscillator.

    Reset is held until the PLL has locked, and released by a synchronizer of ``sync`` and a plain
    register, which has a cycle of its own for the way to all that it resets.

    Parameters
    ----------
    family : :class:`str`
        As in :class:`trivet.boards.board.Toolchain`; "xilinxup" for UltraScale+.
    oscillator : Signal, in
        Input of the PLL; of an iCE40's, the port of the pin itself.
    oscillator_hz, clock_hz : :class:`int`
        Of the oscillator, and of ``sync``.
    """

    def __init__(self, family, oscillator, oscillator_hz, clock_hz):
        self.family = family
        self.oscillator = oscillator
        self.oscillator_hz = oscillator_hz
        self.clock_hz = clock_hz
        if family == "ecp5" and clock_hz != oscillator_hz:
            self.pll = ecp5_pll(oscillator_hz, clock_hz)
        elif clock_hz == oscillator_hz:
            self.pll = None
        elif family == "ice40":
            self.pll = ice40_pll(oscillator_hz, clock_hz)
        elif family == "gowin":
            self.pll = gowin_pll(oscillator_hz, clock_hz)
        else:
            self.pll = xilinx_pll(family, oscillator_hz, clock_hz)

    def elaborate(self, platform):
        m = Module()
        clock = Signal()
        locked = Signal()
        if self.pll is None:
            m.d.comb += [clock.eq(self.oscillator), locked.eq(1)]
        else:
            pll = _PLLS[self.family]
            m.submodules.pll = pll(self, clock, locked)
        m.d.comb += ClockSignal("sync").eq(clock)
        held = Signal()
        reset = Signal(init=1, reset_less=True)
        m.submodules.reset = AsyncFFSynchronizer(~locked, held, o_domain="sync")
        m.d.sync += reset.eq(held)
        m.d.comb += ResetSignal("sync").eq(reset)
        return m


def _ice40(source, clock, locked):
    # The one whose input is the pin: that of the fabric takes the clock pin's place for itself.
    pll = source.pll
    return Instance(
        "SB_PLL40_PAD",
        p_FEEDBACK_PATH="SIMPLE",
        p_DIVR=Const(0, 4),
        p_DIVF=Const(pll.feedback, 7),
        p_DIVQ=Const(pll.output, 3),
        p_FILTER_RANGE=Const(pll.filter_range, 3),
        i_PACKAGEPIN=source.oscillator,
        i_RESETB=Const(1),
        i_BYPASS=Const(0),
        o_PLLOUTGLOBAL=clock,
        o_LOCK=locked,
    )


def _ecp5(source, clock, locked):
    pll = source.pll
    return Instance(
        "EHXPLLL",
        # nextpnr reads these two; the analogue ones are what Lattice's own generator writes.
        a_FREQUENCY_PIN_CLKI=f"{source.oscillator_hz / 1e6:g}",
        a_FREQUENCY_PIN_CLKOP=f"{source.clock_hz / 1e6:g}",
        a_ICP_CURRENT="12",
        a_LPF_RESISTOR="8",
        a_MFG_ENABLE_FILTEROPAMP="1",
        a_MFG_GMCREF_SEL="2",
        p_PLLRST_ENA="DISABLED",
        p_INTFB_WAKE="DISABLED",
        p_STDBY_ENABLE="DISABLED",
        p_DPHASE_SOURCE="DISABLED",
        p_OUTDIVIDER_MUXA="DIVA",
        p_OUTDIVIDER_MUXB="DIVB",
        p_OUTDIVIDER_MUXC="DIVC",
        p_OUTDIVIDER_MUXD="DIVD",
        p_CLKI_DIV=pll.input_divider,
        p_CLKOP_ENABLE="ENABLED",
        p_CLKOP_DIV=pll.output_divider,
        p_CLKOP_CPHASE=pll.output_divider // 2,
        p_CLKOP_FPHASE=0,
        p_FEEDBK_PATH="CLKOP",
        p_CLKFB_DIV=pll.feedback_divider,
        i_RST=Const(0),
        i_STDBY=Const(0),
        i_CLKI=source.oscillator,
        i_CLKFB=clock,
        i_PHASESEL0=Const(0),
        i_PHASESEL1=Const(0),
        i_PHASEDIR=Const(1),
        i_PHASESTEP=Const(1),
        i_PHASELOADREG=Const(1),
        i_PLLWAKESYNC=Const(0),
        i_ENCLKOP=Const(0),
        o_CLKOP=clock,
        o_LOCK=locked,
    )


_PLLS = {
    "ecp5": _ecp5, "ice40": _ice40, "gowin": gowin_pll_instance, "xilinx": xilinx_pll_instance,
    "xilinxup": xilinx_pll_instance,
}
