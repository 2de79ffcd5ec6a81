"""Loops of a layer: where each slice lies in activation and weight memory."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from .isa import Op
from .sequencer import instruction_layout

__all__ = ["AddressGenerator"]

# Bits of a row or column number: padding makes it as small as -255, which must stay apart from the
# largest real one, 65,535.
_COORDINATE = 17


class _Counter:
    """One loop: its registered ``last`` flag lets nested loops chain flags, not comparisons."""

    def __init__(self, m, name, iterations, load, advance):
        ahead = Signal(len(iterations), name=f"{name}_ahead", reset_less=True)
        self.last = Signal(name=f"{name}_last", reset_less=True)
        single = Signal(name=f"{name}_single", reset_less=True)
        is_single = iterations == 1
        m.d.sync += single.eq(is_single)
        with m.If(load):
            m.d.sync += [ahead.eq(2), self.last.eq(is_single)]
        with m.Elif(advance & self.last):
            m.d.sync += [ahead.eq(2), self.last.eq(single)]
        with m.Elif(advance):
            m.d.sync += [ahead.eq(ahead + 1), self.last.eq(ahead == iterations)]


class AddressGenerator(wiring.Component):
    """Issues a layer's slices, one a cycle, in the order that ``hdl/isa.py`` defines.

    ``load`` sets the loops to the start of ``instruction`` (repeating it does no harm), ``go``
    issues the first slice in the next cycle; both may come in the same cycle. What a slice issued
    in cycle t needs is on the outputs in cycle t + 1. Addresses are running sums modulo 2^16.

    Parameters
    ----------
    config : EngineConfig
        ``lanes``, ``simd`` and ``word_bytes`` are used.

    Members
    -------
    instruction : In(instruction_layout())
        The layer; constant from ``load`` to ``finish``.
    load, go : In(1)
        See above.
    issuing, idling : Out(1)
        A slice is issued in this cycle; an idle cycle between pixels.
    finish : Out(1)
        The layer's last slice is issued in this cycle.
    addr : Out(16)
        Activation word.
    part : Out
        Which ``simd`` (DOT) or ``lanes`` (LANE) bytes of it, where a word holds several.
    valid : Out(1)
        A slice was issued: not an idle cycle.
    pad : Out(1)
        The slice lies outside the input.
    blind : Out(1)
        Window: what lies two columns before is left of the image.
    weight : Out(16)
        Weight word.
    first, last : Out(1)
        First and last slice of a pixel (window: of a column; ``last`` of those with a result).
    row_last, block_last, layer_last : Out(1)
        With ``last``: the last pixel of a row; of a block; of the layer.
    """

    def __init__(self, config):
        self.config = config
        dot = exact_log2(config.word_bytes // config.simd)
        lane = exact_log2(config.word_bytes // config.lanes)
        self.part_bits = {Op.DOT: dot, Op.LANE: lane}
        super().__init__({
            "instruction": In(instruction_layout()),
            "load": In(1),
            "go": In(1),
            "issuing": Out(1),
            "idling": Out(1),
            "finish": Out(1),
            "addr": Out(16),
            "part": Out(max(dot, lane)),
            "valid": Out(1),
            "pad": Out(1),
            "blind": Out(1),
            "weight": Out(16),
            "first": Out(1),
            "last": Out(1),
            "row_last": Out(1),
            "block_last": Out(1),
            "layer_last": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        i = self.instruction

        running = Signal()
        idle = Signal()
        step = Signal()
        m.d.comb += [
            step.eq(running & ~idle),
            self.issuing.eq(step),
            self.idling.eq(running & idle),
        ]

        # Loops, innermost first; one `ends` when it and all loops inside it are in their last turn.
        # The lanes do a window's loop over kernel columns.
        window = i.window if self.config.has_window else C(0)
        ends = step
        loops = {}
        for name, count in (("slice", i.c_slices), ("kx", Mux(window, 1, i.kernel_w)),
                            ("ky", i.kernel_h), ("ox", i.columns), ("oy", i.out_h),
                            ("block", i.blocks)):
            if self.config.compact:
                count = count[:self.config.field_bits]
            counter = _Counter(m, name, count, self.load, ends)
            loop = Signal(name=f"{name}_ends")
            m.d.comb += loop.eq(ends & counter.last)
            ends = loops[name] = loop
        m.d.comb += self.finish.eq(loops["block"])

        has_result = self._results(m, loops, window)
        pause = _Counter(m, "idle", i.idle, self.load, idle)
        has_idle = Signal(reset_less=True)
        m.d.sync += has_idle.eq(i.idle != 0)
        with m.If(loops["block"]):
            m.d.sync += running.eq(0)
        with m.Elif(loops["ky"]):
            m.d.sync += idle.eq(has_idle & has_result & ~(window & loops["ox"]))
        with m.Elif(idle & pause.last):
            m.d.sync += idle.eq(0)
        with m.If(self.go):
            m.d.sync += running.eq(1)

        self._walk_input(m, loops, step, window)
        self._walk_weights(m, loops, step)

        fresh = Signal(reset_less=True)
        with m.If(self.load | loops["ky"]):
            m.d.sync += fresh.eq(1)
        with m.Elif(step):
            m.d.sync += fresh.eq(0)
        valid = Signal(reset_less=True)
        first = Signal(reset_less=True)
        last = Signal()
        row_last = Signal()
        block_last = Signal()
        layer_last = Signal()
        m.d.sync += [
            valid.eq(step),
            first.eq(fresh),
            last.eq(loops["ky"] & has_result),
            row_last.eq(loops["ox"]),
            block_last.eq(loops["oy"]),
            layer_last.eq(loops["block"]),
        ]
        m.d.comb += [
            self.valid.eq(valid),
            self.first.eq(first),
            self.last.eq(last),
            self.row_last.eq(row_last),
            self.block_last.eq(block_last),
            self.layer_last.eq(layer_last),
        ]
        return m

    def _results(self, m, loops, window):
        """Whether the column completes a result: after the first ones of a row, every stride."""
        i = self.instruction
        if not self.config.has_window:
            return C(1)
        wait = Signal(4, reset_less=True)  # columns before the next that does
        head = Signal(reset_less=True)  # the row has no result yet
        has_result = Signal()
        m.d.comb += has_result.eq(~window | (wait == 0))
        with m.If(self.load | loops["ox"]):
            m.d.sync += [wait.eq(i.prime), head.eq(1)]
        with m.Elif(loops["ky"] & has_result):
            m.d.sync += [wait.eq(i.stride_w - 1), head.eq(0)]
        with m.Elif(loops["ky"]):
            m.d.sync += wait.eq(wait - 1)
        blind = Signal(reset_less=True)
        m.d.sync += blind.eq(head & (i.prime == 1))
        m.d.comb += self.blind.eq(blind)
        return has_result

    def _walk_input(self, m, loops, step, window):
        """Address, padding and part of the slice, by one running sum for each loop."""
        i = self.instruction
        bits = self.config.field_bits
        coordinate = max(bits, 9) + 1 if self.config.compact else _COORDINATE
        row, pixel, ky, kx = (Signal(bits, name=f"base_{n}", reset_less=True)
                              for n in ("row", "pixel", "ky", "kx"))
        y_row, y, x_pixel, x = (Signal(coordinate, name=n, reset_less=True)
                                for n in ("y_row", "y", "x_pixel", "x"))
        channel = Signal(bits, reset_less=True)  # slice (DOT) or block (LANE) within the pixel

        def assign(targets, value):
            return [target.eq(value) for target in targets]

        left = assign((x_pixel, x), Mux(window, 0, -i.pad_left))
        stride_w = Mux(window, 1, i.stride_w)
        start = [*assign((row, pixel, ky, kx), i.origin), *assign((y_row, y), -i.pad_top), *left]
        with m.If(self.load | loops["oy"]):
            m.d.sync += start
        with m.Elif(loops["ox"]):
            m.d.sync += assign((row, pixel, ky, kx), row + i.step_y)
            m.d.sync += [*assign((y_row, y), y_row + i.stride_h), *left]
        with m.Elif(loops["ky"]):
            m.d.sync += assign((pixel, ky, kx), pixel + i.step_x)
            m.d.sync += [y.eq(y_row), *assign((x_pixel, x), x_pixel + stride_w)]
        with m.Elif(loops["kx"]):
            m.d.sync += assign((ky, kx), ky + i.step_ky)
            m.d.sync += [y.eq(y + i.dilation_h), x.eq(x_pixel)]
        with m.Elif(loops["slice"]):
            m.d.sync += [kx.eq(kx + i.step_kx), x.eq(x + i.dilation_w)]

        is_lane = i.op == Op.LANE
        with m.If(self.load):
            m.d.sync += channel.eq(0)
        with m.Elif(step):
            onward = Mux(is_lane, loops["oy"], 1)
            m.d.sync += channel.eq(Mux(~is_lane & loops["slice"], 0, channel + onward))

        word = Mux(is_lane, channel[self.part_bits[Op.LANE]:], channel[self.part_bits[Op.DOT]:])
        addr = Signal.like(self.addr, reset_less=True)
        part = Signal.like(self.part, reset_less=True)
        pad = Signal(reset_less=True)
        m.d.sync += [
            addr.eq((kx + word)[:bits]),
            part.eq(channel),
            # A negative coordinate is a large one here.
            pad.eq((y >= i.in_h) | (x >= i.in_w)),
        ]
        m.d.comb += [self.addr.eq(addr), self.part.eq(part), self.pad.eq(pad)]

    def _walk_weights(self, m, loops, step):
        """Weight words follow one another; each pixel of a block starts again at the block's."""
        i = self.instruction
        block = Signal(16, name="weight_block", reset_less=True)
        here = Signal(16, name="weight_here", reset_less=True)
        following = here + 1
        with m.If(self.load):
            m.d.sync += [block.eq(i.weights), here.eq(i.weights)]
        with m.Elif(step & ~i.weight_hold):
            with m.If(loops["oy"]):
                m.d.sync += [block.eq(following), here.eq(following)]
            with m.Elif(loops["ky"]):
                m.d.sync += here.eq(block)
            with m.Else():
                m.d.sync += here.eq(following)
        weight = Signal.like(self.weight, reset_less=True)
        m.d.sync += weight.eq(here)
        m.d.comb += self.weight.eq(weight)
