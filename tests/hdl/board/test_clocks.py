"""PLL dividers give the clock asked for, inside the limits of the part."""

import pytest

from trivet.hdl.board import clocks_gowin, clocks_xilinx
from trivet.hdl.board.clocks import ECP5_PHASE_HZ, ECP5_VCO_HZ, Ice40Pll, ecp5_pll, ice40_pll


@pytest.mark.parametrize(("input_hz", "output_hz"), [
    (25_000_000, 50_000_000), (25_000_000, 75_000_000), (25_000_000, 100_000_000),
    (25_000_000, 125_000_000), (48_000_000, 100_000_000), (48_000_000, 120_000_000),
    (100_000_000, 130_000_000), (100_000_000, 125_000_000),
])
def test_dividers(input_hz, output_hz):
    pll = ecp5_pll(input_hz, output_hz)
    phase_hz = input_hz / pll.input_divider
    assert phase_hz * pll.feedback_divider == output_hz
    assert output_hz * pll.output_divider == pll.vco_hz
    assert ECP5_PHASE_HZ[0] <= phase_hz <= ECP5_PHASE_HZ[1]
    assert ECP5_VCO_HZ[0] <= pll.vco_hz <= ECP5_VCO_HZ[1]


@pytest.mark.parametrize(("input_hz", "output_hz"), [
    (25_000_000, 100_000_001), (7_000_000, 70_000_000), (25_000_000, 500_000_000),
    (25_000_000, 1_000_000),
])
def test_what_no_dividers_give_is_refused(input_hz, output_hz):
    with pytest.raises(ValueError, match=r"makes no .* MHz of .* MHz; choose"):
        ecp5_pll(input_hz, output_hz)


@pytest.mark.parametrize(("input_hz", "output_hz", "feedback", "output", "filter_range"), [
    # What `icepll -i INPUT -o OUTPUT` of icestorm prints: DIVF, DIVQ, FILTER_RANGE.
    (12_000_000, 24_000_000, 63, 5, 1),
    (12_000_000, 30_000_000, 79, 5, 1),
    (12_000_000, 48_000_000, 63, 4, 1),
    (12_000_000, 60_000_000, 79, 4, 1),
    (100_000_000, 25_000_000, 7, 5, 5),
])
def test_ice40_parameters_are_icepll_s(input_hz, output_hz, feedback, output, filter_range):
    assert ice40_pll(input_hz, output_hz) == Ice40Pll(feedback, output, filter_range)


@pytest.mark.parametrize(("input_hz", "output_hz"), [
    (12_000_000, 24_000_001), (9_000_000, 18_000_000), (12_000_000, 4_000_000),
])
def test_what_an_ice40_s_pll_cannot_make_is_refused(input_hz, output_hz):
    with pytest.raises(ValueError, match=r"an iCE40's PLL makes no .* MHz of .* MHz; choose"):
        ice40_pll(input_hz, output_hz)


@pytest.mark.parametrize(("output_hz", "input_divider", "feedback", "output"), [
    # What apycula's `gowin_pll -i 27 -o OUTPUT -d "GW2AR-18 C8/I7"` prints: IDIV_SEL + 1 and so on.
    (27_000_000, 1, 1, 32),
    (54_000_000, 1, 2, 16),
    (108_000_000, 1, 4, 8),
])
def test_gowin_dividers(output_hz, input_divider, feedback, output):
    found = clocks_gowin.gowin_pll(27_000_000, output_hz)
    low, high = clocks_gowin.VCO_HZ
    assert (found.input_divider, found.feedback_divider) == (input_divider, feedback)
    assert found.output_divider in clocks_gowin.OUTPUT_DIVIDERS
    assert low <= output_hz * found.output_divider <= high
    assert found.output_divider <= output


@pytest.mark.parametrize("output_hz", [27_000_001, 3_000_000, 700_000_000])
def test_what_a_gowin_s_pll_cannot_make_is_refused(output_hz):
    with pytest.raises(ValueError, match=r"a GW2A's PLL makes no .* MHz of 27 MHz; choose"):
        clocks_gowin.gowin_pll(27_000_000, output_hz)


@pytest.mark.parametrize("family", ["xilinx", "xilinxup"])
@pytest.mark.parametrize("output_hz", [50_000_000, 125_000_000, 150_000_000, 200_000_000])
def test_amd_dividers(family, output_hz):
    found = clocks_xilinx.xilinx_pll(family, 100_000_000, output_hz)
    limits = clocks_xilinx.LIMITS[family]
    vco_hz = 100_000_000 * found.feedback / found.input_divider
    assert vco_hz == output_hz * found.output
    assert limits["vco"][0] <= vco_hz <= limits["vco"][1]
    assert limits["phase"][0] <= 100_000_000 / found.input_divider <= limits["phase"][1]


def test_what_an_amd_clock_manager_cannot_make_is_refused():
    with pytest.raises(ValueError, match=r"an AMD clock manager makes no 100.5 MHz of 99 MHz"):
        clocks_xilinx.xilinx_pll("xilinx", 99_000_000, 100_500_000)
