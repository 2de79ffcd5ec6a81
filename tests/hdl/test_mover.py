"""A compact board's link under random requests: what is read is what was written before."""

import random
from dataclasses import replace

import pytest
from streams import collect, feed, simulate

from trivet.hdl.config import SMALL
from trivet.hdl.loader import memories
from trivet.hdl.top import Top
from trivet.runtime.link.frame import (
    Frame,
    FrameReader,
    Nak,
    Space,
    Type,
    counters_request,
    load_request,
    peek_request,
)

COMPACT = replace(
    SMALL, requantisers=1, tables=0, serial=1, expander=0, counters=0, compact=1, act_bank_words=16)
ACT_WORDS = COMPACT.act_words
WORD = COMPACT.word_bytes


def touched(space, address, run, count):
    """Bytes of an area as (word, byte), and the word behind the last: by walking."""
    size = memories(COMPACT)[space].word_bytes
    word, byte, left, found = address, 0, run or count + 1, []
    for _ in range(count):
        found.append((word, byte))
        byte, left = byte + 1, left - 1
        if byte == size or left == 0:
            word, byte = word + 1, 0
        left = left or run
    return found, word + (byte != 0)


def requests(rng, count):
    """Frames and what must answer each: a type and a payload."""
    memory = {}
    for seq in range(count):
        kind = rng.choice(("load", "load", "peek", "peek", "code", "counters", "hello"))
        run, size = rng.choice((0, 0, 1, 3, WORD, 7)), rng.randrange(1, 30)
        address = rng.choice((rng.randrange(ACT_WORDS), ACT_WORDS - rng.randrange(9), 0x1_0000))
        if kind == "hello":
            yield Frame(Type.HELLO, b"", seq), Type.HELLO, None
        elif kind == "counters":
            first = rng.randrange(COMPACT.instructions + 2)
            inside = first + 2 <= COMPACT.instructions
            yield (Frame(Type.COUNTERS, counters_request(first, 2), seq),
                   *((Type.COUNTERS, bytes(24)) if inside else (Type.NAK, bytes([Nak.RANGE]))))
        elif kind == "code":
            words = memories(COMPACT)[Space.INST].words
            address = rng.choice((0, words - 1, words))
            _, end = touched(Space.INST, address, 0, size)
            frame = Frame(Type.LOAD, load_request(Space.INST, address, bytes(size)), seq)
            inside = end <= words
            yield frame, *((Type.ACK, b"") if inside else (Type.NAK, bytes([Nak.RANGE])))
        else:
            places, end = touched(Space.ACT, address, run, size)
            inside = end <= ACT_WORDS
            if kind == "load":
                data = rng.randbytes(size)
                frame = Frame(Type.LOAD, load_request(Space.ACT, address, data, run), seq)
                answer = (Type.ACK, b"")
                if inside:
                    memory.update(zip(places, data, strict=True))
            else:
                frame = Frame(Type.PEEK, peek_request(Space.ACT, address, size, run), seq)
                answer = (Type.DATA, bytes(memory.get(place, 0) for place in places))
            yield frame, *(answer if inside else (Type.NAK, bytes([Nak.RANGE])))


@pytest.mark.parametrize("seed", [1, 2])
def test_random_requests_are_answered_as_by_a_dictionary(seed):
    asked = list(requests(random.Random(seed), 40))
    dut = Top(COMPACT, bytes(32))
    received = []

    async def host(ctx):
        for frame, _, _ in asked:  # one after the other: the window is one
            await feed(dut.i, frame.encode(), stall=0.2)(ctx)
            await collect(dut.o, received, 1, lambda byte: byte == 0)(ctx)

    simulate(dut, host)
    answers = list(FrameReader().feed(bytes(received)))
    assert len(answers) == len(asked)
    for (frame, kind, payload), answer in zip(asked, answers, strict=True):
        assert (answer.type, answer.seq) == (kind, frame.seq)
        if payload is not None and kind != Type.ACK:
            assert answer.payload == payload, frame
    kinds = {(frame.type, kind) for frame, kind, _ in asked}
    assert {(Type.LOAD, Type.ACK), (Type.LOAD, Type.NAK), (Type.PEEK, Type.DATA),
            (Type.PEEK, Type.NAK)} <= kinds
