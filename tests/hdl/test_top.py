"""The whole board in Amaranth's simulator: one small layer from its bytes to its result."""

from dataclasses import replace

import pytest
from streams import collect, feed, simulate

from trivet.hdl.config import SMALL
from trivet.hdl.isa import Instruction, Op, predicted_total
from trivet.hdl.top import Top
from trivet.runtime.link.frame import (
    Done,
    Frame,
    FrameReader,
    Space,
    Type,
    load_request,
    peek_request,
    run_request,
)

COMPACT = replace(SMALL, requantisers=1, tables=0, serial=1, expander=0, counters=0, compact=1)


@pytest.mark.parametrize("config", [SMALL, COMPACT], ids=["small", "compact"])
def test_a_copy_layer_runs_over_the_link(config):
    """Bytes times 1, scale 1: what goes in comes out four words further on."""
    idle = max(0, config.pixel_cycles - 1)
    copy = Instruction(op=Op.LANE, dst=8, out_w=4, in_w=4, weight_hold=1, idle=idle)
    code = copy.encode() + Instruction(op=Op.END).encode()
    weights = b"".join(bytes([1, 0, 0, 0]) for _ in range(config.lanes))
    one = bytes(4) + b"\0\0\x80\x3f"  # bias 0, multiplier 1.0
    data = bytes((37 * k + 5) & 0xFF for k in range(16))
    requests = [
        Frame(Type.LOAD, load_request(Space.INST, 0, code), 1),
        Frame(Type.LOAD, load_request(Space.WGHT, 0, weights), 2),
        Frame(Type.LOAD, load_request(Space.PARM, 0, one * config.lanes), 3),
        Frame(Type.LOAD, load_request(Space.ACT, 0, data), 4),
        Frame(Type.RUN, run_request(77), 5),
    ]
    dut = Top(config, bytes(32))
    received, late = [], []
    first = collect(dut.o, received, len(requests), lambda byte: byte == 0)
    peek = feed(dut.i, Frame(Type.PEEK, peek_request(Space.ACT, 8, 16), 6).encode())
    second = collect(dut.o, late, 1, lambda byte: byte == 0)
    states = []

    async def host(ctx):
        await first(ctx)
        await peek(ctx)
        await second(ctx)
        await ctx.tick().repeat(5)
        states.append(ctx.get(dut.active))

    simulate(dut, feed(dut.i, b"".join(f.encode() for f in requests)), host)
    *loaded, done = FrameReader().feed(bytes(received))
    assert [f.type for f in loaded] == [Type.ACK] * 4
    assert Done.from_payload(done.payload) == Done(77, 0, predicted_total(config, [copy]))
    (answer,) = FrameReader().feed(bytes(late))
    assert answer.payload == data
    assert states == [0]
