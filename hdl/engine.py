"""The engine: memories, sequencer, address generator, lanes, post-processing and write-back."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .address import AddressGenerator
from .config import EngineConfig
from .delay import delay
from .isa import LAYER_CYCLES_LIMIT, Op
from .lanes import Lanes
from .memories import ActivationMemory, ByteMemory, SingleByteMemory
from .post import Post
from .sequencer import Sequencer
from .writeback import WriteBack

__all__ = ["READ_DECISION", "READ_LATENCY", "Engine", "Space"]

# Cycles from ``read_en`` to ``read_data``, and to ``read_ready``.
READ_LATENCY = ActivationMemory.SKIP_LATENCY
READ_DECISION = ActivationMemory.HOST_DECISION


class Space:
    """Memories that the host writes; the numbers are those of the link's LOAD frame."""

    ACT = 0
    WGHT = 1
    PARM = 2
    TABL = 3
    ADDT = 4
    INST = 5


class Engine(wiring.Component):
    """Runs a program of layers out of its own memories.

    A stall-free pipeline of fixed latency: see ``hdl/isa.py`` for what an instruction does and for
    the closed form of the cycles it takes. The host writes memories a byte a cycle and reads
    activation words. While :attr:`busy`, it may do so in activation memory alone, and waits there
    for the engine, never the other way round: a write for a cycle in which the engine writes
    nothing, a read for one in which it does not read that bank, at the latest for the end of the
    layer that does; what it may touch then is what no layer of the runs at hand does.

    A run may be queued behind the one at hand. It follows without a gap: its first layer starts
    after the last of the one before as if both were of one run.

    Parameters
    ----------
    config : EngineConfig
        What is generated.
    cycles_limit : int
        A layer that takes as many cycles is an error; a power of two.

    Members
    -------
    write_en, write_space, write_addr, write_byte, write_data : In
        One byte into byte ``write_byte`` (little-endian) of word ``write_addr`` of a
        :class:`Space`. Words: ACT ``word_bytes``, WGHT ``lanes * simd``, PARM
        ``requantisers * 8``, TABL 1, ADDT 8 (int32 Ta, int32 Tb), INST 64 bytes. Back to back
        every cycle is fine as long as ``write_ready``.
    write_ready, write_idle : Out(1)
        The byte is taken in this cycle; no byte waits for its turn.
    read_en, read_addr : In
        Read word ``read_addr`` of the activation memory.
    read_ready : Out(1)
        The read of :data:`READ_DECISION` cycles ago was done; otherwise ask again.
    read_data : Out(word_bytes * 8)
        That word, :data:`READ_LATENCY` cycles after ``read_en``; one read a cycle.
    start, first, count : In
        Pulse ``start`` to run ``count`` instructions from ``first`` (0: up to END); while
        ``busy``, behind the run at hand. Ignored if there is one waiting already.
    busy, done : Out
        ``busy`` from the cycle after ``start``; ``done`` pulses in the cycle after the last byte is
        in memory (or an error was found), with ``busy`` low unless another run followed.
    cycles : Out(32)
        Cycles from the start pulse to the last byte written; of a run that was queued in time, from
        the last byte of the run before to its own: the interval of a stream. Set with ``done``,
        kept until the next.
    error : Out(1)
        Valid with ``done`` and until the next; a run that waits is dropped then: an invalid
        instruction, a run past the instruction memory, an ``idle`` too small or an ``early`` too
        large for the pipeline, or a layer that did not finish in its bound.
    layer : Out(16)
        Index of the instruction being run; that of the culprit when ``error`` is set.
    counter_addr : In(8)
        Instruction whose counters ``counter_data`` shows two cycles later.
    counter_data : Out(96)
        ``Cat(cycles32, busy32, stalls32)`` of that instruction's last run, 0 if it has not run
        since ``clear``: cycles of the layer, slices issued, idle issue cycles.
    clear : In(1)
        Stops whatever runs, zeroes counters and ``error``, in the cycle after; memories keep their
        contents. ``start`` in this cycle or the next is ignored.
    """

    def __init__(self, config: EngineConfig, *, cycles_limit: int = LAYER_CYCLES_LIMIT):
        self.config = config
        self.cycles_limit = cycles_limit
        super().__init__({
            "write_en": In(1),
            "write_space": In(3),
            "write_addr": In(16),
            "write_byte": In(8),
            "write_data": In(8),
            "write_ready": Out(1),
            "write_idle": Out(1),
            "read_en": In(1),
            "read_addr": In(16),
            "read_ready": Out(1),
            "read_data": Out(config.word_bytes * 8),
            "start": In(1),
            "first": In(16),
            "count": In(16),
            "busy": Out(1),
            "done": Out(1),
            "cycles": Out(32),
            "error": Out(1),
            "layer": Out(16),
            "counter_addr": In(8),
            "counter_data": Out(96),
            "clear": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        config = self.config

        m.submodules.sequencer = sequencer = Sequencer(config, self.cycles_limit)
        flushed = ResetInserter(sequencer.flush)
        # The host writes weights only while nothing runs: one port is enough.
        kind = SingleByteMemory if config.weight_spram else ByteMemory
        weights = kind(config.weight_word_bytes, config.weight_words, config.compact,
                       far=not config.compact)
        params = ByteMemory(config.requantisers * 8, config.param_words, config.compact)
        # Weights need no bank multiplexer's register and come later than their slice.
        to_lanes = ActivationMemory.LATENCY
        lanes = Lanes(config)
        to_weights = to_lanes + lanes.weight_lag - weights.latency
        address = AddressGenerator(config, to_weights + 1 if config.compact else 0)
        post = Post(config)
        writeback = WriteBack(config)
        m.submodules.address = flushed(address)
        m.submodules.lanes = flushed(lanes)
        m.submodules.post = flushed(post)
        m.submodules.writeback = flushed(writeback)
        m.submodules.activation_memory = activations = ActivationMemory(config)
        m.submodules.weight_memory = weights
        m.submodules.param_memory = params

        # Control of a run, and its counters.
        for name in ("start", "first", "count", "counter_addr", "clear"):
            m.d.comb += getattr(sequencer, name).eq(getattr(self, name))
        for name in ("busy", "done", "cycles", "error", "counter_data"):
            m.d.comb += getattr(self, name).eq(getattr(sequencer, name))
        m.d.comb += [
            self.layer.eq(sequencer.layer_index),
            sequencer.issuing.eq(address.issuing),
            sequencer.idling.eq(address.idling),
            sequencer.issued.eq(address.finish),
            sequencer.finish.eq(writeback.finish),
            sequencer.overrun.eq(writeback.overrun),
            sequencer.ended.eq(address.last),
            address.instruction.eq(sequencer.instruction),
            address.load.eq(sequencer.armed),
            address.go.eq(sequencer.go),
        ]

        # The host's writes, one register from the port to the memories; another for a byte that
        # comes while the first waits, so that `write_ready` depends on nothing of this cycle.
        # Compact engines have neither.
        coming = Cat(self.write_space, self.write_addr, self.write_byte, self.write_data)
        spare = Signal.like(coming, reset_less=True)
        at_hand = coming if config.compact else Signal.like(coming, reset_less=True)
        has_spare = Signal()
        write_en = self.write_en if config.compact else Signal()
        space, write_addr = at_hand[:3], at_hand[3:19]
        write_byte, write_data = at_hand[19:27], at_hand[27:]
        is_act = Signal()  # `at_hand` goes into activation memory
        moves = Signal()
        m.d.comb += [
            is_act.eq(write_en & (space == Space.ACT)),
            moves.eq(~is_act | (writeback.host_ready & ~sequencer.flush)),
            self.write_ready.eq(moves if config.compact else ~has_spare),
            self.write_idle.eq(~write_en & ~has_spare),
        ]
        if not config.compact:
            with m.If(~has_spare):
                m.d.sync += spare.eq(coming)
            with m.If(moves):
                m.d.sync += [
                    at_hand.eq(Mux(has_spare, spare, coming)),
                    write_en.eq(has_spare | self.write_en),
                    has_spare.eq(0),
                ]
            with m.Elif(~has_spare):
                m.d.sync += has_spare.eq(self.write_en)
        # Another register towards the memories that only the host writes: the bus is long and feeds
        # many. A compact engine's is short.
        bus = Signal(len(coming) - 3, reset_less=True)
        domain = m.d.comb if config.compact else m.d.sync
        domain += bus.eq(at_hand[3:])
        targets = {
            Space.WGHT: (weights, "write_en"), Space.PARM: (params, "write_en"),
            Space.INST: (sequencer, "write_en"),
            Space.TABL: (post, "write_table"), Space.ADDT: (post, "write_addend"),
        }
        for number, (target, name) in targets.items():
            enable = getattr(target, name)
            domain += enable.eq(write_en & (space == number))
        for target in (weights, params, sequencer, post):
            m.d.comb += [
                target.write_addr.eq(bus[:16]),
                target.write_byte.eq(bus[16:24]),
                target.write_data.eq(bus[24:]),
            ]
        m.d.comb += [
            writeback.host_en.eq(is_act & ~sequencer.flush),
            writeback.host_addr.eq(write_addr),
            writeback.host_byte.eq(write_byte),
            writeback.host_data.eq(write_data),
        ]

        # Source words, and the host's.
        m.d.comb += [
            activations.read_bank.eq(address.bank),
            activations.read_addr.eq(address.addr),
            activations.host_en.eq(self.read_en),
            activations.host_addr.eq(self.read_addr),
            self.read_ready.eq(activations.host_ready),
            self.read_data.eq(activations.skip_data),
        ]

        # A slice and its tags reach the lanes together; the address generator's outputs are one
        # cycle younger than the slice.
        layer = sequencer.layer
        tail = sequencer.tail
        m.d.comb += [
            weights.read_addr.eq(
                delay(m, address.weight, 0 if config.compact else to_weights, "weight")),
            lanes.weights.eq(weights.read_data),
            lanes.word.eq(activations.read_data),
            lanes.part.eq(delay(m, address.part, to_lanes, "part")),
            lanes.valid.eq(delay(m, address.valid, to_lanes, "valid")),
            lanes.pad.eq(delay(m, address.pad, to_lanes, "pad")),
            lanes.blind.eq(delay(m, address.blind, to_lanes, "blind")),
            lanes.first.eq(delay(m, address.first, to_lanes, "first")),
        ]
        # The layer's fields keep step with its first slice, which is issued as they change: the
        # slices ahead of it are still of the layer before. Behind a serial requantiser there are
        # none: the drain is far longer.
        to_fields = 0 if config.compact else 2 + to_lanes
        to_sums = 0 if config.compact else to_fields + lanes.sum_lag - 1
        fields = Cat(layer.op == Op.LANE, layer.window, layer.x_unsigned, layer.zp_x)
        m.d.comb += [
            Cat(lanes.is_lane, lanes.window, lanes.x_unsigned, lanes.zp_x).eq(
                delay(m, fields, to_fields, "fields")),
            lanes.acc_max.eq(delay(m, layer.acc_max, to_sums, "acc_max")),
        ]

        # A pixel's end reaches write-back so that the first beat's parameters meet its sums.
        to_writeback = to_lanes + lanes.latency - writeback.lead
        ends = Cat(address.last, address.row_last, address.block_last, address.layer_last)
        early = delay(m, ends, to_lanes, "ends", reset=sequencer.flush)
        late = delay(m, early, to_writeback - to_lanes, "late_ends", reset=sequencer.flush)
        m.d.comb += [
            lanes.last.eq(early[0]),
            Cat(writeback.last, writeback.row_last, writeback.block_last,
                writeback.layer_last).eq(late),
            writeback.begin.eq(sequencer.begin),
        ]
        for name in ("dst", "src2", "params", "out_pixel_words", "out_row_gap", "has_add",
                     "has_mul", "has_table"):
            m.d.comb += getattr(writeback, name).eq(tail[name])

        m.d.comb += [
            params.read_addr.eq(writeback.param_addr),
            post.i_valid.eq(writeback.post_valid),
            lanes.taken.eq(writeback.post_valid),
            post.i_sums.eq(lanes.sums),
            post.i_params.eq(params.read_data),
            post.skip.eq(writeback.post_skip),
            post.addend_index.eq(tail.addend),
            post.table_index.eq(tail.table),
            writeback.post_bytes.eq(post.o_bytes),
            activations.skip_en.eq(writeback.skip_en),
            activations.skip_addr.eq(writeback.skip_addr),
            writeback.skip_word.eq(activations.skip_data),
            activations.write_en.eq(writeback.write_en),
            activations.write_addr.eq(writeback.write_addr),
            activations.write_data.eq(writeback.write_data),
        ]
        for name in ("zp_y", "lo", "hi", "zp_a", "lo_a", "hi_a", "has_add", "has_mul",
                     "has_table"):
            m.d.comb += getattr(post, name).eq(tail[name])
        return m
