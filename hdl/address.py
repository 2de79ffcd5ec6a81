"""Loops of a layer: where each slice lies in activation and weight memory."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from .delay import delay
from .isa import Op
from .sequencer import instruction_layout

__all__ = ["AddressGenerator"]

# Bits of a row or column number: padding makes it as small as -255, which must stay apart from the
# largest real one, 65,535.
_COORDINATE = 17


class _Counter:
    """One loop. Whether this turn is the ``last``, or the next one is, are registers."""

    def __init__(self, m, name, iterations):
        self.iterations = iterations
        self.ahead = Signal(len(iterations), name=f"{name}_ahead", reset_less=True)  # turn + 2
        self.last = Signal(name=f"{name}_last", reset_less=True)
        self.next_last = Signal(name=f"{name}_next_last", reset_less=True)
        self.is_single = iterations == 1
        self.is_double = iterations == 2
        self.single = Signal(name=f"{name}_single", reset_less=True)
        self.double = Signal(name=f"{name}_double", reset_less=True)
        m.d.sync += [self.single.eq(self.is_single), self.double.eq(self.is_double)]

    def move(self, m, load, advance, wrap):
        """``advance`` goes to the next turn; ``wrap`` (with it) says that this one was the last."""
        with m.If(load):
            m.d.sync += [
                self.ahead.eq(3), self.last.eq(self.is_single), self.next_last.eq(self.is_double),
            ]
        with m.Elif(wrap):
            m.d.sync += [
                self.ahead.eq(3), self.last.eq(self.single), self.next_last.eq(self.double),
            ]
        with m.Elif(advance):
            m.d.sync += [
                self.ahead.eq(self.ahead + 1), self.last.eq(self.next_last),
                self.next_last.eq(self.ahead == self.iterations),
            ]


class _Nest:
    """Loops, innermost first: one ``ends`` when it and all inside it are in their last turn.

    That flag of each loop is a register of its own, worked out a step ahead: a chain of carries
    from loop to loop would be the engine's longest path. A step in which the loops up to j end
    starts these again, puts loop j + 1 into its next turn and leaves the others alone.
    """

    def __init__(self, m, counts, load, step):
        names = list(counts)
        counters = [_Counter(m, name, count) for name, count in counts.items()]
        carry = [Signal(name=f"{name}_carry", reset_less=True) for name in names]
        for n, counter in enumerate(counters):
            inside = step & carry[n - 1] if n else step
            counter.move(m, load, inside, step & carry[n])
            # By the outermost loop that ends, j, from outside in.
            ahead = self._all(c.single for c in counters[:n + 1])
            after = Mux(carry[n], ahead, 0)
            for j in reversed(range(-1, n)):
                turn = self._all([
                    *(c.single for c in counters[:j + 1]), counters[j + 1].next_last,
                    *(c.last for c in counters[j + 2:n + 1]),
                ])
                is_j = ~carry[j + 1] & (carry[j] if j >= 0 else 1)
                after |= Mux(is_j, turn, 0)
            with m.If(load):
                m.d.sync += carry[n].eq(self._all(c.is_single for c in counters[:n + 1]))
            with m.Elif(step):
                m.d.sync += carry[n].eq(after)
        self.carry = dict(zip(names, carry, strict=True))
        self.ends = {name: step & flag for name, flag in self.carry.items()}

    @staticmethod
    def _all(flags):
        return Cat(*flags).all()


class _Chain:
    """The same of a chain from loop to loop, with few registers: for small engines, slow clocks."""

    def __init__(self, m, counts, load, step):
        self.ends, self.carry = {}, {}
        ends, carry = step, C(1)
        for name, count in counts.items():
            last = _count(m, name, count, load, ends)
            self.carry[name] = carry = carry & last
            self.ends[name] = ends = ends & last


def _count(m, name, iterations, load, advance):
    """Turns of a loop, from 1; returns whether this is the last."""
    turn = Signal(len(iterations), name=f"{name}_turn", reset_less=True)
    last = Signal(name=f"{name}_last")
    m.d.comb += last.eq(turn == iterations)
    with m.If(load | (advance & last)):
        m.d.sync += turn.eq(1)
    with m.Elif(advance):
        m.d.sync += turn.eq(turn + 1)
    return last


class AddressGenerator(wiring.Component):
    """Issues a layer's slices, one a cycle, in the order that ``hdl/isa.py`` defines.

    ``load`` sets the loops to the start of ``instruction`` (repeating it does no harm), ``go``
    issues the first slice in the next cycle; both may come in the same cycle. What a slice issued
    in cycle t needs is on the outputs in cycle t + 2: the loops tell in t which of them end, and
    the sums move in t + 1. Addresses are running sums modulo 2^16.

    Parameters
    ----------
    config : EngineConfig
        ``lanes``, ``simd`` and ``word_bytes`` are used.
    weight_lag : int
        See ``weight``.

    Members
    -------
    instruction : In(instruction_layout())
        The layer; constant from ``load`` to the cycle after ``finish``.
    load, go : In(1)
        See above.
    issuing, idling : Out(1)
        A slice is issued in this cycle; an idle cycle between pixels.
    finish : Out(1)
        The layer's last slice is issued in this cycle.
    addr : Out(16)
        Activation word.
    bank : Out(act_banks)
        With a slice: the bank it lies in, one-hot.
    part : Out
        Which ``simd`` (DOT) or ``lanes`` (LANE) bytes of it, where a word holds several.
    valid : Out(1)
        A slice was issued: not an idle cycle.
    pad : Out(1)
        The slice lies outside the input.
    blind : Out(1)
        Window: what lies two columns before is left of the image.
    weight : Out(16)
        Weight word; with ``weight_lag`` n it comes n - 1 cycles after the others (0: with them).
    first, last : Out(1)
        First and last slice of a pixel (window: of a column; ``last`` of those with a result).
    row_last, block_last, layer_last : Out(1)
        With ``last``: the last pixel of a row; of a block; of the layer.
    """

    def __init__(self, config, weight_lag=0):
        self.config = config
        self.weight_lag = weight_lag
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
            "bank": Out(config.act_banks),
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

        step = Signal()  # a slice is issued
        idle = Signal()
        m.d.comb += [self.issuing.eq(step), self.idling.eq(idle)]

        # The lanes do a window's loop over kernel columns.
        window = i.window if self.config.has_window else C(0)
        counts = {
            "slice": i.c_slices, "kx": Mux(window, 1, i.kernel_w), "ky": i.kernel_h,
            "ox": i.columns, "oy": i.out_h, "block": i.blocks,
        }
        compact = self.config.compact
        if compact:
            bits = {"slice": "c_slices", "ox": "columns", "oy": "out_h", "block": "blocks"}
            counts = {name: count[:self.config.field_bits(bits[name])] if name in bits else count
                      for name, count in counts.items()}
        nest = (_Chain if compact else _Nest)(m, counts, self.load, step)
        loops = nest.ends
        m.d.comb += self.finish.eq(loops["block"])

        has_result = self._results(m, loops, window)
        if compact:
            pause_last = _count(m, "idle", i.idle, self.load, idle)
        else:
            pause = _Counter(m, "idle", i.idle)
            pause.move(m, self.load, idle, idle & pause.last)
            pause_last = pause.last
        has_idle = Signal(reset_less=True)
        m.d.sync += has_idle.eq(i.idle != 0)
        with m.If(loops["block"]):
            m.d.sync += step.eq(0)
        with m.Elif(loops["ky"]):
            pauses = has_idle & has_result & ~(window & nest.carry["ox"])
            m.d.sync += [step.eq(~pauses), idle.eq(pauses)]
        with m.Elif(idle & pause_last):
            m.d.sync += [step.eq(1), idle.eq(0)]
        with m.If(self.go):
            m.d.sync += step.eq(1)

        # A register between the loops and all that follows them, so that neither waits for the
        # other within a cycle. Of the loops that end only the outermost moves an address: `turns`
        # are one-hot; `starts` sets all sums to a layer's or a block's first slice.
        load = Signal(name="walk_load", reset_less=True)
        walk = Signal(name="walk_step")
        starts = Signal(reset_less=True)
        stays = Signal(reset_less=True)
        m.d.sync += [
            load.eq(self.load), walk.eq(step), starts.eq(self.load | loops["oy"]),
            stays.eq(~(self.load | loops["slice"])),
        ]
        turns = {}
        for name, outer in (("slice", "kx"), ("kx", "ky"), ("ky", "ox"), ("ox", "oy")):
            turn = turns[name] = Signal(name=f"{name}_turn")
            m.d.sync += turn.eq(loops[name] & ~nest.carry[outer])
        ends = {name: Signal(name=f"{name}_end") for name in ("slice", "ky", "ox", "oy", "block")}
        m.d.sync += [flag.eq(loops[name]) for name, flag in ends.items()]
        self._walk_input(m, turns, ends, starts, stays, load, walk, window)
        self._walk_weights(m, ends, load, walk)

        fresh = Signal(reset_less=True)
        with m.If(load | ends["ky"]):
            m.d.sync += fresh.eq(1)
        with m.Elif(walk):
            m.d.sync += fresh.eq(0)
        completes = Signal()
        valid = Signal(reset_less=True)
        first = Signal(reset_less=True)
        last = Signal()
        row_last = Signal()
        block_last = Signal()
        layer_last = Signal()
        m.d.sync += [
            completes.eq(loops["ky"] & has_result),
            valid.eq(walk),
            first.eq(fresh),
            last.eq(completes),
            row_last.eq(ends["ox"]),
            block_last.eq(ends["oy"]),
            layer_last.eq(ends["block"]),
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
        turn_head = Signal(reset_less=True)
        blind = Signal(reset_less=True)
        m.d.sync += [turn_head.eq(head), blind.eq(turn_head & (i.prime == 1))]
        m.d.comb += self.blind.eq(blind)
        return has_result

    def _walk_input(self, m, turns, ends, starts, stays, load, step, window):
        """Address, padding and part of the slice, by one running sum for each loop."""
        i = self.instruction
        bits = self.config.address_bits
        coordinate = _COORDINATE
        if self.config.compact:
            coordinate = max(self.config.field_bits("in_h"), 9) + 1
        row, pixel, ky, kx = (Signal(bits, name=f"base_{n}", reset_less=True)
                              for n in ("row", "pixel", "ky", "kx"))
        y_row, y, x_pixel, x = (Signal(coordinate, name=n, reset_less=True)
                                for n in ("y_row", "y", "x_pixel", "x"))
        # Slice (DOT) or block (LANE) within the pixel.
        channel = Signal(self.config.field_bits("blocks"), reset_less=True)

        # Which loop turns is one-hot, so the new value is an OR of what each of them sets.
        def move(target, **values):
            if self.config.compact:
                # A chain of choices takes fewer LUTs.
                with m.If(starts):
                    m.d.sync += target.eq(values.pop("start"))
                for name, value in values.items():
                    if value is not target:
                        with m.Elif(turns[name]):
                            m.d.sync += target.eq(value)
                return
            chosen = Mux(stays, target, 0)
            for name, value in values.items():
                turn = starts if name == "start" else turns[name]
                chosen |= Mux(turn, value[:len(target)], 0)
            m.d.sync += target.eq(chosen)

        left = Signal(signed(coordinate))
        m.d.comb += left.eq(Mux(window, 0, -i.pad_left))
        top = Signal(signed(coordinate))
        m.d.comb += top.eq(-i.pad_top)
        next_row, next_y = row + i.step_y, y_row + i.stride_h
        next_pixel, next_x = pixel + i.step_x, x_pixel + Mux(window, 1, i.stride_w)
        next_ky = ky + i.step_ky
        move(row, start=i.origin, ox=next_row, ky=row, kx=row, slice=row)
        move(pixel, start=i.origin, ox=next_row, ky=next_pixel, kx=pixel, slice=pixel)
        move(ky, start=i.origin, ox=next_row, ky=next_pixel, kx=next_ky, slice=ky)
        move(kx, start=i.origin, ox=next_row, ky=next_pixel, kx=next_ky, slice=kx + i.step_kx)
        move(y_row, start=top, ox=next_y, ky=y_row, kx=y_row, slice=y_row)
        move(y, start=top, ox=next_y, ky=y_row, kx=y + i.dilation_h, slice=y)
        move(x_pixel, start=left, ox=left, ky=next_x, kx=x_pixel, slice=x_pixel)
        move(x, start=left, ox=left, ky=next_x, kx=x_pixel, slice=x + i.dilation_w)

        is_lane = i.op == Op.LANE
        with m.If(load):
            m.d.sync += channel.eq(0)
        with m.Elif(step):
            onward = Mux(is_lane, ends["oy"], 1)
            m.d.sync += channel.eq(Mux(~is_lane & ends["slice"], 0, channel + onward))

        word = Mux(is_lane, channel[self.part_bits[Op.LANE]:], channel[self.part_bits[Op.DOT]:])
        addr = Signal.like(self.addr, reset_less=True)
        part = Signal.like(self.part, reset_less=True)
        pad = Signal(reset_less=True)
        bank = Signal.like(self.bank)
        address = (kx + word)[:bits]
        # Of the banks that there are; the engine addresses no other.
        which = address[exact_log2(self.config.act_bank_words):]
        m.d.sync += [
            bank.eq(Mux(step, Cat(which == k for k in range(self.config.act_banks)), 0)),
            addr.eq(address),
            part.eq(channel),
            # A negative coordinate is a large one here.
            pad.eq((y >= i.in_h) | (x >= i.in_w)),
        ]
        m.d.comb += [
            self.addr.eq(addr), self.bank.eq(bank), self.part.eq(part), self.pad.eq(pad),
        ]

    def _walk_weights(self, m, ends, load, step):
        """Weight words follow one another; each pixel of a block starts again at the block's."""
        i = self.instruction
        bits = self.config.field_bits("weights")
        block = Signal(bits, name="weight_block", reset_less=True)
        here = Signal(bits, name="weight_here", reset_less=True)
        following = here + 1
        # A compact engine walks as late as the memory wants the address, instead of keeping that.
        flags = Cat(load, step & ~i.weight_hold, ends["oy"], ends["ky"])
        load, moves, ends_block, ends_pixel = delay(m, flags, self.weight_lag, "weight_walk")
        with m.If(load):
            m.d.sync += [block.eq(i.weights), here.eq(i.weights)]
        with m.Elif(moves):
            with m.If(ends_block):
                m.d.sync += [block.eq(following), here.eq(following)]
            with m.Elif(ends_pixel):
                m.d.sync += here.eq(block)
            with m.Else():
                m.d.sync += here.eq(following)
        if self.weight_lag:
            m.d.comb += self.weight.eq(here)
        else:
            weight = Signal.like(self.weight, reset_less=True)
            m.d.sync += weight.eq(here)
            m.d.comb += self.weight.eq(weight)
