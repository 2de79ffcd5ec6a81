"""Clocks: PLLs of the families, their parameters by plain functions."""

from dataclasses import dataclass

from amaranth import *
from amaranth.lib.cdc import ResetSynchronizer

__all__ = ["ClockSource", "Ecp5Pll", "ecp5_pll"]

ECP5_INPUT_HZ = (8_000_000, 400_000_000)
ECP5_OUTPUT_HZ = (3_125_000, 400_000_000)
ECP5_PHASE_HZ = (3_125_000, 400_000_000)  # at the phase detector
ECP5_VCO_HZ = (400_000_000, 800_000_000)
ECP5_DIVIDERS = 128


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


class ClockSource(Elaboratable):
    """Clock and reset of the domain ``sync``, made of the board's oscillator.

    Reset is held until the PLL has locked, and released by a synchronizer of ``sync``.

    Parameters
    ----------
    family : :class:`str`
        As in :class:`trivet.boards.board.Toolchain`.
    oscillator : Signal, in
        Input of the PLL.
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
        else:
            raise ValueError(f"clock: no PLL is known for {family}; use the oscillator's clock")

    def elaborate(self, platform):
        m = Module()
        clock = Signal()
        locked = Signal()
        if self.pll is None:
            m.d.comb += [clock.eq(self.oscillator), locked.eq(1)]
        else:
            m.submodules.pll = _ecp5(self, clock, locked)
        m.d.comb += ClockSignal("sync").eq(clock)
        m.submodules.reset = ResetSynchronizer(~locked, domain="sync")
        return m


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
