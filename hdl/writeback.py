"""Write-back: beats of a finished pixel, their parameters, skip bytes and place in memory."""

from amaranth import *
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from .latency import PRODUCT_OFFSET, post_latency, skip_offset
from .memories import ActivationMemory, ByteMemory

__all__ = ["WriteBack"]


class WriteBack(wiring.Component):
    """Follows each pixel from its last slice to its bytes in activation memory.

    A pixel that ends with ``last`` in cycle t has its beats in Post from cycle
    t + :attr:`lead` on, one a cycle: ``post_valid`` and the parameter word are there then,
    the skip bytes ``SKIP_OFFSET`` cycles later (``has_mul``: ``PRODUCT_OFFSET``). ``write_*`` is
    set one cycle after Post's bytes.

    Parameters
    ----------
    config : EngineConfig

    Attributes
    ----------
    lead : int
        Cycles from ``last`` to the first beat's entry into Post.

    Members
    -------
    begin : In(1)
        First cycle of a layer, whose fields are valid from now on.
    dst, src2, params, out_pixel_words, out_row_gap, has_add, has_mul, has_table : In
        Fields of the layer.
    last, row_last, block_last, layer_last : In(1)
        A pixel ends, as from the address generator (delayed).
    param_addr : Out(16)
        Parameter word of the beat.
    skip_en, skip_addr : Out
        Skip read.
    skip_word : In(word_bytes * 8)
        Its word.
    post_valid : Out(1)
        A beat enters Post.
    post_skip : Out(R * 8)
        Its skip bytes, in the cycle in which Post wants them.
    post_bytes : In(R * 8)
        Bytes that leave Post.
    write_en, write_addr, write_data : Out
        Write port of the activation memory, registered; ``write_en`` has enables for every bank.
    host_en, host_addr, host_byte, host_data : In
        The host's write of one byte, through the same register.
    host_ready : Out(1)
        It is taken in this cycle: no beat of a layer enters the register.
    finish : Out(1)
        The layer's last bytes leave Post: they are written in the next cycle.
    overrun : Out(1)
        A pixel ended before the beats of the one before it were through.
    """

    def __init__(self, config):
        self.config = config
        self.lead = 1 + ByteMemory.LATENCY  # the beat's register, then its parameters
        width = config.word_bytes
        super().__init__({
            "begin": In(1),
            "dst": In(16),
            "src2": In(16),
            "params": In(16),
            "out_pixel_words": In(16),
            "out_row_gap": In(16),
            "has_add": In(1),
            "has_mul": In(1),
            "has_table": In(1),
            "last": In(1),
            "row_last": In(1),
            "block_last": In(1),
            "layer_last": In(1),
            "param_addr": Out(16),
            "skip_en": Out(1),
            "skip_addr": Out(16),
            "skip_word": In(width * 8),
            "post_valid": Out(1),
            "post_skip": Out(config.requantisers * 8),
            "post_bytes": In(config.requantisers * 8),
            "write_en": Out(config.act_banks * width),
            "write_addr": Out(16),
            "write_data": Out(width * 8),
            "host_en": In(1),
            "host_addr": In(16),
            "host_byte": In(8),
            "host_data": In(8),
            "host_ready": Out(1),
            "finish": Out(1),
            "overrun": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        config = self.config
        width = config.word_bytes
        valid, tag, param = self._beats(m)
        m.d.comb += self.param_addr.eq(param)

        to_post = self.lead - 1
        latencies = {(add, table): to_post + post_latency(config, add, table)
                     for add in (0, 1) for table in (0, 1)
                     if add <= config.addends and table <= config.tables}
        if config.serial:
            valids, line = self._pair(m, valid, tag, latencies)
        else:
            valids, line = self._line(m, valid, tag, latencies)
        m.d.comb += self.post_valid.eq(valids[to_post])

        # Skip bytes: read so early that they are at Post when it wants them.
        if config.addends:
            wanted = to_post + skip_offset(config)
            read = wanted - ActivationMemory.SKIP_LATENCY - 1
            is_read, offset, place = valids[read], line[read].offset, line[wanted].place
            if config.has_product:
                wanted = to_post + PRODUCT_OFFSET
                read = wanted - ActivationMemory.SKIP_LATENCY - 1
                assert read >= 0
                is_read = Mux(self.has_mul, valids[read], is_read)
                offset = Mux(self.has_mul, line[read].offset, offset)
                # Chosen a cycle ahead: it selects among a word's bytes.
                ahead = Signal.like(place, reset_less=True)
                last = to_post + skip_offset(config)
                m.d.sync += ahead.eq(
                    Mux(self.has_mul, line[wanted - 1].place, line[last - 1].place))
                place = ahead
            skip_en = Signal()
            skip_addr = Signal(16, reset_less=True)
            m.d.sync += [skip_en.eq(is_read & self.has_add), skip_addr.eq(self.src2 + offset)]
            m.d.comb += [
                self.skip_en.eq(skip_en),
                self.skip_addr.eq(skip_addr),
                self.post_skip.eq(self.skip_word.word_select(place, len(self.post_skip))),
            ]

        # The tag meets its bytes: one register after the choice of Post's depth.
        def choose(stages):
            at = {key: stages[latency - 1] for key, latency in latencies.items()}
            add, table = min(config.addends, 1), min(config.tables, 1)
            return Mux(self.has_add, Mux(self.has_table, at[add, table], at[add, 0]),
                       Mux(self.has_table, at[0, table], at[0, 0]))

        out_valid = Signal()
        out = Signal(tag.shape(), reset_less=True)
        m.d.sync += [
            out_valid.eq(choose(valids)),
            out.eq(choose({k: Value.cast(stage) for k, stage in line.items()})),
        ]
        m.d.comb += self.finish.eq(out_valid & out.layer_last)

        groups = config.word_bytes // config.requantisers
        group = Signal(groups)
        m.d.comb += group.eq(out_valid << out.place)
        write_en = Signal.like(self.write_en)
        write_addr = Signal.like(self.write_addr, reset_less=True)
        write_data = Signal.like(self.write_data, reset_less=True)

        def of_bank(address, enables):
            """Enables of the bytes of all banks, so that none is decoded on the way there."""
            bank = address[exact_log2(config.act_bank_words):]
            return Cat(Mux(bank == k, enables, 0) for k in range(config.act_banks))

        address = (self.dst + out.offset)[:16]
        m.d.sync += [
            write_en.eq(of_bank(
                address, Cat(bit.replicate(config.requantisers) for bit in group))),
            write_addr.eq(address),
            write_data.eq(self.post_bytes.replicate(groups)),
        ]
        m.d.comb += self.host_ready.eq(~out_valid)
        with m.If(self.host_en & ~out_valid):
            m.d.sync += [
                write_en.eq(of_bank(
                    self.host_addr, (C(1, width) << self.host_byte)[:width])),
                write_addr.eq(self.host_addr),
                write_data.eq(self.host_data.replicate(width)),
            ]
        m.d.comb += [
            self.write_en.eq(write_en),
            self.write_addr.eq(write_addr),
            self.write_data.eq(write_data),
        ]
        return m

    def _line(self, m, valid, tag, latencies):
        """Where a beat's bytes belong travels beside it: ``line[k]`` is the tag of k cycles ago.

        A beat leaves the line where it meets its bytes, lest a deeper layer after it meet it again.
        """
        depth = max(latencies.values()) - 1
        valids = Signal(depth + 1)
        m.d.comb += valids[0].eq(valid)
        line = {0: tag}
        for k in range(depth):
            stage = Signal(tag.shape(), name=f"tag{k + 1}", reset_less=True)
            leaves = C(0)
            for (add, table), latency in latencies.items():
                if k == latency - 1:
                    leaves = (self.has_add == add) & (self.has_table == table)
            m.d.sync += [stage.eq(line[k]), valids[k + 1].eq(valids[k] & ~leaves)]
            line[k + 1] = stage
        return valids, line

    def _pair(self, m, valid, tag, latencies):
        """The same for beats that come ``beat_cycles`` cycles apart or more: two tags, two ages."""
        interval = self.config.beat_cycles
        depth = max(latencies.values())
        assert depth <= 2 * interval
        began = valid
        valids, tags = {0: valid}, {}
        for k, value in enumerate((tag, Signal(tag.shape(), name="held_tag", reset_less=True))):
            age = Signal(range(interval), name=f"age{k}")  # cycles since `value` became this one
            moving = Signal(name=f"moving{k}")
            leaves = age == interval - 1
            for (add, table), latency in latencies.items():
                if (latency - 1) // interval == k:
                    leaves |= ((age == (latency - 1) % interval)
                               & (self.has_add == add) & (self.has_table == table))
            with m.If(began):
                # The first tag is there as its beat begins, the other in the cycle after.
                m.d.sync += [age.eq(1 - k), moving.eq(1)]
            with m.Elif(moving):
                m.d.sync += [age.eq(age + 1), moving.eq(~leaves)]
            for cycle in range(k * interval, min((k + 1) * interval, depth)):
                tags[cycle] = value
                if cycle:
                    valids[cycle] = moving & (age == cycle % interval)
            if k == 0:
                began = valids[interval - 1]
            else:
                with m.If(valids[interval - 1]):
                    m.d.sync += value.eq(tag)
        return valids, tags

    def _beats(self, m):
        """The beat that starts its way to Post: valid, tag (place in memory), parameter word."""
        config = self.config
        beat_bits = exact_log2(config.beats)
        block_bits = exact_log2(config.word_bytes // config.lanes)
        tag = Signal(data.StructLayout({
            "offset": config.address_bits,    # word, relative to dst and src2
            "place": beat_bits + block_bits,  # group of R bytes in the word
            "layer_last": 1,
        }))
        valid = Signal()
        offset = Signal(config.address_bits, reset_less=True)
        beat = Signal(beat_bits, reset_less=True)
        ending = Signal(reset_less=True)  # this pixel is the layer's last
        param = Signal(config.field_bits("params"), reset_less=True)

        # Of the next pixel to come.
        next_param = Signal(config.field_bits("params"), reset_less=True)
        next_offset = Signal(config.address_bits, reset_less=True)
        next_block = Signal(config.field_bits("blocks"), reset_less=True)
        block_ahead = Signal(config.field_bits("blocks"), reset_less=True)
        place_block = Signal(block_bits, reset_less=True)
        is_final = beat == config.beats - 1
        is_over = C(1)  # the next beat follows
        if config.serial:
            phase = Signal(range(config.beat_cycles), reset_less=True)
            is_over = phase == config.beat_cycles - 1
            m.d.sync += phase.eq(Mux(self.last | is_over, 0, phase + 1))
        # From a row's last pixel to the next row's first.
        row_step = Signal(config.address_bits, reset_less=True)
        m.d.sync += row_step.eq(self.out_pixel_words + self.out_row_gap)

        with m.If(self.last):
            m.d.sync += [
                valid.eq(1),
                beat.eq(0),
                ending.eq(self.layer_last),
                offset.eq(next_offset),
                place_block.eq(next_block),
                param.eq(next_param),
                next_offset.eq(next_offset + Mux(self.row_last, row_step, self.out_pixel_words)),
            ]
            with m.If(self.block_last):
                m.d.sync += [
                    next_offset.eq(block_ahead[block_bits:]),
                    next_block.eq(block_ahead),
                    block_ahead.eq(block_ahead + 1),
                    next_param.eq(next_param + config.beats),
                ]
        with m.Elif(valid & is_over):
            m.d.sync += [valid.eq(~is_final), beat.eq(beat + 1), param.eq(param + 1)]
        with m.If(self.begin):
            m.d.sync += [
                next_offset.eq(0),
                next_block.eq(0),
                block_ahead.eq(1),
                next_param.eq(self.params),
            ]
        m.d.comb += self.overrun.eq(self.last & valid & ~(is_final & is_over))

        m.d.comb += [
            tag.offset.eq(offset),
            tag.place.eq(Cat(beat, place_block)),
            tag.layer_last.eq(ending & is_final),
        ]
        if config.serial:
            valid = valid & (phase == 0)
        return valid, tag, param
