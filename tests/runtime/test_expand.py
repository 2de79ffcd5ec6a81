"""The setup of every request, followed window by window, reaches what im2col says."""

from __future__ import annotations

import numpy as np
import pytest

from trivet.hdl.isa import Expand
from trivet.runtime.link.expand import EXPAND_BYTES, expand_requests, expand_setup
from trivet.runtime.link.frame import PAYLOAD_BYTES

WORD = 4
CASES = [
    Expand((5, 6, 3), 3, 3, 1, 1, 1, 1, 5, 6, 0),
    Expand((9, 5, 1), 5, 4, 2, 2, 2, 1, 5, 2, 0),
    Expand((1, 40, 2), 1, 8, 1, 4, 0, 3, 1, 10, 0),
    Expand((7, 7, 2), 2, 3, 2, 3, 0, 0, 3, 2, 0),
    Expand((6, 6, 5), 4, 4, 3, 2, 3, 3, 3, 5, 0),
]


def index_in_buffer(e: Expand) -> dict[int, set[int]]:
    """Byte of the tensor -> its places in the buffer, by the definition."""
    h, w, c = e.hwc
    depth = e.stored[2]
    pixel = -(-depth // WORD) * WORD
    found: dict[int, set[int]] = {n: set() for n in range(h * w * c)}
    for oy, ox, ky, kx, k in np.ndindex(e.out_h, e.out_w, e.kernel_h, e.kernel_w, c):
        y, x = oy * e.stride_h + ky - e.pad_top, ox * e.stride_w + kx - e.pad_left
        if 0 <= y < h and 0 <= x < w:
            place = (oy * e.out_w + ox) * pixel + (ky * e.kernel_w + kx) * c + k
            found[(y * w + x) * c + k].add(place)
    return found


@pytest.mark.parametrize("e", CASES)
def test_every_byte_reaches_its_windows(e: Expand) -> None:
    h, w, c = e.hwc
    for index, wanted in index_in_buffer(e).items():
        address, s = expand_setup(e, 10, WORD, index)
        places = set()
        for up in range(s["row"] + 1):
            for left in range(s["column"] + 1):
                ky = s["phase_y"] + up * s["stride_h"]
                kx = s["phase_x"] + left * s["stride_w"]
                row, column = s["row"] - up, s["column"] - left
                if ky < e.kernel_h and kx < e.kernel_w and row < e.out_h and column < e.out_w:
                    places.add(address + up * s["tap_y"] + left * s["tap_x"] - 10 * WORD)
        assert places == wanted, index
        assert s["channels_left"] == c - index % c
        assert s["columns_left"] == w - index // c % w
    assert h * w * c == len(index_in_buffer(e))


def test_requests_fill_frames() -> None:
    e = Expand((32, 32, 3), 3, 3, 1, 1, 1, 1, 32, 32, 0)
    data = np.random.default_rng(1).integers(0, 256, 3072).astype(np.uint8).tobytes()
    requests = list(expand_requests(e, 0, 16, data))
    assert [len(r) for r in requests[:-1]] == [PAYLOAD_BYTES] * (len(requests) - 1)
    assert b"".join(r[PAYLOAD_BYTES - EXPAND_BYTES :] for r in requests) == data
