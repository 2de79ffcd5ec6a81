"""PLL dividers give the clock asked for, inside the limits of the part."""

import pytest

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
