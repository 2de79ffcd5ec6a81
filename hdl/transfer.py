"""What it takes to move a tensor between host and board: round trips and the loader's cycles.

Pure data, without Amaranth: closed forms for the planner. The host has one request under way; a
LOAD carries what its header leaves of a frame, a PEEK's answer a whole one (``runtime/link``).
"""

from __future__ import annotations

from .isa import Expand

__all__ = [
    "EXPAND_BYTES",
    "LOAD_BYTES",
    "PAYLOAD_BYTES",
    "expand_cycles",
    "expand_frames",
    "frames",
]

PAYLOAD_BYTES = 1024
LOAD_BYTES = PAYLOAD_BYTES - 8  # space, run, address
EXPAND_BYTES = LOAD_BYTES - 37  # ... and the setup of hdl/expand.py


def frames(hwc: tuple[int, int, int], word_bytes: int, *, most: int = LOAD_BYTES) -> int:
    """Requests that carry a tensor without gaps, with at most ``most`` of its bytes in each.

    Where its channels fill whole words, any number of words; else whole pixels; pixels beyond a
    frame are split at words.
    """
    h, w, c = hwc
    if c % word_bytes == 0:
        return -(-h * w * c // (most // word_bytes * word_bytes))
    if c <= most:
        return -(-h * w // (most // c))
    return h * w * -(-c // (most // word_bytes * word_bytes))


def expand_frames(expand: Expand) -> int:
    """Requests that carry a tensor which the board spreads over windows."""
    h, w, c = expand.hwc
    return -(-h * w * c // EXPAND_BYTES)


def expand_cycles(expand: Expand) -> int:
    """Cycles in which the board spreads a tensor over windows, exact; those of its frames left out.

    A byte takes one, and one for each window that ``hdl/expand.py`` visits: from the last one that
    holds the byte up to ``ceil((kernel - phase) / stride)`` of them in either direction, as far as
    there are windows.
    """
    h, w, c = expand.hwc

    def visits(size: int, kernel: int, stride: int, pad: int) -> int:
        found = 0
        for place in range(size):
            last, phase = divmod(place + pad, stride)
            found += min(-(-(kernel - phase) // stride), last + 1)
        return found

    across = visits(w, expand.kernel_w, expand.stride_w, expand.pad_left)
    down = visits(h, expand.kernel_h, expand.stride_h, expand.pad_top)
    return c * (h * w + across * down)
