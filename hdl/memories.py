"""Memories of the engine: byte-wise writes from the host, registered wide reads."""

from amaranth import *
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from .delay import delay

__all__ = ["ActivationMemory", "ByteMemory", "SingleByteMemory", "chunks"]

# Depth of the widest block RAM mode; a remainder below it is not worth splitting further.
_SHALLOW = 512
# Words of distributed RAM that one cell holds.
_CELL = 16


def chunks(depth):
    """Split ``depth`` words into powers of two and at most one shallow rest, as (base, words).

    Synthesis rounds a memory up to whole block RAMs of a power-of-two depth, so 2,112 words in one
    piece would cost as much as 4,096.
    """
    pieces = []
    base = 0
    while depth - base >= _SHALLOW:
        words = 1 << ((depth - base).bit_length() - 1)
        pieces.append((base, words))
        base += words
    if base < depth:
        pieces.append((base, depth - base))
    return tuple(pieces)


def address_bits(depth):
    """Address bits of a memory of ``depth`` words."""
    return (depth - 1).bit_length()


def _word_ports(width):
    """Members of a memory of ``width`` bytes a word: words are read, bytes are written."""
    return {
        "read_addr": In(16),
        "read_data": Out(width * 8),
        "write_en": In(1),
        "write_addr": In(16),
        "write_byte": In(8),
        "write_data": In(8),
    }


class ByteMemory(wiring.Component):
    """Wide words, read one a cycle, written a byte at a time in order.

    The bytes of a word are gathered and written together with the last one, since byte enables
    would leave every ninth bit of a block RAM unused (128 blocks instead of 114 for 2,048 words of
    1,024 bits on an ECP5). A word that is broken off is not written. The shallow rest of a deep
    memory asks for distributed RAM: 64 words of that width would take 32 blocks more. It comes
    in pieces of one cell's depth, each with enables of its own from registers, so that nothing is
    decoded on the way to or from thousands of cells.

    A read and a write of the same word must not meet in a cycle.

    ``compact``: few registers instead of a short way through the memory. Bytes are written one by
    one, by byte enables (no loss in the 16-bit blocks of an iCE40), and the address is registered,
    not the word.

    Parameters
    ----------
    width : int
        Bytes of a word.
    depth : int
        Words. Addresses beyond read and write nothing that matters.
    compact : bool
        See above.
    far : bool
        The words lie all over the chip: one register more in front, so that choosing a piece and
        the way to it have a cycle each, and one behind the choice among the pieces' words.

    Attributes
    ----------
    latency : int
        Cycles from ``read_addr`` to ``read_data``: the memory and its output register
        (:attr:`LATENCY`), and what ``far`` adds.

    Members
    -------
    read_addr : In(16)
        Word to read.
    read_data : Out(width * 8)
        That word, ``latency`` cycles later (through a multiplexer if there are several chunks).
    write_en, write_addr, write_byte, write_data : In
        Take ``write_data`` as byte ``write_byte`` of word ``write_addr``; 0 first, ``width - 1``
        last. The word is there in the second cycle after the last.
    """

    LATENCY = 2

    def __init__(self, width, depth, compact=False, far=False):
        self.width = width
        self.depth = depth
        self.compact = compact
        self.far = int(far)
        self.latency = self.LATENCY + 2 * far
        super().__init__(_word_ports(width))

    def elaborate(self, platform):
        m = Module()
        if self.compact:
            self._bytewise(m)
            return m

        gathered = Signal(self.width * 8, reset_less=True)
        with m.If(self.write_en):
            m.d.sync += gathered.eq(Cat(gathered, self.write_data)[8:])
        is_last = self.write_en & (self.write_byte == self.width - 1)
        # The word is written a cycle later, from registers.
        write_addr = Signal(16, reset_less=True)
        m.d.sync += write_addr.eq(self.write_addr)

        # `ahead` is the address that is at the pieces a cycle later, at the latest.
        ahead = read_addr = self.read_addr
        if self.far:
            read_addr = Signal(16, name="far_addr", reset_less=True)
            m.d.sync += read_addr.eq(ahead)

        def chosen(first, bits, cycles, name):
            """Whether the word of ``cycles`` after its address came to the pieces is one of these.

            Of an address that no piece has, nothing matters.
            """
            is_here = ahead[bits:address_bits(self.depth)] == first >> bits
            return delay(m, is_here, cycles + self.far, name)

        words = []
        pieces = chunks(self.depth)
        for k, (base, size) in enumerate(pieces):
            is_rest = len(pieces) > 1 and size < _SHALLOW
            # Chunks lie in falling sizes, so a chunk's base is a multiple of its rounded size and
            # the address within it is the low bits.
            bits = min(address_bits(size), address_bits(_CELL)) if is_rest else address_bits(size)
            found = C(0, self.width * 8)
            for n, first in enumerate(range(base, base + size, 1 << bits)):
                name = f"chunk{k}_{n}"
                m.submodules[name] = piece = memory.Memory(
                    shape=unsigned(self.width * 8), depth=min(1 << bits, base + size - first),
                    init=[], attrs={"ram_style": "distributed"} if is_rest else {})
                read = piece.read_port()
                write = piece.write_port()
                write_en = Signal(name=f"write_en_{name}")
                m.d.comb += [
                    read.addr.eq(read_addr[:bits]),
                    write.addr.eq(write_addr[:bits]),
                    write.data.eq(gathered),
                    write.en.eq(write_en),
                ]
                m.d.sync += write_en.eq(is_last & (self.write_addr[bits:] == first >> bits))
                if is_rest:
                    found |= Mux(chosen(first, bits, 1, f"pick_{name}"), read.data, 0)
                else:
                    found = read.data
            word = Signal(self.width * 8, name=f"word{k}", reset_less=True)
            m.d.sync += word.eq(found)
            words.append((base, bits, word))

        # The rest is the last one and is shown where no other is.
        result = words[-1][-1]
        for k, (base, bits, word) in reversed(list(enumerate(words[:-1]))):
            result = Mux(chosen(base, bits, 2, f"chosen{k}"), word, result)
        m.d.comb += self.read_data.eq(delay(m, result, self.far, "far_word"))
        return m

    def _bytewise(self, m):
        bits = address_bits(self.depth)
        m.submodules.words = words = memory.Memory(
            shape=unsigned(self.width * 8), depth=self.depth, init=[])
        read = words.read_port()
        write = words.write_port(granularity=8)
        addr = Signal(bits, reset_less=True)
        m.d.sync += addr.eq(self.read_addr)
        m.d.comb += [
            read.addr.eq(addr),
            self.read_data.eq(read.data),
            write.addr.eq(self.write_addr),
            write.data.eq(self.write_data.replicate(self.width)),
            write.en.eq(self.write_en << self.write_byte[:max(self.width - 1, 1).bit_length()]),
        ]


class SingleByteMemory(wiring.Component):
    """:class:`ByteMemory` with one port for reads and writes: blocks of 16 bits side by side.

    iCE40 UltraPlus have four such blocks of 16,384 words (SPRAM); synthesis finds them by their
    ``ram_style`` (``synth_ice40 -spram``). They hold nothing after configuration and keep a word's
    other half when one is written, so bytes are gathered by pairs. What is read in the cycle of a
    write is lost.

    Parameters and members are those of :class:`ByteMemory`, and so is the latency unless
    ``compact``: there it is one less, without an output register. ``width`` is even. A word that is
    broken off is written as far as its pairs are whole.
    """

    def __init__(self, width, depth, compact=False, far=False):
        self.width = width
        self.depth = depth
        self.compact = compact
        self.far = int(far)
        self.latency = ByteMemory.LATENCY - compact + 2 * far
        super().__init__(_word_ports(width))

    def elaborate(self, platform):
        m = Module()
        bits = address_bits(self.depth)
        first = Signal(8, reset_less=True)  # of a pair
        addr = Signal(bits)
        read_addr = delay(m, self.read_addr, self.far, "far_addr")
        m.d.comb += addr.eq(Mux(self.write_en, self.write_addr, read_addr))
        with m.If(self.write_en):
            m.d.sync += first.eq(self.write_data)
        found = Signal(self.width * 8)
        m.d.comb += self.read_data.eq(delay(m, found, self.far, "far_word"))
        for k in range(self.width // 2):
            m.submodules[f"block{k}"] = block = memory.Memory(
                shape=16, depth=1 << bits, init=[], attrs={"ram_style": "huge"})
            read = block.read_port()
            write = block.write_port()
            word = Signal(16, name=f"word{k}", reset_less=True)
            m.d.comb += [
                read.addr.eq(addr),
                read.en.eq(~write.en),
                write.addr.eq(addr),
                write.data.eq(Cat(first, self.write_data)),
                write.en.eq(self.write_en & (self.write_byte == 2 * k + 1)),
                found.word_select(k, 16).eq(read.data if self.compact else word),
            ]
            if not self.compact:
                m.d.sync += word.eq(read.data)
        return m


class ActivationMemory(wiring.Component):
    """Banks of activation words with two read paths and one write path.

    Both reads may come every cycle if they hit different banks; where they meet, the skip read
    wins and the main read returns garbage. A word must not be read in the cycle that writes it.

    The host reads on the skip path when no skip read is there, and loses where it meets the main
    read: the engine cannot wait, so the host asks again. No read of the engine is ever changed.

    Parameters
    ----------
    config : EngineConfig
        ``act_banks``, ``act_bank_words`` and ``word_bytes`` are used.

    Attributes
    ----------
    LATENCY : int
        Cycles from ``read_addr`` to ``read_data``: memory, its output register, bank multiplexer.
    SKIP_LATENCY : int
        The same for the skip read: one more, for decoding the bank ahead of the memory.
    HOST_DECISION : int
        Cycles from ``host_en`` to ``host_ready``, which tells whether ``skip_data`` is the host's
        word ``SKIP_LATENCY`` cycles after ``host_en``.

    Members
    -------
    read_bank, read_addr, read_data
        Main read, of the bank whose bit is set; without one its data are not wanted.
    host_en, host_addr, host_ready
        The host's read, in any cycle; its word comes as ``skip_data``.
    skip_en, skip_addr, skip_data
        Skip read.
    write_en : In(act_banks * word_bytes)
        Byte enables, those of bank 0 first.
    write_addr, write_data
        Word of that bank to write.
    """

    LATENCY = 3
    SKIP_LATENCY = 4
    HOST_DECISION = 2

    def __init__(self, config):
        self.config = config
        width = config.word_bytes
        super().__init__({
            "read_bank": In(config.act_banks),
            "read_addr": In(16),
            "read_data": Out(width * 8),
            "host_en": In(1),
            "host_addr": In(16),
            "host_ready": Out(1),
            "skip_en": In(1),
            "skip_addr": In(16),
            "skip_data": Out(width * 8),
            "write_en": In(config.act_banks * width),
            "write_addr": In(16),
            "write_data": In(width * 8),
        })

    def elaborate(self, platform):
        m = Module()
        config = self.config
        bits = exact_log2(config.act_bank_words)

        skip_addr = Signal(bits, reset_less=True)
        host_en = Signal()
        host_ready = Signal()
        lost = Signal(config.act_banks)
        m.d.sync += [
            skip_addr.eq(Mux(self.skip_en, self.skip_addr, self.host_addr)),
            host_en.eq(self.host_en & ~self.skip_en),
            host_ready.eq(host_en & ~lost.any()),
        ]
        m.d.comb += self.host_ready.eq(host_ready)

        read_data = Signal.like(self.read_data, reset_less=True)
        skip_data = Signal.like(self.skip_data, reset_less=True)
        read_word = C(0, config.word_bytes * 8)
        skip_word = C(0, config.word_bytes * 8)
        for k in range(config.act_banks):
            m.submodules[f"bank{k}"] = bank = memory.Memory(
                shape=unsigned(config.word_bytes * 8), depth=config.act_bank_words, init=[])
            read = bank.read_port()
            write = bank.write_port(granularity=8)
            # Bit j: the read that reached this bank j cycles ago. `skip`, `host`: those about to.
            main = Signal(2, name=f"main{k}", reset_less=True)
            skip = Signal(name=f"skip{k}", reset_less=True)
            host = Signal(name=f"host{k}", reset_less=True)
            late = Signal(2, name=f"late{k}", reset_less=True)
            is_read = self.read_bank[k]
            word = Signal(config.word_bytes * 8, name=f"word{k}", reset_less=True)
            addr = Mux(skip | (host & ~is_read), skip_addr, self.read_addr[:bits])
            if config.compact:
                # The bank's address is registered instead of its word: far fewer flip-flops.
                bank_addr = Signal(bits, name=f"bank_addr{k}", reset_less=True)
                m.d.sync += bank_addr.eq(addr)
                m.d.comb += [read.addr.eq(bank_addr), word.eq(read.data)]
            else:
                m.d.comb += read.addr.eq(addr)
                m.d.sync += word.eq(read.data)
            m.d.comb += [
                lost[k].eq(host & is_read),
                write.addr.eq(self.write_addr[:bits]),
                write.data.eq(self.write_data),
                write.en.eq(self.write_en.word_select(k, config.word_bytes)),
            ]
            m.d.sync += [
                main.eq(Cat(is_read, main[0])),
                skip.eq(self.skip_en & (self.skip_addr[bits:] == k)),
                host.eq(self.host_en & ~self.skip_en & (self.host_addr[bits:] == k)),
                late.eq(Cat(skip | host, late[0])),
            ]
            read_word |= Mux(main[1], word, 0)
            skip_word |= Mux(late[1], word, 0)

        m.d.sync += [read_data.eq(read_word), skip_data.eq(skip_word)]
        m.d.comb += [self.read_data.eq(read_data), self.skip_data.eq(skip_data)]
        return m
