"""Who may use a board, and when: the gate in front of the controller, on the whole host link."""

import gc
import random
from dataclasses import replace

import pytest
from amaranth._unused import MustUse
from link_board import LinkBoard
from streams import collect, feed, simulate
from stub_engine import StubEngine

from trivet.hdl.config import SMALL
from trivet.hdl.link.gate import Gate
from trivet.hdl.top import Top
from trivet.runtime.link.frame import (
    Frame,
    FrameReader,
    Hello,
    Nak,
    Space,
    Type,
    load_request,
    peek_request,
    run_request,
)

COMPACT = replace(SMALL, requantisers=1, tables=0, serial=1, expander=0, counters=0, compact=1)
OWNER, OLD = bytes([Nak.OWNER]), bytes([Nak.OLD])


def ask(*blocks, config=SMALL, lease=10_000):
    """Send frames, or a number of cycles to wait for, to a fresh board; its answers."""
    dut = Top(config, bytes(32), board="bench", engine=StubEngine(config), lease_cycles=lease)
    received, answers = [], []

    async def host(ctx):
        for block in blocks:
            if isinstance(block, int):
                await ctx.tick().repeat(block)
                continue
            await feed(dut.i, block.encode())(ctx)
            await collect(dut.o, received, 1, lambda byte: byte == 0)(ctx)

    simulate(dut, host)
    answers.extend(FrameReader().feed(bytes(received)))
    return answers


def load(value, seq, epoch, stream=1):
    return Frame(Type.LOAD, load_request(Space.ACT, 3, bytes([value] * 4)), seq, stream, epoch)


def peek(seq, epoch):
    return Frame(Type.PEEK, peek_request(Space.ACT, 3, 4), seq, 1, epoch)


def said(answers):
    """Payloads of refusals and data, types of the rest."""
    return [a.payload if a.type in (Type.NAK, Type.DATA) else Type(a.type) for a in answers]


def test_a_second_owner_is_refused_while_the_lease_lasts():
    first, *rest, hello = ask(
        Frame(Type.RESET, b"", 7, 5),
        Frame(Type.RESET, b"", 9, 6),
        load(1, 8, 1, 5),
        Frame(Type.RESET, b"", 10, 6),
        load(2, 11, 0, 6),
        peek(12, 0),
        peek(13, 1),
        Frame(Type.HELLO, b"", 14, 6),
    )
    assert first.type == Type.ACK
    assert said(rest) == [OWNER, Type.ACK, OWNER, OWNER, OWNER, bytes([1] * 4)]
    assert Hello.from_payload(hello.payload).epoch == 1 | 5 << 8 | 7 << 16


def test_a_stale_owner_cannot_write_after_its_lease():
    answers = ask(
        Frame(Type.RESET, b"", 7, 5),
        load(1, 8, 1),
        1500,
        Frame(Type.HELLO, b"", 9, 5, flags=1),  # keeps it
        1500,
        Frame(Type.RESET, b"", 10, 6),
        2500,
        load(2, 11, 1),  # late, but nobody else has come: still its own
        2500,
        Frame(Type.RESET, b"", 3, 6),
        load(4, 12, 1),
        Frame(Type.RUN, run_request(1), 13, 1, 1),
        peek(14, 1),
        Frame(Type.RESET, b"", 15, 5, flags=1),
        peek(4, 2),
        load(5, 5, 2),
        peek(6, 2),
        lease=2000,
    )
    assert said(answers) == [
        Type.ACK, Type.ACK, Type.HELLO, OWNER, Type.ACK, Type.ACK, OWNER, OWNER, OWNER, OWNER,
        bytes([2] * 4), Type.ACK, bytes([5] * 4),
    ]  # fmt: skip


def test_a_board_that_was_given_back_is_free_at_once():
    back = Frame(Type.RESET, b"", 8, 0, 1)
    other = Frame(Type.RESET, b"", 3, 6)
    answers = ask(Frame(Type.RESET, b"", 7, 5), back, other, load(1, 4, 3), back)
    assert said(answers) == [Type.ACK] * 4 + [OWNER]


def test_a_run_keeps_the_lease():
    """``first`` 31 takes some 600 cycles, twice a lease."""
    run = Frame(Type.RUN, run_request(1, 31), 8, 5, flags=1)
    other = Frame(Type.RESET, b"", 3, 6)
    assert said(ask(Frame(Type.RESET, b"", 7, 5), run, other, lease=300)) == [
        Type.ACK, Type.DONE, OWNER,
    ]  # fmt: skip


def test_what_comes_late_changes_nothing():
    top = (1 << 16) - 2
    reset = Frame(Type.RESET, b"", top, 1)
    run = Frame(Type.RUN, run_request(77), 1, 1, 1)
    answers = ask(
        reset,
        load(1, top + 1, 1),
        load(2, 0, 1),
        load(3, top + 1, 1),  # late
        load(4, 0, 1),  # twice
        run,
        load(5, 0, 1),  # as late as the run
        peek(2, 1),
        load(6, 3, 1),
        run,  # told again
        Frame(Type.RUN, run_request(78), 4, 1, 1),
        Frame(Type.RUN, run_request(79), 5, 1, 1),
        run,
        reset,
    )
    assert said(answers) == [
        Type.ACK, Type.ACK, Type.ACK, OLD, OLD, Type.DONE, OLD, bytes([2] * 4), Type.ACK,
        Type.DONE, Type.DONE, Type.DONE, OLD, OWNER,
    ]  # fmt: skip


def test_a_run_that_was_overtaken_by_a_load_is_done():
    answers = ask(
        Frame(Type.RESET, b"", 1, 1),
        load(1, 3, 1),
        Frame(Type.RUN, run_request(7), 2, 1, 1),
        load(2, 3, 1),
        load(2, 4, 1),
    )
    assert said(answers) == [Type.ACK, Type.ACK, Type.DONE, OLD, Type.ACK]


def test_compact_boards_know_their_epoch_alone():
    answers = ask(
        load(1, 9, 0),
        Frame(Type.RESET, b"", 1, 1),
        load(2, 1, 0),
        load(3, 1, 1),
        peek(2, 1),
        Frame(Type.RESET, b"", 1, 1),
        peek(2, 1),
        Frame(Type.HELLO),
        config=COMPACT,
    )
    assert said(answers)[:-1] == [
        Type.ACK, Type.ACK, OWNER, Type.ACK, bytes([3] * 4), Type.ACK, OWNER
    ]  # fmt: skip
    assert Hello.from_payload(answers[-1].payload).epoch == 2


def test_the_board_in_python_judges_alike():
    """Random requests of two hosts, half of them late or of an old epoch."""
    rng = random.Random(5)
    frames, epoch = [Frame(Type.RESET, b"", 3, 1)], 1
    seq = 3
    for _ in range(70):
        seq += rng.choice([0, 1, 1, 2])
        known = rng.choice([0, epoch, epoch, epoch, epoch - 1])
        kind = rng.choice(["load", "load", "run", "peek", "reset", "hello"])
        number = max(0, seq - rng.choice([0, 0, 0, 1, 2, 5]))
        if kind == "load":
            frames.append(load(rng.randrange(256), number, known))
        elif kind == "run":
            frames.append(Frame(Type.RUN, run_request(number), number, 1, known))
        elif kind == "peek":
            frames.append(peek(number, known))
        elif kind == "hello":
            frames.append(Frame(Type.HELLO, b"", number, 2, known))
        else:
            frames.append(Frame(Type.RESET, b"", number, 1, known))
            epoch += known == epoch
    board = LinkBoard(SMALL, name="bench")
    expected = [board.answer(frame) for frame in frames]
    assert said(ask(*frames, lease=1 << 20)) == said(expected)
    assert {OWNER, OLD, Type.ACK, Type.DONE} <= set(said(expected))


def test_a_lease_has_a_length(monkeypatch):
    monkeypatch.setattr(MustUse, "_MustUse__silence", True)  # refused, so never elaborated
    with pytest.raises(ValueError, match="a lease has 0 cycles, must have at least 1"):
        Gate(lease_cycles=0)
    gc.collect()  # while the warning about them is off
