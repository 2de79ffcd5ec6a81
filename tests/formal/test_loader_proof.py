"""Every byte of a LOAD lands at its own address, exactly once, whatever the stalls (bounded)."""

import pytest
from amaranth import *
from amaranth.hdl import Assert, Assume
from formal.proof import chosen, constants, copy_of, free, holds, refuted

from trivet.hdl.config import EngineConfig

pytestmark = pytest.mark.synth

BYTES = 6  # of the longest area tried
STEPS = 13
TINY = EngineConfig(
    lanes=2,
    simd=2,
    requantisers=1,
    act_banks=1,
    act_bank_words=16,
    weight_words=16,
    param_words=8,
    tables=1,
    addends=1,
    instructions=2,
)


def places(word_bytes: int, run: int) -> list[tuple[int, int]]:
    """(word, byte) of each byte, counted from the area's first word; by division."""
    if run == 0:
        return [divmod(k, word_bytes) for k in range(BYTES)]
    words = -(-run // word_bytes)
    return [(k // run * words + k % run // word_bytes, k % run % word_bytes) for k in range(BYTES)]


class Lands(Elaboratable):
    """One area of any memory: its bytes, its runs, its address are free; so are the stalls."""

    def __init__(self, module):
        self.module = module

    def elaborate(self, platform):
        m = Module()
        m.submodules.dut = dut = self.module.Loader(TINY)
        memories = self.module.memories(TINY)
        data = constants(m, BYTES, "byte")
        (space,) = constants(m, 1, "space", 3)
        (run,) = constants(m, 1, "run", 16)
        (address,) = constants(m, 1, "address", 16)
        (count,) = constants(m, 1, "count", 3)
        m.d.comb += Assume((space < len(memories)) & (count <= BYTES))
        m.d.comb += [
            dut.area.space.eq(space),
            dut.area.run.eq(run),
            dut.area.address.eq(address),
            dut.area.count.eq(count),
        ]

        started = Signal()
        given = Signal(range(BYTES + 2))  # bytes that the loader took
        written = Signal(range(BYTES + 2))
        finished = Signal()
        m.d.comb += [
            dut.start.eq(free(m, 1, "start") & ~started),
            dut.i.valid.eq(free(m, 1, "valid") & (given != BYTES)),
            dut.i.payload.eq(chosen(data, given)),
        ]
        with m.If(dut.start):
            m.d.sync += started.eq(1)
        with m.If(dut.i.valid & dut.i.ready):
            m.d.sync += given.eq(given + 1)

        # Runs beyond the bytes tried never end; so all classes of runs are here.
        word, byte = C(0), C(0)
        for index, memory in enumerate(memories):
            for length in range(BYTES + 1):
                same = (space == index) & (
                    (run == length) if length else ((run == 0) | (run > BYTES))
                )
                for k, (w, b) in enumerate(places(memory.word_bytes, length)):
                    hit = same & (written == k)
                    word, byte = Mux(hit, w, word), Mux(hit, b, byte)
        # The engine takes a byte when it likes, and has it in its memory some time later.
        ready, settles = free(m, 1, "ready"), free(m, 1, "settles")
        held = Signal()
        with m.If(dut.write_en & ready):
            m.d.sync += held.eq(1)
        with m.Elif(settles):
            m.d.sync += held.eq(0)
        m.d.comb += [dut.write_ready.eq(ready), dut.write_idle.eq(~held)]
        with m.If(dut.write_en & ready):
            m.d.sync += written.eq(written + 1)
        with m.If(dut.write_en):
            m.d.comb += [
                Assert(started & ~finished & (written < given)),
                Assert(dut.write_space == space),
                Assert(dut.write_addr == (address + word)[:16]),
                Assert(dut.write_byte == byte),
                Assert(dut.write_data == chosen(data, written)),
            ]
        m.d.comb += Assert(given <= count)
        with m.If(dut.done):
            m.d.sync += finished.eq(1)
            m.d.comb += [
                Assert(started & ~finished & (given == count) & (written == count)),
                Assert(~held),
            ]
        # It ends: a source and an engine without stalls are served in count + 3 cycles.
        patience = Signal(range(BYTES + 8))
        is_stalled = (dut.i.ready & ~dut.i.valid) | (dut.write_en & ~ready) | held
        with m.If(started & ~finished & ~is_stalled):
            m.d.sync += patience.eq(patience + 1)
        m.d.comb += Assert(patience <= count + 3)
        return m


LOADER = "trivet.hdl.loader"


def test_bytes_land_once_at_their_addresses():
    assert holds(Lands(copy_of(LOADER)), steps=STEPS)


@pytest.mark.parametrize(
    "fault",
    [
        ("ends_run = Mux(is_run_end, run == 1, run_left == 2)", "ends_run = run_left == 2"),
        ("is_last.eq(left == 2)", "is_last.eq(left == 3)"),
        ("last_byte.eq(memory.word_bytes - 1)", "last_byte.eq(memory.word_bytes)"),
        ("return Mux((run == 0) | (run > endless), endless, run)", "return run"),
        ("takes.eq(self.i.valid & self.i.ready)", "takes.eq(self.i.ready)"),
        ("self.write_data.eq(self.i.payload)", "self.write_data.eq(self.i.payload | (left == 2))"),
    ],
)
def test_faults_are_found(fault):
    assert refuted(Lands(copy_of(LOADER, fault)), steps=STEPS)
