"""Round trips are those of the host's client; tests/hdl/test_expand.py counts the cycles."""

from types import SimpleNamespace

import pytest

from trivet.hdl.expand import SETUP_BYTES
from trivet.hdl.isa import Expand, Port
from trivet.hdl.transfer import (
    EXPAND_BYTES,
    LOAD_BYTES,
    PAYLOAD_BYTES,
    expand_cycles,
    expand_frames,
    frames,
)
from trivet.runtime.link import expand, frame
from trivet.runtime.link.client import BoardClient


def test_sizes_are_those_of_the_link():
    assert (PAYLOAD_BYTES, LOAD_BYTES) == (frame.PAYLOAD_BYTES, frame.LOAD_BYTES)
    assert EXPAND_BYTES == expand.EXPAND_BYTES == LOAD_BYTES - SETUP_BYTES


@pytest.mark.parametrize("word_bytes", [4, 16])
@pytest.mark.parametrize("most", [LOAD_BYTES, PAYLOAD_BYTES])
def test_frames_are_as_many_as_the_client_sends(word_bytes, most):
    memories = SimpleNamespace(program=SimpleNamespace(word_bytes={frame.Space.ACT: word_bytes}))
    for hwc in ((32, 32, 3), (32, 32, 16), (1, 1, 10), (1, 1, 4096), (7, 5, 1100), (1, 1, 1025),
                (25, 5, 64), (1, 3, 1008)):
        pieces = list(BoardClient._pieces(memories, Port("t", 0, hwc, "int8"), most))
        assert frames(hwc, word_bytes, most=most) == len(pieces), hwc


def test_an_image_of_resnet8():
    e = Expand((32, 32, 3), 3, 3, 1, 1, 1, 1, 32, 32, 0)
    assert expand_frames(e) == len(list(expand.expand_requests(e, 0, 16, bytes(3072))))
    # 95 = 32 * 3 - 1: a byte of the first row or column lies in two windows that way; those beyond
    # the last take a cycle as well.
    assert expand_cycles(e) == 3 * (32 * 32 + 95 * 95)
