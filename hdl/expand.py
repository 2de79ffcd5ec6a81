"""Spreads an arriving tensor over the windows of a convolution (im2col), byte by byte."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from .loader import COUNT_BITS

__all__ = ["PORTS", "SETUP_BYTES", "Expander", "Setup"]

# What goes ahead of the bytes in every request, so that nothing is kept between two of them: each
# can be repeated, and they may come in any order. ``step`` and ``tap`` are bytes, modulo the memory
# that 16-bit word addresses reach. A stride is at most its kernel: every byte is in some window.
Setup = data.StructLayout({
    # The same for the whole tensor.
    "channels": 8,       # bytes of an arriving pixel
    "columns": 16,       # pixels of an arriving row
    "out_h": 16,         # windows
    "out_w": 16,
    "kernel_h": 8,
    "kernel_w": 8,
    "stride_h": 8,
    "stride_w": 8,
    "pad_phase": 8,      # pad_left % stride_w
    "pad_column": 8,     # pad_left // stride_w
    "tap_x": 24,         # from a byte's place in one window to its place in the window on the left
    "tap_y": 24,         # ... in the window above
    "step_column": 24,   # from a pixel's last byte to the next pixel, whose window is the next one
    "step_row": 24,      # from a row's last byte to the next row
    "step_rows": 24,     # ... whose windows are the next ones
    # Of the first byte: what is left of its pixel and row (it is counted), and the last window that
    # holds it with its place there. That window may lie beyond the last there is.
    "channels_left": 8,
    "columns_left": 16,
    "column": 16,
    "phase_x": 8,
    "row": 16,
    "phase_y": 8,
})
SETUP_BYTES = Setup.size // 8

PORTS = wiring.Signature({
    "start": In(1),
    "address": In(32),
    "count": In(COUNT_BITS),
    "i": In(stream.Signature(8)),
    "write_en": Out(1),
    "write_addr": Out(16),
    "write_byte": Out(8),
    "write_data": Out(8),
    "write_ready": In(1),
    "write_idle": In(1),
    "done": Out(1),
    "refused": Out(1),
})


class Expander(wiring.Component):
    """Takes a :data:`Setup` and bytes of a tensor; writes each to all windows that hold it.

    A byte costs one cycle and one for each window, ``ceil(kernel / stride)`` of them in either
    direction. Windows to the left and above are found by running sums: a step to the left takes
    the byte ``stride`` kernel columns to the right, ``tap_x`` bytes away. Windows beyond the last
    row or column take a cycle and write nothing. Nothing outside the memory is written, whatever
    the setup says.

    Parameters
    ----------
    config : EngineConfig
        Gives the geometry of the activation memory.

    Members
    -------
    start : :py:`In(1)`, address : :py:`In(32)`, count : :py:`In(COUNT_BITS)`
        Pulse; where the first byte lies in the window ``row``, ``column``, in bytes from the start
        of the memory, modulo what 16-bit word addresses reach; how many bytes come after the setup.
        Both stay until ``done``.
    i : :py:`In(stream.Signature(8))`
        Setup, then bytes.
    write_en, write_addr, write_byte, write_data, write_ready, write_idle
        The engine's write port to its activation memory.
    done : :py:`Out(1)`, refused : :py:`Out(1)`
        The last byte is in its memory; with it, whether the setup was invalid (nothing was
        written) or led out of the memory (what lay inside was).
    """

    def __init__(self, config):
        self.config = config
        super().__init__(PORTS)

    def elaborate(self, platform):
        m = Module()
        byte_bits = exact_log2(self.config.word_bytes)
        place_bits = byte_bits + 16

        setup = Signal(Setup)
        missing = Signal(range(SETUP_BYTES + 1))
        left = Signal(COUNT_BITS)

        # The byte at hand, and its window at hand.
        here = Signal(place_bits, reset_less=True)    # in the last window that holds it
        byte = Signal(8, reset_less=True)
        line = Signal(place_bits, reset_less=True)    # in the last window of the row of windows
        place = Signal(place_bits, reset_less=True)
        column = Signal(16, reset_less=True)
        row = Signal(16, reset_less=True)
        # Where the byte lies in the window after the next one.
        ahead_x = Signal(10, reset_less=True)
        ahead_y = Signal(10, reset_less=True)

        # Whether there is a window before this one that holds the byte, too; a step ahead.
        has_left = Signal(reset_less=True)
        has_above = Signal(reset_less=True)
        # Where each row of windows starts again.
        first_column = Signal(16, reset_less=True)
        first_x = Signal(10, reset_less=True)
        first_left = Signal(reset_less=True)
        is_window = Signal()
        is_inside = Signal()
        m.d.comb += [
            is_window.eq((column < setup.out_w) & (row < setup.out_h)),
            is_inside.eq(place[byte_bits:] < self.config.act_words),
        ]

        # All that is told of a byte to come: registers, for `setup` stands still for a cycle at
        # least before they are used.
        coming_x = Signal(10, reset_less=True)
        coming_y = Signal(10, reset_less=True)
        coming_left = Signal(reset_less=True)
        coming_above = Signal(reset_less=True)
        is_pixel_end = Signal(reset_less=True)
        is_row_end = Signal(reset_less=True)
        is_column_end = Signal(reset_less=True)  # a pixel's, and the next one has another window
        is_band_end = Signal(reset_less=True)  # a row's, likewise
        is_last = Signal(reset_less=True)
        pixel_ends = setup.channels_left == 1
        row_ends = pixel_ends & (setup.columns_left == 1)
        m.d.sync += [
            coming_x.eq(setup.phase_x + (setup.stride_w << 1)),
            coming_y.eq(setup.phase_y + (setup.stride_h << 1)),
            coming_left.eq(
                (setup.phase_x + setup.stride_w < setup.kernel_w) & (setup.column != 0)),
            coming_above.eq((setup.phase_y + setup.stride_h < setup.kernel_h) & (setup.row != 0)),
            is_pixel_end.eq(pixel_ends),
            is_row_end.eq(row_ends),
            is_column_end.eq(pixel_ends & (setup.phase_x + 1 == setup.stride_w)),
            is_band_end.eq(row_ends & (setup.phase_y + 1 == setup.stride_h)),
            is_last.eq(left == 1),
        ]
        # How the next byte lies to this one.
        step = Signal(place_bits, reset_less=True)

        # What is done is told from registers of its own: it is much, and decoding a state takes
        # time. The last write was registered here, and then in the engine.
        in_setup = Signal()
        wants = Signal()  # waits for a byte
        in_window = Signal()
        ends = Signal()  # waits for the last write
        none_left = Signal(reset_less=True)
        shifts = Signal()  # `byte` is one of the setup
        takes = Signal()
        took = Signal()
        is_free = Signal()  # nothing waits to be written
        m.d.comb += [
            is_free.eq(~self.write_en | self.write_ready),
            self.i.ready.eq(wants | in_setup),
            self.done.eq(ends & ~self.write_en & self.write_idle),
            takes.eq(wants & self.i.valid),
        ]
        m.d.sync += [shifts.eq(in_setup & self.i.valid), took.eq(takes)]
        with m.If(self.write_ready):
            m.d.sync += self.write_en.eq(0)
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [
                    missing.eq(SETUP_BYTES),
                    left.eq(self.count),
                    self.refused.eq(0),
                ]
                with m.If(self.start):
                    m.d.sync += in_setup.eq(1)
                    m.next = "SETUP"
            with m.State("SETUP"):
                m.d.sync += none_left.eq(left == 0)
                with m.If(self.i.valid):
                    m.d.sync += missing.eq(missing - 1)
                    with m.If(missing == 1):
                        m.d.sync += in_setup.eq(0)
                        m.next = "SETTLE"
            with m.State("SETTLE"):
                m.next = "CHECK"
            with m.State("CHECK"):
                # A stride of 0 would never leave a window.
                is_bad = Signal()
                m.d.comb += is_bad.eq(
                    self.address[place_bits:].any()
                    | (setup.stride_h == 0) | (setup.stride_w == 0)
                    | (setup.channels_left == 0) | (setup.columns_left == 0))
                m.d.sync += [
                    self.refused.eq(is_bad),
                    wants.eq(~none_left & ~is_bad),
                    ends.eq(none_left | is_bad),
                ]
                m.next = "WORK"
            with m.State("WORK"), m.If(self.done):
                m.d.sync += ends.eq(0)
                m.next = "IDLE"

        with m.If(shifts):
            m.d.sync += setup.eq(Cat(setup.as_value()[8:], byte))
        with m.Elif(takes):
            self._advance(m, setup, is_pixel_end, is_row_end, is_column_end, is_band_end)
        with m.If(takes):
            m.d.sync += [left.eq(left - 1), none_left.eq(is_last), wants.eq(0), in_window.eq(1)]
        # The next byte's place, told in this byte's first window.
        with m.If(in_setup):
            m.d.sync += here.eq(self.address)
        with m.Elif(took):
            m.d.sync += here.eq(here + step)
        with m.If(~in_window):
            m.d.sync += [
                byte.eq(self.i.payload),
                line.eq(here),
                place.eq(here),
                column.eq(setup.column),
                row.eq(setup.row),
                ahead_x.eq(coming_x),
                ahead_y.eq(coming_y),
                has_left.eq(coming_left),
                has_above.eq(coming_above),
                first_column.eq(setup.column),
                first_x.eq(coming_x),
                first_left.eq(coming_left),
            ]
        with m.Elif(is_free):
            with m.If(has_left):
                m.d.sync += [
                    place.eq(place + setup.tap_x),
                    column.eq(column - 1),
                    ahead_x.eq(ahead_x + setup.stride_w),
                    has_left.eq((ahead_x < setup.kernel_w) & (column != 1)),
                ]
            with m.Else():
                # The row of windows above; if there is none, all this is set anew.
                m.d.sync += [
                    line.eq(line + setup.tap_y),
                    place.eq(line + setup.tap_y),
                    column.eq(first_column),
                    ahead_x.eq(first_x),
                    has_left.eq(first_left),
                    row.eq(row - 1),
                    ahead_y.eq(ahead_y + setup.stride_h),
                    has_above.eq((ahead_y < setup.kernel_h) & (row != 1)),
                ]
        with m.If(~in_window):
            m.d.sync += step.eq(1)
            with m.If(is_row_end):
                m.d.sync += step.eq(Mux(is_band_end, setup.step_rows, setup.step_row))
            with m.Elif(is_column_end):
                m.d.sync += step.eq(setup.step_column)
        with m.If(in_window & is_free):
            m.d.sync += self.write_en.eq(is_window & is_inside)
            with m.If(is_window & ~is_inside):
                m.d.sync += self.refused.eq(1)
            with m.If(~has_left & ~has_above):
                m.d.sync += [wants.eq(~none_left), ends.eq(none_left), in_window.eq(0)]
        with m.If(is_free):
            m.d.sync += [
                self.write_addr.eq(place[byte_bits:]),
                self.write_byte.eq(place[:byte_bits]),
                self.write_data.eq(byte),
            ]

        return m

    @staticmethod
    def _advance(m, setup, is_pixel_end, is_row_end, is_column_end, is_band_end):
        """Let ``setup`` describe the byte after the one at hand."""
        m.d.sync += setup.channels_left.eq(setup.channels_left - 1)
        with m.If(is_pixel_end):
            m.d.sync += [
                setup.channels_left.eq(setup.channels),
                setup.columns_left.eq(setup.columns_left - 1),
                setup.phase_x.eq(setup.phase_x + 1),
            ]
        with m.If(is_column_end):
            m.d.sync += [
                setup.phase_x.eq(0),
                setup.column.eq(setup.column + 1),
            ]
        with m.If(is_row_end):
            m.d.sync += [
                setup.columns_left.eq(setup.columns),
                setup.phase_x.eq(setup.pad_phase),
                setup.column.eq(setup.pad_column),
                setup.phase_y.eq(setup.phase_y + 1),
            ]
        with m.If(is_band_end):
            m.d.sync += [
                setup.phase_y.eq(0),
                setup.row.eq(setup.row + 1),
            ]
