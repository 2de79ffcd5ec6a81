"""PLL dividers give the clock asked for, inside the limits of the part."""

import pytest

from trivet.hdl.board.clocks import ECP5_PHASE_HZ, ECP5_VCO_HZ, ecp5_pll


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
