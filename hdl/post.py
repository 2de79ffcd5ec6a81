"""Post pipeline: from int32 sums to output bytes, `requantisers` channels wide."""

from amaranth import *
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from .addend import Addend
from .latency import ADDEND, BIAS, PRODUCT_OFFSET, SKIP_OFFSET, TABLE, requantiser_latency
from .latency import post_latency as latency
from .multiplier import Multiplier
from .requant import Requantiser
from .requant_serial import SerialRequantiser

__all__ = ["PRODUCT_OFFSET", "SKIP_OFFSET", "Post", "Table", "latency"]


class Table(wiring.Component):
    """Unary byte tables, read once a cycle.

    Parameters
    ----------
    tables : :class:`int`
        Tables of 256 bytes, a power of two.

    Members
    -------
    index : :py:`In(8)`
        Table to read.
    i : :py:`In(8)`
        Byte to map.
    o : :py:`Out(8)`
        Mapped byte, ``LATENCY`` = 2 cycles later (memory and its output register).
    write_en : :py:`In(1)`
        Write a byte in this cycle; the table must not be in use.
    write_addr : :py:`In(16)`
        Byte address: table * 256 + byte value.
    write_data : :py:`In(8)`
        Byte to write.
    """

    LATENCY = TABLE

    def __init__(self, tables):
        self.tables = tables
        super().__init__({
            "index": In(8), "i": In(8), "o": Out(8),
            "write_en": In(1), "write_addr": In(16), "write_data": In(8),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.data = data = memory.Memory(shape=8, depth=256 * self.tables, init=[])
        read = data.read_port()
        write = data.write_port()
        out = Signal(8, reset_less=True)
        m.d.comb += [
            read.addr.eq(Cat(self.i, self.index)),
            write.en.eq(self.write_en),
            write.addr.eq(self.write_addr),
            write.data.eq(self.write_data),
            self.o.eq(out),
        ]
        m.d.sync += out.eq(read.data)
        return m


class Post(wiring.Component):
    """Sums to bytes: bias, requantiser, optional residual add, optional table.

    ``R = config.requantisers`` channels a cycle, channel 0 in the low bits everywhere. Nothing
    ever stalls: a beat with ``i_valid`` in cycle t has its bytes on ``o_bytes`` with ``o_valid`` in
    cycle ``t + latency(config, has_add, has_table)``:

    ========= =========== ==========================================================
    has_add   has_table   latency (cycles)
    ========= =========== ==========================================================
    0         0           14 = bias 1 + requantiser 13
    0         1           16 = 14 + table 2
    1         0           19 = 14 + addend 5
    1         1           21
    ========= =========== ==========================================================

    **Skip bytes**: those of the beat with ``i_valid`` in cycle t must be on ``skip`` in cycle
    ``t + SKIP_OFFSET`` = t + 13, and in that cycle only. They are registered inside, so a byte
    selector behind a memory's output register may drive ``skip`` directly.

    **Products**: with ``has_mul`` (and ``has_add``, on engines with ``config.has_product``) the sum
    with its bias, of 9 bits, times ``skip - zp_a`` is requantised; ``lo_a`` < 0 tells that skip
    bytes are int8. They must be on ``skip`` in cycle ``t + PRODUCT_OFFSET`` = t + 3, and the
    multiplier m on ``i_params`` in cycle t + 5. The latency is that of an add.

    With a serial requantiser (``config.serial``) a beat comes every ``config.beat_cycles`` cycles
    or less often, its parameters stay as long, and all latencies grow by the same 40 cycles
    (``latency.skip_offset``). An engine without tables or addends ignores what asks for them.

    ``zp_y`` ... ``addend_index`` describe the layer: they must not change from the cycle of the
    layer's first ``i_valid`` to that of its last ``o_valid``. ``o_valid`` and ``o_bytes`` come from
    registers through one multiplexer (by ``has_add``, ``has_table``).

    Writes must not meet a layer that reads the same memory.

    Parameters
    ----------
    config : :class:`~trivet.hdl.config.EngineConfig`
        ``requantisers``, ``tables`` and ``addends`` are used.

    Members
    -------
    i_valid : :py:`In(1)`
        A beat enters in this cycle.
    i_sums : :py:`In(32 * R)`
        Accumulators, int32.
    i_params : :py:`In(64 * R)`
        Per channel: int32 bias, then the bits of float32 m.
    zp_y, lo, hi : :py:`In(signed(9))`
        Zero point and bounds of the requantised byte; lo <= hi.
    zp_a, lo_a, hi_a : :py:`In(signed(9))`
        Zero point and bounds of the sum with the skip tensor; lo_a <= hi_a.
    has_add, has_mul, has_table : :py:`In(1)`
        Which steps the layer has.
    addend_index, table_index : :py:`In(8)`
        Pair of addend tables; unary table.
    skip : :py:`In(8 * R)`
        Skip bytes, see above; ignored unless ``has_add``.
    o_valid : :py:`Out(1)`
        A beat leaves in this cycle.
    o_bytes : :py:`Out(8 * R)`
        Its bytes.
    write_table, write_addend : :py:`In(1)`
        Write one byte into the unary tables; into the addend tables.
    write_addr : :py:`In(16)`
        Tables: byte address. Addends: index of the 8-byte pair (int32 Ta, int32 Tb).
    write_byte : :py:`In(8)`
        Byte within the word, little-endian; tables: 0.
    write_data : :py:`In(8)`
        Byte to write.
    """

    def __init__(self, config):
        self.config = config
        width = config.requantisers
        number = In(signed(9))
        super().__init__({
            "i_valid": In(1), "i_sums": In(32 * width), "i_params": In(64 * width),
            "zp_y": number, "lo": number, "hi": number,
            "zp_a": number, "lo_a": number, "hi_a": number,
            "has_add": In(1), "has_mul": In(1), "has_table": In(1),
            "addend_index": In(8), "table_index": In(8),
            "skip": In(8 * width),
            "o_valid": Out(1), "o_bytes": Out(8 * width),
            "write_table": In(1), "write_addend": In(1), "write_addr": In(16),
            "write_byte": In(8), "write_data": In(8),
        })

    def elaborate(self, platform):
        m = Module()

        plain = BIAS + requantiser_latency(self.config)
        valid = Signal(plain + ADDEND + TABLE)  # bit k: a beat that entered k + 1 cycles ago
        m.d.sync += valid.eq(Cat(self.i_valid, valid[:-1]))
        added = plain + ADDEND
        m.d.comb += self.o_valid.eq(Mux(
            self.has_table,
            Mux(self.has_add, valid[added + TABLE - 1], valid[plain + TABLE - 1]),
            Mux(self.has_add, valid[added - 1], valid[plain - 1]),
        ))

        skip = Signal.like(self.skip, name="skip_reg", reset_less=True)
        m.d.sync += skip.eq(self.skip)

        for k in range(self.config.requantisers):
            requantiser = SerialRequantiser() if self.config.serial else Requantiser()
            m.submodules[f"requantiser{k}"] = requantiser

            sum_ = Signal(signed(32), name=f"sum{k}", reset_less=True)
            multiplier = Signal(32, name=f"multiplier{k}", reset_less=True)
            params = self.i_params.word_select(k, 64)
            m.d.sync += sum_.eq(self.i_sums.word_select(k, 32) + params[:32])
            if self.config.serial:
                m.d.comb += [multiplier.eq(params[32:]), requantiser.start.eq(valid[0])]
            else:
                m.d.sync += multiplier.eq(params[32:])
            result = Signal(8, name=f"result{k}")
            m.d.comb += [
                requantiser.sum.eq(sum_),
                requantiser.m.eq(multiplier),
                requantiser.zp.eq(self.zp_y),
                requantiser.lo.eq(self.lo),
                requantiser.hi.eq(self.hi),
                result.eq(requantiser.y[:8]),
                self.o_bytes.word_select(k, 8).eq(result),
            ]
            if self.config.has_product:
                m.submodules[f"product{k}"] = product = Multiplier(9, 9)
                factor = sum_[:9].as_signed()
                # So late that the skip byte is there, which must be read first.
                for age in range(2, 2 + PRODUCT_OFFSET):
                    later = Signal.like(factor, name=f"factor{k}_{age}", reset_less=True)
                    m.d.sync += later.eq(factor)
                    factor = later
                byte = self.skip.word_select(k, 8)
                number = Cat(byte, byte[7] & (self.lo_a < 0)).as_signed()
                other = Signal(signed(9), name=f"other{k}", reset_less=True)
                m.d.sync += other.eq(number - self.zp_a)
                m.d.comb += [product.a.eq(factor), product.b.eq(other)]
                with m.If(self.has_mul):
                    m.d.comb += requantiser.sum.eq(product.o)
            if self.config.addends:
                m.submodules[f"addend{k}"] = addend = Addend(
                    self.config.addends, compact=self.config.compact)
                m.d.comb += [
                    addend.index.eq(self.addend_index),
                    addend.a.eq(requantiser.y[:8]),
                    addend.b.eq(skip.word_select(k, 8)),
                    addend.zp.eq(self.zp_a),
                    addend.lo.eq(self.lo_a),
                    addend.hi.eq(self.hi_a),
                    addend.write_en.eq(self.write_addend),
                    addend.write_addr.eq(self.write_addr),
                    addend.write_byte.eq(self.write_byte),
                    addend.write_data.eq(self.write_data),
                ]
                with m.If(self.has_add & ~self.has_mul):
                    m.d.comb += result.eq(addend.o[:8])
            if self.config.tables:
                m.submodules[f"table{k}"] = table = Table(self.config.tables)
                m.d.comb += [
                    table.index.eq(self.table_index),
                    table.i.eq(result),
                    table.write_en.eq(self.write_table),
                    table.write_addr.eq(self.write_addr),
                    table.write_data.eq(self.write_data),
                ]
                with m.If(self.has_table):
                    m.d.comb += self.o_bytes.word_select(k, 8).eq(table.o)
        return m
