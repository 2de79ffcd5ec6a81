"""Registers in a row."""

from amaranth import *

__all__ = ["delay"]


def delay(m, value, cycles, name, *, reset=None):
    """``value`` as it was ``cycles`` cycles ago; ``reset``, if given, forgets what is under way."""
    for k in range(cycles):
        stage = Signal(len(value), name=f"{name}_{k + 1}", reset_less=reset is None)
        m.d.sync += stage.eq(value)
        if reset is not None:
            with m.If(reset):
                m.d.sync += stage.eq(0)
        value = stage
    return value
