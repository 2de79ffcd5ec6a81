"""Sequencer: fetches instructions, starts layers, counts cycles, guards against hangs."""

from amaranth import *
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from .isa import FIELDS, INSTRUCTION_BYTES, Instruction, Op, drain_cycles
from .memories import ByteMemory

__all__ = ["COUNTERS", "Sequencer", "instruction_layout"]

_COUNTS = ("blocks", "out_h", "columns", "kernel_h", "kernel_w", "c_slices")

COUNTERS = data.StructLayout({"cycles": 32, "busy": 32, "stalls": 32})


def instruction_layout():
    """The bits of an instruction, from the one definition in ``hdl/isa.py``."""
    fields = {f.name: signed(f.bits) if f.signed else unsigned(f.bits) for f in FIELDS}
    fields["unused"] = INSTRUCTION_BYTES * 8 - sum(f.bits for f in FIELDS)
    return data.StructLayout(fields)


class Sequencer(wiring.Component):
    """Runs instructions one after another.

    The next instruction is fetched while a layer runs, and its loops are set while the layer
    drains; so a layer's first slice is issued in the very cycle in which the last byte of the
    layer before is written, and read in the cycle after.

    If the instruction says so (``early``), it starts some cycles before.

    A run started while another is at hand waits in a slot. When the fetch meets the end of the run
    at hand, it goes on with the first instruction of the one that waits, which so starts like any
    layer after a layer; ``done`` is reported for the first run when its last layer has finished.

    ``armed`` says that ``instruction`` is a layer ready to start (the address generator loads its
    loops as long as it is); ``go`` starts it. ``layer`` is a copy for the lanes that stays until
    the layer after it starts, ``tail`` one for all behind them that stays until its last byte is
    written; so there may be three layers in the engine, one being fetched.

    Parameters
    ----------
    config : EngineConfig
        ``instructions`` is used.
    cycles_limit : int
        A layer that takes as many cycles is an error; a power of two.

    Members
    -------
    start, first, count, busy, done, cycles, error, layer_index, counter_addr, counter_data, clear
        As in :class:`~trivet.hdl.engine.Engine`.
    write_en, write_addr, write_byte, write_data : In
        The host's writes into the instruction memory.
    instruction, layer, tail : Out(instruction_layout())
        See above.
    armed, go : Out(1)
        See above.
    begin : Out(1)
        First cycle in which ``tail`` is this layer.
    issuing, idling, issued : In(1)
        From the address generator; ``issued``: the last slice is being issued.
    finish : In(1)
        The layer's last bytes are written in the next cycle.
    overrun : In(1)
        The instruction's ``idle`` is too small.
    ended : In(1)
        The last slice of a pixel was issued in the cycle before; while the layer before is not
        done, that is an error: the instruction's ``early`` is too large.
    flush : Out(1)
        Empty the pipeline; a register. ``clear`` flushes in the cycle after.
    """

    def __init__(self, config, cycles_limit):
        self.config = config
        self.cycles_limit = cycles_limit
        # Of an instruction's index, or of the first one behind the memory.
        self.index_bits = config.instructions.bit_length() if config.compact else 16
        super().__init__({
            "start": In(1),
            "first": In(16),
            "count": In(16),
            "busy": Out(1),
            "done": Out(1),
            "cycles": Out(32),
            "error": Out(1),
            "layer_index": Out(16),
            "counter_addr": In(8),
            "counter_data": Out(COUNTERS.size),
            "clear": In(1),
            "write_en": In(1),
            "write_addr": In(16),
            "write_byte": In(8),
            "write_data": In(8),
            "instruction": Out(instruction_layout()),
            "layer": Out(instruction_layout()),
            "tail": Out(instruction_layout()),
            "armed": Out(1),
            "go": Out(1),
            "begin": Out(1),
            "issuing": In(1),
            "idling": In(1),
            "issued": In(1),
            "finish": In(1),
            "overrun": In(1),
            "ended": In(1),
            "flush": Out(1),
        })

    def elaborate(self, platform):
        if self.config.instructions > 256:
            raise ValueError(f"engine: instructions is {self.config.instructions}, must be at most "
                             f"256, the range of counter_addr")
        m = Module()

        clear = Signal()
        m.d.sync += clear.eq(self.clear)
        flush = Signal()
        m.d.comb += self.flush.eq(flush)
        busy = Signal()
        done = Signal()
        error = Signal()
        elapsed_run = Signal(32)
        cycles = Signal(32)
        m.d.comb += [
            self.busy.eq(busy), self.done.eq(done), self.error.eq(error),
            # Without a run behind it the count stands still when the run is done.
            self.cycles.eq(elapsed_run if self.config.compact else cycles),
        ]

        # The run that waits, and the one that begins: that, or the one just asked for.
        waits = Signal()
        waiting_first = Signal(16, reset_less=True)
        waiting_count = Signal(16, reset_less=True)
        begin_run = Signal()  # at rest
        chain = Signal()      # behind the run at hand: its end was met
        run_first = Signal(16)
        run_count = Signal(16)
        m.d.comb += [
            begin_run.eq((self.start | waits) & ~busy & ~clear),
            run_first.eq(Mux(waits, waiting_first, self.first)),
            run_count.eq(Mux(waits, waiting_count, self.count)),
        ]
        queues = C(not self.config.compact)
        with m.If(self.start & busy & ~waits & queues):
            m.d.sync += [
                waits.eq(1), waiting_first.eq(self.first), waiting_count.eq(self.count),
            ]
        with m.If(begin_run | chain):
            m.d.sync += waits.eq(0)

        # The instruction to come: `following` from memory, `instruction` in the address generator.
        take = Signal()
        following, is_valid, is_beyond, index_following = self._fetch(
            m, begin_run | chain, run_first, take)
        # What it is, from registers: it is valid in the cycle after its last piece came.
        ends = Signal(reset_less=True)
        is_wrong = Signal(reset_less=True)
        m.d.sync += [ends.eq(following.op == Op.END), is_wrong.eq(self._invalid(following))]
        # A compact engine has `following` alone, which stays until the last slice is issued.
        compact = self.config.compact
        instruction = following if compact else Signal(instruction_layout(), reset_less=True)
        index = Signal(self.index_bits, reset_less=True)
        m.d.comb += self.instruction.eq(instruction)
        held = Signal()  # `instruction` waits for its turn
        is_end = Signal()
        is_invalid = Signal()
        bounded = Signal()
        left = Signal(16)
        exhausted = Signal()  # `bounded`, and nothing left

        layer = Signal(instruction_layout(), reset_less=True)
        active = Signal()  # a layer is on its way, from its first slice to its last byte
        free = Signal()
        m.d.comb += [
            free.eq(~active | self._is_time(m, layer, take, following.early)),
            self.armed.eq(held & ~is_end & ~is_invalid),
            self.go.eq(self.armed & free),
        ]
        loading = Signal()  # the address generator has no more use for `instruction`

        # The next run's instructions pass the same stations: `following` is of the next run,
        # `instruction` (and `layer`, once it started) is. The run at hand is over when no layer of
        # it is left: neither to be issued nor on its way.
        owed = Signal()  # the end of the run at hand has not been reported, though the next is here
        is_fresh = Signal()
        has_taken = Signal()
        has_begun = Signal()
        is_over = Signal()
        overlapping = Signal()
        # A compact engine fetches into the instruction that the address generator uses.
        is_free = (loading | (held & is_end)) if compact else C(1)
        m.d.comb += [
            is_over.eq(owed & ((is_fresh & loading) | has_taken)
                       & ~Mux(has_begun, overlapping, active)),
            # Its end: waiting for its last layer, or counted, or in `following`.
            chain.eq(busy & waits & ~owed & is_free & Mux(held & is_end, active, exhausted | (
                is_valid & ends & ~is_beyond))),
        ]
        with m.If(is_over):
            m.d.sync += [owed.eq(0), has_taken.eq(0), has_begun.eq(0)]
        with m.If(take & is_fresh):
            m.d.sync += [is_fresh.eq(0), has_taken.eq(owed & ~is_over)]
        with m.If(self.go & has_taken & ~is_over):
            m.d.sync += has_begun.eq(1)

        m.d.comb += take.eq(loading & is_valid & ~exhausted & ~chain)
        if not compact:
            # Over and over until it is taken: the enable of so many registers is one itself.
            with m.If(loading):
                m.d.sync += instruction.eq(following)
        with m.If(take):
            m.d.sync += [
                is_end.eq(ends & ~is_beyond),
                is_invalid.eq(is_beyond | is_wrong),
                held.eq(1),
                loading.eq(0),
                left.eq(left - 1),
                exhausted.eq(bounded & (left == 1)),
                index.eq(index_following),
            ]
        with m.Elif(loading & exhausted & ~chain):
            m.d.sync += [is_end.eq(1), is_invalid.eq(0), held.eq(1), loading.eq(0)]
        with m.If(self.go):
            m.d.sync += held.eq(0)
        with m.If(self.issued):
            m.d.sync += loading.eq(1)

        # The running layer; `overlapping` while the one before it is not done.
        tail = Signal(instruction_layout(), reset_less=True)
        begun_index = Signal(self.index_bits, reset_less=True)
        layer_index = Signal(self.index_bits)
        waiting = Signal()  # `layer` has not become `tail` yet
        begin = Signal()
        m.d.comb += [
            self.layer.eq(layer), self.tail.eq(tail), self.layer_index.eq(layer_index),
            self.begin.eq(begin),
        ]
        with m.If(self.finish):
            m.d.sync += [overlapping.eq(0), active.eq(overlapping)]
        m.d.sync += begin.eq(0)
        # A compact engine keeps no copy of the whole layer: `instruction` stays until its last
        # slice is issued, and the layer before is done when its first pixel is complete.
        source = instruction if compact else layer
        with m.If(waiting & ~overlapping):
            m.d.sync += [tail.eq(source), layer_index.eq(begun_index), begin.eq(1), waiting.eq(0)]
        with m.If(self.go):
            m.d.sync += [
                layer.eq(instruction), begun_index.eq(index), waiting.eq(1),
                active.eq(1), overlapping.eq(active & ~self.finish),
            ]
        if compact and not self.config.counters:
            elapsed = elapsed_run  # the bound of a layer is one of the run
        else:
            elapsed = self._count(m, layer_index, active)

        # Ends of a run.
        stuck = active & elapsed[self.cycles_limit.bit_length() - 1]
        broken = held & is_invalid & ~active
        premature = self.ended & overlapping
        fault = Signal()
        fails = Signal()
        m.d.comb += fails.eq(busy & ~fault & (stuck | self.overrun | broken | premature))
        m.d.sync += [fault.eq(fails), flush.eq(fails | self.clear)]
        with m.If(busy & broken):
            m.d.sync += layer_index.eq(index)
        with m.Elif(busy & premature):
            m.d.sync += layer_index.eq(begun_index)
        m.d.sync += done.eq(0)
        with m.If(busy):
            m.d.sync += elapsed_run.eq(elapsed_run + 1)
        with m.If(busy & (fault | (held & is_end & ~active & ~owed))):
            m.d.sync += [busy.eq(0), done.eq(1), error.eq(fault), cycles.eq(elapsed_run + 1)]
        with m.Elif(is_over):
            m.d.sync += [done.eq(1), error.eq(0), cycles.eq(elapsed_run + 1), elapsed_run.eq(0)]
        with m.If(flush):
            m.d.sync += [
                held.eq(0), active.eq(0), overlapping.eq(0), waiting.eq(0), loading.eq(0),
                begin.eq(0), waits.eq(0), owed.eq(0), is_fresh.eq(0), has_taken.eq(0),
                has_begun.eq(0),
            ]
        with m.Elif(chain):
            m.d.sync += [owed.eq(1), is_fresh.eq(1)]
            with m.If(held & is_end):
                m.d.sync += [held.eq(0), loading.eq(1)]
        with m.If(begin_run):
            m.d.sync += [busy.eq(1), error.eq(0), elapsed_run.eq(0), held.eq(0), loading.eq(1)]
        with m.If(begin_run | chain):
            m.d.sync += [bounded.eq(run_count != 0), left.eq(run_count), exhausted.eq(0)]
        with m.If(clear):
            m.d.sync += [
                busy.eq(0), done.eq(0), error.eq(0), cycles.eq(0), fault.eq(0), elapsed_run.eq(0),
            ]
        return m

    def _fetch(self, m, begin_run, first, take):
        """Instruction after instruction from ``first``: value, valid, beyond the memory, index."""
        config = self.config
        width = config.fetch_bytes
        fetches = INSTRUCTION_BYTES // width
        code = ByteMemory(width, config.instructions * fetches, config.compact)
        m.submodules.instruction_memory = code
        piece_bits = fetches.bit_length() - 1
        byte_bits = width.bit_length() - 1
        m.d.comb += [
            code.write_en.eq(self.write_en),
            code.write_addr.eq(Cat(self.write_byte[byte_bits:][:piece_bits], self.write_addr)),
            code.write_byte.eq(self.write_byte[:byte_bits]),
            code.write_data.eq(self.write_data),
        ]

        where = Signal(self.index_bits, reset_less=True)
        piece = Signal(piece_bits)
        asking = Signal()
        final = piece == fetches - 1
        m.d.comb += code.read_addr.eq(Cat(piece, where))
        # Bit k: a piece (the last piece) was asked for k + 1 cycles ago.
        arriving = Signal(ByteMemory.LATENCY)
        complete = Signal(ByteMemory.LATENCY + 1)
        value = Signal(instruction_layout(), reset_less=True)
        arrived = Signal(piece_bits)
        valid = Signal()
        beyond = Signal()
        m.d.sync += [
            arriving.eq(Cat(asking, arriving[:-1])),
            complete.eq(Cat(asking & final, complete[:-1])),
        ]
        with m.If(arriving[-1]):
            if config.compact:
                # Each piece has its place, so that bits which nobody reads need no register.
                for k in range(fetches):
                    with m.If(arrived == k):
                        m.d.sync += Value.cast(value).word_select(k, width * 8).eq(code.read_data)
                m.d.sync += arrived.eq(arrived + 1)
            else:
                shifted = Cat(Value.cast(value)[width * 8:], code.read_data)
                m.d.sync += Value.cast(value).eq(shifted)
        with m.If(complete[-1]):
            m.d.sync += valid.eq(1)
        with m.If(asking):
            m.d.sync += piece.eq(piece + 1)
            with m.If(final):
                m.d.sync += asking.eq(0)
        with m.If(take):
            m.d.sync += [
                valid.eq(0), where.eq(where + 1), beyond.eq(where + 1 >= config.instructions),
            ]
        with m.If(self.issued if config.compact else take):
            m.d.sync += asking.eq(1)
        with m.If(begin_run):
            m.d.sync += [
                valid.eq(0), asking.eq(1), piece.eq(0), where.eq(first),
                beyond.eq(first >= config.instructions), arriving.eq(0), complete.eq(0),
                arrived.eq(0),
            ]
        if config.compact:
            value = self._narrow(m, value)
        return value, valid, beyond, where

    def _narrow(self, m, instruction):
        """``instruction`` with addresses and counts as wide as the memories need."""
        narrow = Signal(instruction_layout(), name="narrow")
        m.d.comb += narrow.eq(instruction)
        for f in FIELDS:
            if f.bits == 16:
                bits = self.config.field_bits(f.name)
                m.d.comb += narrow[f.name].eq(instruction[f.name][:bits])
        return narrow

    def _invalid(self, instruction):
        """No operation of this engine, or a loop that would run 2^n times."""
        empty = [instruction[name] == 0 for name in _COUNTS]
        window = instruction.window
        if self.config.has_window:
            # Other kernels need other columns kept: their sums would be wrong.
            window &= (instruction.op != Op.LANE) | (instruction.kernel_h != 3)
        lacking = C(0)
        if not self.config.addends:
            lacking |= instruction.has_add
        if not self.config.tables:
            lacking |= instruction.has_table
        lacking |= instruction.has_mul & ~(instruction.has_add & self.config.has_product)
        return (instruction.op > Op.LANE) | window | lacking | Cat(*empty).any()

    def _is_time(self, m, layer, take, early):
        """The drain of ``layer`` is over but for ``early`` cycles: the next may start.

        ``early`` is that of the instruction which ``take`` takes. The answer is a register, so all
        is looked at a cycle ahead.
        """
        drains = [drain_cycles(self.config, Instruction(has_add=add, has_table=table))
                  for table in (0, 1) for add in (0, 1)]
        limit = Signal(range(max(drains) + 1), reset_less=True)
        wait = Signal(signed(len(limit) + 1), reset_less=True)  # cycles from last slice to start
        age = Signal(range(max(drains) + 1), reset_less=True)  # cycles since the last slice
        issued = Signal()
        ripe = Signal()
        wait_taken = Signal.like(wait)
        age_next = Signal.like(age)
        m.d.comb += [wait_taken.eq(limit - early), age_next.eq(Mux(age < limit, age + 1, age))]
        m.d.sync += [
            limit.eq(Array(drains)[Cat(layer.has_add, layer.has_table)]),
            age.eq(age_next),
            ripe.eq(issued & Mux(take, age_next >= wait_taken, age_next >= wait)),
        ]
        with m.If(take):
            m.d.sync += wait.eq(wait_taken)
        with m.If(self.issued):
            m.d.sync += [issued.eq(1), age.eq(1), ripe.eq(0)]
        with m.If(self.go | self.flush):
            m.d.sync += [issued.eq(0), ripe.eq(0)]
        return ripe

    def _count(self, m, layer_index, active):
        """Counters of the layer before write-back, filed when it finishes; returns its cycles.

        Slices are those of the layer being issued, noted when that is done: the next layer may
        start before this one finishes, but issues its own last slice only after.
        """
        config = self.config
        now = Signal(COUNTERS, name="counters")
        slices = Signal(32, name="issued_slices", reset_less=True)
        stalls = Signal(32, name="issued_stalls", reset_less=True)
        with m.If(self.finish | (self.go & ~active)):
            m.d.sync += now.cycles.eq(1)
        with m.Else():
            m.d.sync += now.cycles.eq(now.cycles + 1)
        # What the address generator does is looked at a cycle later; the first slice is issued in
        # the cycle after `go`.
        events = Signal(4, reset_less=True)
        m.d.sync += events.eq(Cat(self.go, self.issuing, self.idling, self.issued))
        begins, issuing, idling, issued = events
        with m.If(begins):
            m.d.sync += [now.busy.eq(0), now.stalls.eq(0)]
        with m.Else():
            m.d.sync += [
                now.busy.eq(now.busy + issuing),
                now.stalls.eq(now.stalls + idling),
            ]
        with m.If(issued):
            m.d.sync += [slices.eq(now.busy + 1), stalls.eq(now.stalls)]
        if config.counters:
            self._file(m, layer_index, Cat(now.cycles, slices, stalls))
        return now.cycles

    def _file(self, m, layer_index, value):
        """Counters of the layer that finishes go into their memory, from which the host reads."""
        config = self.config
        m.submodules.counter_memory = counters = memory.Memory(
            shape=COUNTERS.size, depth=config.instructions, init=[])
        write = counters.write_port()
        read = counters.read_port()
        filed = Signal(config.instructions)  # instructions that have counters since `clear`
        shown = Signal(2)
        word = Signal(COUNTERS.size, name="counter_word", reset_less=True)
        bits = (config.instructions - 1).bit_length()
        m.d.comb += [
            write.addr.eq(layer_index),
            write.data.eq(value),
            write.en.eq(self.finish),
            read.addr.eq(self.counter_addr),
            self.counter_data.eq(Mux(shown[1], word, 0)),
        ]
        is_shown = ((self.counter_addr < config.instructions)
                    & filed.bit_select(self.counter_addr[:bits], 1))
        m.d.sync += [word.eq(read.data), shown.eq(Cat(is_shown, shown[0]))]
        with m.If(self.finish):
            m.d.sync += filed.bit_select(layer_index[:bits], 1).eq(1)
        with m.If(self.clear):
            m.d.sync += filed.eq(0)
