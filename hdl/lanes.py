"""Lanes: operands, multipliers, adder trees, accumulators and the capture of finished sums."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from .delay import delay
from .latency import operand_latency

__all__ = ["Lanes"]

_ROWS = 3  # of a window's kernel


class Lanes(wiring.Component):
    """``lanes`` dot products of ``simd`` bytes a cycle, accumulated over a pixel's slices.

    A pixel's slices come back to back. A slice whose ``last`` is set in cycle t ends its pixel:
    channels ``beat * R ... beat * R + R - 1`` of the sums are on ``sums`` in cycle
    t + :attr:`latency` + beat. The next pixel may end ``beats`` cycles later. With a serial
    requantiser the next channel's sum comes in the cycle after ``taken``.

    The multipliers are written out here, registered on both sides as a DSP block does at no cost:
    a component for each would make elaboration and the Verilog several times as large.

    Parameters
    ----------
    config : EngineConfig
        ``lanes``, ``simd``, ``requantisers`` and ``word_bytes`` are used.

    Attributes
    ----------
    latency : int
        Cycles from the last slice to the first sums: operand (2), multiplier (2), one for each
        level of the adder tree, accumulator, capture.
    weight_lag : int
        Cycles from a slice's word to its weights on ``weights``.
    sum_lag : int
        Cycles from a slice to its total at the adder tree's root.

    Members
    -------
    word : In(word_bytes * 8)
        Activation word of the slice.
    part : In
        Which part of it, see :class:`~trivet.hdl.address.AddressGenerator`.
    valid, pad, blind, first, last : In(1)
        There is a slice (window: its word counts as a column's); all bytes are ``zp_x``; the third
        taps are ``zp_x``; first and last slice of the pixel.
    weights : In(lanes * simd * 8)
        Weights of the slice, ``weight_lag`` cycles after ``word``.
    is_lane, window, x_unsigned, acc_max : In(1)
        Layer: lane l's first multiplier takes byte l; its second and third take what the first
        took 3 and 6 slices ago; bytes are unsigned; keep the maximum.
    zp_x : In(signed(9))
        Layer: what padding feeds.
    taken : In(1)
        Serial: ``sums`` are used in this cycle.
    sums : Out(32 * R)
        Sums of ``R`` channels.
    """

    def __init__(self, config):
        self.config = config
        self.weight_lag = operand_latency(config)
        self.sum_lag = self.weight_lag + 2 + exact_log2(config.simd)
        self.latency = self.sum_lag + 2
        parts = config.word_bytes // min(config.lanes, config.simd)
        super().__init__({
            "word": In(config.word_bytes * 8),
            "part": In(exact_log2(parts)),
            "valid": In(1),
            "pad": In(1),
            "blind": In(1),
            "first": In(1),
            "last": In(1),
            "weights": In(config.lanes * config.simd * 8),
            "is_lane": In(1),
            "window": In(1),
            "x_unsigned": In(1),
            "acc_max": In(1),
            "zp_x": In(signed(9)),
            "taken": In(1),
            "sums": Out(32 * config.requantisers),
        })

    def elaborate(self, platform):
        m = Module()
        config = self.config
        levels = exact_log2(config.simd)

        operands = self._operands(m)

        # What the accumulators do, from registers: the total replaces them, or may do.
        replaces = Signal(reset_less=True)
        moves = Signal(reset_less=True)
        # Tags: `load` a cycle before a pixel's first slice is at the adder tree's root, `done` with
        # its last slice in the accumulator.
        load = delay(m, self.first, self.sum_lag - 1, "first")
        done = delay(m, self.last, self.sum_lag + 1, "last")

        m.d.sync += [replaces.eq(load | self.acc_max), moves.eq(load | ~self.acc_max)]

        accumulators = []
        for lane in range(config.lanes):
            weights = self.weights.word_select(lane, config.simd * 8)
            terms = []
            for k in range(config.simd):
                terms.append(self._multiply(
                    m, operands[lane][k], weights.word_select(k, 8).as_signed(), f"{lane}_{k}"))
            for level in range(levels):
                sums = []
                for k in range(0, len(terms), 2):
                    node = Signal(signed(len(terms[k]) + 1), name=f"tree{level}_{lane}_{k // 2}",
                                  reset_less=True)
                    m.d.sync += node.eq(terms[k] + terms[k + 1])
                    sums.append(node)
                terms = sums
            total, = terms
            accumulator = Signal(signed(32), name=f"accumulator{lane}", reset_less=True)
            # A maximum never leaves the range of one total, so the comparison is that narrow.
            keep = accumulator[:len(total)].as_signed() > total
            with m.If(moves | ~keep):
                m.d.sync += accumulator.eq(Mux(replaces, total, accumulator + total))
            accumulators.append(accumulator)

        captured = Signal(32 * config.lanes, reset_less=True)
        onward = captured >> len(self.sums)
        if config.serial:
            onward = Mux(self.taken, onward, captured)
        m.d.sync += captured.eq(Mux(done, Cat(accumulators), onward))
        m.d.comb += self.sums.eq(captured)
        return m

    def _operands(self, m):
        """Registered operands: ``[lane][k]``, 9 bits signed; only the first may differ by lane.

        For windows the first three are taps of a shift register, one word a slice. The bytes are
        chosen a cycle before, near the memory, so that the way to all lanes has a cycle of its own.
        """
        config = self.config
        lane_part = C(0) if config.word_bytes == config.lanes else self.part
        dot_part = C(0) if config.word_bytes == config.simd else self.part

        def extend(byte):
            return Cat(byte, byte[7] & ~self.x_unsigned).as_signed()

        tags = Cat(self.valid, self.blind, self.is_lane, self.window, self.zp_x)
        ahead = self.weight_lag - 1
        later = delay(m, tags, ahead, "operand_tags")
        valid, blind, is_lane, window = later[:4]
        zp_x = later[4:].as_signed()

        def register(value, name):
            held = Signal(signed(9), name=f"operand_{name}", reset_less=True)
            with m.If(valid):
                m.d.sync += held.eq(value)
            return held

        def chosen(word, k, name):
            byte = Mux(self.pad, self.zp_x, extend(word.word_select(k, 8)))
            return delay(m, byte, ahead, f"{name}_byte{k}").as_signed()

        # LANE uses one multiplier a lane, or three; the others see zeros, whatever their weights.
        of_dot = self.word.word_select(dot_part, config.simd * 8)
        of_lane = self.word.word_select(lane_part, config.lanes * 8)
        dot_bytes = [chosen(of_dot, k, "dot") for k in range(config.simd)]
        lane_bytes = [chosen(of_lane, k, "lane") for k in range(config.lanes)]
        shared = [Mux(is_lane, 0, byte) for byte in dot_bytes]
        taps = 3 if config.has_window else 1
        rest = [register(shared[k], f"shared{k}") for k in range(taps, config.simd)]
        operands = []
        for lane in range(config.lanes):
            byte = Mux(is_lane, lane_bytes[lane], dot_bytes[0])
            own = [register(byte, f"lane{lane}")]
            for tap in range(1, taps):
                # The column before: as many slices ago as a window has rows.
                before = own[-1]
                for row in range(_ROWS - 1):
                    before = register(before, f"lane{lane}_before{tap}_{row}")
                if tap == 2:
                    before = Mux(blind, zp_x, before)
                own.append(register(Mux(window, before, shared[tap]), f"lane{lane}_tap{tap}"))
            operands.append([*own, *rest])
        return operands

    @staticmethod
    def _multiply(m, a, b, name):
        a_reg = Signal.like(a, name=f"a_{name}", reset_less=True)
        b_reg = Signal.like(b, name=f"b_{name}", reset_less=True)
        product = Signal(signed(17), name=f"product_{name}", reset_less=True)
        m.d.sync += [a_reg.eq(a), b_reg.eq(b), product.eq(a_reg * b_reg)]
        return product
