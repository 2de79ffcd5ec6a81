"""Digilent Arty A7-100T, as a platform of Amaranth that gives RTLIL."""

from amaranth_boards.arty_a7 import ArtyA7_100Platform

from .rtlil import WithRtlil

__all__ = ["ArtyA7Platform"]


class ArtyA7Platform(WithRtlil, ArtyA7_100Platform):
    """Pins and oscillator are those of amaranth-boards; the part is DS180's XC7A100T-1."""

    device = "xc7a100t"
    speed = "1"
