"""The host link above its byte stream, with a stub engine: every block gets its one answer."""

import gc
import random
import zlib
from dataclasses import replace
from functools import partial

import pytest
from amaranth._unused import MustUse
from cobs import cobs
from streams import collect, feed, simulate
from stub_engine import StubEngine

from trivet.hdl.config import SMALL
from trivet.hdl.isa import Expand
from trivet.hdl.loader import memories
from trivet.hdl.top import Top
from trivet.runtime.link.expand import expand_requests
from trivet.runtime.link.frame import (
    Counters,
    Done,
    Frame,
    FrameReader,
    Hello,
    Nak,
    Space,
    Type,
    counters_request,
    load_request,
    peek_request,
    run_request,
)

BUILD = bytes(range(100, 132))
WINDOWS = Expand((3, 3, 2), 2, 2, 1, 1, 0, 0, 2, 2, 0)  # 4 pixels of 8 bytes


def ask(*blocks, answers=None, stall_in=0.0, stall_out=0.0, seed=5):
    """Send frames (or raw bytes) to a fresh board; its answers. The stub engine comes second."""
    sent = b"".join(b.encode() if isinstance(b, Frame) else b for b in blocks)
    dut = Top(SMALL, BUILD, board="bench", engine=StubEngine(SMALL))
    received = []
    simulate(
        dut,
        feed(dut.i, sent, stall_in, seed),
        collect(
            dut.o,
            received,
            len(blocks) if answers is None else answers,
            lambda byte: byte == 0,
            stall=stall_out,
            seed=seed + 1,
        ),
    )
    return list(FrameReader().feed(bytes(received))), dut.engine


def test_hello_tells_who_answers():
    (answer,), _ = ask(Frame(Type.HELLO, seq=77, stream=3))
    assert (answer.type, answer.seq, answer.stream) == (Type.HELLO, 77, 3)
    assert Hello.from_payload(answer.payload) == Hello(
        BUILD.hex(), SMALL.sha256, "bench", SMALL.isa, window=1, credits=2, epoch=0
    )


@pytest.mark.parametrize(("stall_in", "stall_out"), [(0.0, 0.0), (0.3, 0.1), (0.0, 0.6)])
@pytest.mark.parametrize(("run", "length"), [(0, 50), (3, 48), (6, 54), (8, 40), (1, 9)])
def test_a_tensor_comes_back_as_it_was_loaded(run, length, stall_in, stall_out):
    data = random.Random(run).randbytes(length)
    (loaded, peeked), _ = ask(
        Frame(Type.LOAD, load_request(Space.ACT, 5, data, run), 1),
        Frame(Type.PEEK, peek_request(Space.ACT, 5, length, run), 2),
        stall_in=stall_in,
        stall_out=stall_out,
    )
    assert (loaded.type, loaded.payload) == (Type.ACK, b"")
    assert (peeked.type, peeked.payload, peeked.seq) == (Type.DATA, data, 2)


def test_runs_are_padded_to_words():
    data = bytes(range(1, 13))
    answers, _ = ask(
        Frame(Type.LOAD, load_request(Space.ACT, 0, data, 3)),
        Frame(Type.PEEK, peek_request(Space.ACT, 0, 16)),
    )
    assert answers[1].payload == b"\1\2\3\0\4\5\6\0\7\10\11\0\12\13\14\0"


@pytest.mark.parametrize(("stall_in", "stall_out"), [(0.0, 0.0), (0.3, 0.2)])
def test_an_expanded_tensor_lies_window_by_window(stall_in, stall_out):
    """Every request is sent twice, and a RESET stands in the middle."""
    data = bytes(range(1, 19))
    first, second = (Frame(Type.LOAD, r) for r in expand_requests(WINDOWS, 7, 4, data, 11))
    answers, _ = ask(
        second,
        first,
        Frame(Type.RESET),
        *(replace(frame, flags=1, seq=k) for k, frame in enumerate((first, second, second), 1)),
        Frame(Type.PEEK, peek_request(Space.ACT, 6, 40), flags=1),
        stall_in=stall_in,
        stall_out=stall_out,
    )
    assert [f.type for f in answers[:-1]] == [Type.ACK] * 6
    rows = [data[6 * y + 2 * x :][:4] for y in range(3) for x in range(2)]
    windows = b"".join(rows[k] + rows[k + 2] for k in range(4))
    assert answers[-1].payload == bytes(4) + windows + bytes(4)


def test_expanded_and_plain_loads_alternate():
    (spread,) = expand_requests(WINDOWS, 2, 4, bytes(range(1, 19)))
    answers, _ = ask(
        Frame(Type.LOAD, load_request(Space.ACT, 0, b"abcd")),
        Frame(Type.LOAD, spread),
        Frame(Type.LOAD, load_request(Space.ACT, 1, b"efgh")),
        Frame(Type.PEEK, peek_request(Space.ACT, 0, 12)),
    )
    assert answers[-1].payload == b"abcdefgh\1\2\3\4"


def test_longest_frames_pass():
    data = random.Random(1).randbytes(1016)
    answers, _ = ask(
        Frame(Type.LOAD, load_request(Space.ACT, 1, data)),
        Frame(Type.PEEK, peek_request(Space.ACT, 0, 1024)),
    )
    assert answers[1].payload == bytes(4) + data + bytes(4)


def test_run_reports_ticket_and_cycles():
    answers, _ = ask(Frame(Type.RUN, run_request(0x12345678, 3, 1), 9))
    assert Done.from_payload(answers[0].payload) == Done(0x12345678, 0, 10)
    assert answers[0].seq == 9


def test_engine_error_names_its_layer():
    answers, _ = ask(Frame(Type.RUN, run_request(1, 9)))
    assert (answers[0].type, answers[0].payload) == (Type.ERROR, b"\1\x09\0")


def test_run_with_the_same_ticket_and_number_is_answered_again_and_not_run_again():
    again = Frame(Type.RUN, run_request(4, 5), 8)
    answers, _ = ask(again, answers=1)
    # Back to back the second arrives during the first, so a slow HELLO stands between.
    both, _ = ask(again, Frame(Type.HELLO), Frame(Type.HELLO), again)
    dones = [f for f in both if f.type == Type.DONE]
    assert [f.payload for f in dones] == [answers[0].payload] * 2


LONG = 31  # the stub runs 7 cycles and 20 for each


def test_busy_board_serves_what_changes_no_run_and_queues_one():
    data = bytes(range(8))
    answers, _ = ask(
        Frame(Type.RUN, run_request(1, LONG), 1),
        Frame(Type.LOAD, load_request(Space.ACT, 3, data), 2),
        Frame(Type.LOAD, load_request(Space.PARM, 0, data), 3),
        Frame(Type.RUN, run_request(2, LONG), 4),
        Frame(Type.PEEK, peek_request(Space.ACT, 3, 8), 5),
        Frame(Type.RUN, run_request(3), 6),
        Frame(Type.RUN, run_request(2, LONG), 4),
        Frame(Type.HELLO, seq=7),
    )
    found = {}
    for f in answers:
        found.setdefault(f.seq, []).append((f.type, f.payload))
    assert found[2] == [(Type.ACK, b"")]
    assert found[3] == [(Type.NAK, bytes([Nak.BUSY]))]
    assert found[5] == [(Type.DATA, data)]
    assert found[6] == [(Type.NAK, bytes([Nak.BUSY]))]
    again, done = found[4]
    assert again == (Type.NAK, bytes([Nak.BUSY]))  # it is under way and not run twice
    assert [Done.from_payload(found[1][0][1]).ticket, Done.from_payload(done[1]).ticket] == [1, 2]
    ends = [f.seq for f in answers if f.type == Type.DONE]
    assert ends == [1, 4]


def test_run_behind_a_failed_one_is_dropped():
    answers, _ = ask(Frame(Type.RUN, run_request(1, 9), 1), Frame(Type.RUN, run_request(2, 3), 2))
    assert (answers[0].type, answers[0].seq) == (Type.ERROR, 1)
    assert (answers[1].type, answers[1].seq) == (Type.DONE, 2)
    assert Done.from_payload(answers[1].payload) == Done(2, 1, 0)


def sweep(first, second, gaps, rest=200):
    """A run of ``first``, ``second`` some cycles later, then a run of 5; the answers.

    Their numbers are their tickets and 1. Where ``second`` resets, each time is an epoch.
    """
    blocks = []
    epoch = 0
    for ticket, gap in zip(range(0, 3 * len(gaps), 3), gaps, strict=True):
        other = replace(second(ticket + 1), seq=ticket + 2, flags=epoch)
        blocks += [
            bytes(rest),  # empty blocks, skipped at a byte a cycle
            Frame(Type.RUN, run_request(ticket, first), ticket + 1, flags=epoch),
            bytes(gap),
            other,
            bytes(12),
        ]
        epoch += other.type == Type.RESET
        blocks.append(Frame(Type.RUN, run_request(ticket + 2, 5), ticket + 3, flags=epoch))
    answers, _ = ask(*blocks, answers=3 * len(gaps))
    return enumerate(zip(answers[::3], answers[1::3], answers[2::3], strict=True))


def test_run_that_starts_while_another_fails_is_dropped_or_run_but_never_both():
    """Whatever the cycle: the engine starts it as soon as it is at rest, and drops it before."""
    seen = []
    again = partial(run_request, first=LONG)
    runs = sweep(9, lambda ticket: Frame(Type.RUN, again(ticket)), range(160, 170), rest=700)
    for k, (failed, other, last) in runs:
        assert (failed.type, failed.payload) == (Type.ERROR, b"\1\x09\0")
        assert (failed.seq, other.seq, last.seq) == (3 * k + 1, 3 * k + 2, 3 * k + 3)
        done = Done.from_payload(other.payload)
        assert done in (Done(3 * k + 1, 1, 0), Done(3 * k + 1, 0, 627))
        assert Done.from_payload(last.payload) == Done(3 * k + 2, 0, 12)
        seen.append(done.status)
    assert sorted(seen, reverse=True) == seen
    assert set(seen) == {0, 1}


def test_reset_in_any_cycle_of_a_runs_end_answers_it_once():
    seen = []
    runs = sweep(20, lambda _: Frame(Type.RESET), range(25))
    for k, (ended, reset, last) in runs:
        assert (ended.type, reset.type) == (Type.DONE, Type.ACK)
        assert (ended.seq, reset.seq) == (3 * k + 1, 3 * k + 2)
        done = Done.from_payload(ended.payload)
        assert done in (Done(3 * k, 1, 0), Done(3 * k, 0, 27))
        assert Done.from_payload(last.payload) == Done(3 * k + 2, 0, 12)
        seen.append(done.status)
    assert sorted(seen, reverse=True) == seen
    assert set(seen) == {0, 1}


def test_reset_answers_both_runs():
    answers, _ = ask(
        Frame(Type.RUN, run_request(1, LONG), 1), Frame(Type.RUN, run_request(2, LONG), 2),
        Frame(Type.RESET, seq=3),
    )
    assert [(f.type, f.seq) for f in answers] == [(Type.DONE, 1), (Type.DONE, 2), (Type.ACK, 3)]
    assert [Done.from_payload(f.payload).status for f in answers[:2]] == [1, 1]


def test_reset_stops_a_run_and_both_are_answered():
    answers, _ = ask(
        Frame(Type.RUN, run_request(1, 31), 1), Frame(Type.RESET, seq=2), Frame(Type.HELLO, seq=3)
    )
    assert [(f.type, f.seq) for f in answers] == [(Type.DONE, 1), (Type.ACK, 2), (Type.HELLO, 3)]
    assert Done.from_payload(answers[0].payload) == Done(1, 1, 0)
    assert Hello.from_payload(answers[2].payload).epoch == 1 + (2 << 16)


def test_counters_come_in_order():
    answers, _ = ask(
        Frame(Type.COUNTERS, counters_request(2, 30)), Frame(Type.COUNTERS, counters_request(7, 0))
    )
    assert Counters.from_payload(answers[0].payload) == [
        Counters(0x100 + k, 0x200 + k, 0x300 + k) for k in range(2, 32)
    ]
    assert (answers[1].type, answers[1].payload) == (Type.COUNTERS, b"")


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (Frame(99), Nak.TYPE),
        (Frame(Type.HELLO, b"x"), Nak.LENGTH),
        (Frame(Type.RUN, bytes(7)), Nak.LENGTH),
        (Frame(Type.LOAD, bytes(7)), Nak.LENGTH),
        (Frame(Type.LOAD, load_request(7, 0, b"x")), Nak.RANGE),
        (Frame(Type.LOAD, load_request(Space.EXPAND, 0, bytes(36))), Nak.LENGTH),
        (Frame(Type.LOAD, load_request(Space.EXPAND, 0, bytes(37))), Nak.RANGE),
        (Frame(Type.LOAD, load_request(Space.EXPAND, 0, bytes(1016))), Nak.RANGE),
        (Frame(Type.LOAD, next(expand_requests(WINDOWS, 3068, 4, bytes(18)))), Nak.RANGE),
        (Frame(Type.LOAD, next(expand_requests(WINDOWS, 65530, 4, bytes(18)))), Nak.RANGE),
        (Frame(Type.LOAD, load_request(Space.ACT, 3072, b"x")), Nak.RANGE),
        (Frame(Type.LOAD, load_request(Space.ACT, 3070, bytes(9))), Nak.RANGE),
        (Frame(Type.LOAD, load_request(Space.ACT, 3070, bytes(3), run=1)), Nak.RANGE),
        (Frame(Type.LOAD, load_request(Space.ACT, 1 << 16, b"x")), Nak.RANGE),
        (Frame(Type.LOAD, load_request(Space.ACT, 0xFFFFFFFF, bytes(8))), Nak.RANGE),
        (Frame(Type.PEEK, peek_request(Space.WGHT, 0, 1)), Nak.RANGE),
        (Frame(Type.PEEK, peek_request(Space.ACT, 3071, 5)), Nak.RANGE),
        (Frame(Type.PEEK, peek_request(Space.ACT, 0, 1025)), Nak.RANGE),
        (Frame(Type.COUNTERS, counters_request(0, 65)), Nak.RANGE),
        (Frame(Type.COUNTERS, counters_request(32, 1)), Nak.RANGE),
        (Frame(Type.COUNTERS, counters_request(0xFFFF, 1)), Nak.RANGE),
        (Frame(Type.RUN, run_request(0, 32)), Nak.RANGE),
    ],
)
def test_bad_requests_are_refused_and_the_next_is_served(frame, reason):
    answers, _ = ask(frame, Frame(Type.HELLO))
    assert (answers[0].type, answers[0].payload) == (Type.NAK, bytes([reason]))
    assert answers[1].type == Type.HELLO


def test_damage_is_refused_and_changes_nothing():
    rng = random.Random(8)
    good = Frame(Type.LOAD, load_request(Space.ACT, 0, bytes(range(1, 9))), 1)
    bad = []
    for _ in range(10):
        block = bytearray(
            Frame(Type.LOAD, load_request(Space.ACT, 0, rng.randbytes(8)), 2).encode()[:-1]
        )
        block[rng.randrange(1, len(block))] ^= 1 << rng.randrange(8)
        bad.append(bytes(block) + b"\0")
    # A flipped bit that makes a zero cuts a block in two, and each half is answered.
    count = sum(len(b.split(b"\0")) - 1 - b.split(b"\0")[:-1].count(b"") for b in bad)
    answers, _ = ask(good, *bad, Frame(Type.PEEK, peek_request(Space.ACT, 0, 8)), answers=count + 2)
    assert all((f.type, f.payload) == (Type.NAK, bytes([Nak.CRC])) for f in answers[1:-1])
    assert answers[-1].payload == bytes(range(1, 9))


def test_noise_truncation_and_oversize_are_survived():

    def seal(body):
        return cobs.encode(body + zlib.crc32(body).to_bytes(4, "little")) + b"\0"

    whole = Frame(Type.HELLO, seq=1)
    answers, _ = ask(
        b"\0\0\0",  # nothing: no answer
        b"\x55noise\0",  # not COBS
        whole.encode()[:6] + b"\0",  # cut short
        seal(
            b"\1\1\0\0\2\0" + (1100).to_bytes(2, "little") + bytes(1100)
        ),  # too long, checksum right
        seal(b"\1\1\0\0\3\0\5\0" + b"1234"),  # length field wrong
        seal(b"\2\1\0\0\4\0\0\0"),  # another version
        bytes([9]) * 3000 + b"\0",  # long noise
        whole,
        answers=7,
    )
    assert [(f.type, f.payload[:1], f.seq) for f in answers[2:5]] == [
        (Type.NAK, bytes([Nak.LENGTH]), 2),
        (Type.NAK, bytes([Nak.LENGTH]), 3),
        (Type.NAK, bytes([Nak.TYPE]), 4),
    ]
    assert [f.payload for f in (*answers[:2], answers[5])] == [bytes([Nak.CRC])] * 3
    assert (answers[6].type, answers[6].seq) == (Type.HELLO, 1)


def test_every_memory_is_loaded_where_it_was_asked():
    rng = random.Random(3)
    texts = {
        space: rng.randbytes(2 * memory.word_bytes) for space, memory in enumerate(memories(SMALL))
    }
    found = {}
    dut = Top(SMALL, BUILD, engine=StubEngine(SMALL))
    sent = b"".join(Frame(Type.LOAD, load_request(s, 3, t)).encode() for s, t in texts.items())
    received = []
    answered = collect(dut.o, received, len(texts), lambda byte: byte == 0)

    async def look(ctx):
        await answered(ctx)
        for space, memory in enumerate(dut.engine.memories):
            found[space] = b"".join(
                ctx.get(memory.data[k]).to_bytes(len(texts[space]) // 2, "little") for k in (3, 4)
            )

    simulate(dut, feed(dut.i, sent), look)
    assert found == texts


def test_wrong_build_hash_and_long_names_are_refused(monkeypatch):
    monkeypatch.setattr(MustUse, "_MustUse__silence", True)  # refused, so never elaborated
    with pytest.raises(ValueError, match="build_sha256 has 3 bytes, must have 32"):
        Top(SMALL, b"abc")
    with pytest.raises(ValueError, match="has 17 characters, at most 16"):
        Top(SMALL, BUILD, board="x" * 17)
    gc.collect()  # while the warning about them is off
