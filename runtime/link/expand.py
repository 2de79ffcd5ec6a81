"""Requests that write an input which the board spreads over the windows of its convolution.

Each request carries all that the board needs (``hdl/expand.py``), so none depends on another:
repeated after a lost answer, it writes the same bytes to the same places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from .frame import LOAD_BYTES, Space, load_request

__all__ = ["EXPAND_BYTES", "ExpandLike", "expand_requests", "expand_setup"]

_WIDTHS = {
    "channels": 1, "columns": 2, "out_h": 2, "out_w": 2, "kernel_h": 1, "kernel_w": 1,
    "stride_h": 1, "stride_w": 1, "pad_phase": 1, "pad_column": 1, "tap_x": 3, "tap_y": 3,
    "step_column": 3, "step_row": 3, "step_rows": 3, "channels_left": 1, "columns_left": 2,
    "column": 2, "phase_x": 1, "row": 2, "phase_y": 1,
}  # fmt: skip
_SETUP_BYTES = sum(_WIDTHS.values())
EXPAND_BYTES = LOAD_BYTES - _SETUP_BYTES  # of a tensor in one request


class ExpandLike(Protocol):
    """Windows of a convolution, as :class:`trivet.hdl.isa.Expand` describes them."""

    @property
    def hwc(self) -> tuple[int, int, int]: ...
    @property
    def kernel_h(self) -> int: ...
    @property
    def kernel_w(self) -> int: ...
    @property
    def stride_h(self) -> int: ...
    @property
    def stride_w(self) -> int: ...
    @property
    def pad_top(self) -> int: ...
    @property
    def pad_left(self) -> int: ...
    @property
    def out_h(self) -> int: ...
    @property
    def out_w(self) -> int: ...
    @property
    def zp(self) -> int: ...
    @property
    def stored(self) -> tuple[int, int, int]: ...


def expand_setup(
    expand: ExpandLike, offset: int, word_bytes: int, index: int = 0
) -> tuple[int, dict[str, int]]:
    """Byte address of the tensor's byte ``index`` in the last window that holds it, and the setup.

    ``offset``: word address of the buffer. Keys and meanings are those of ``hdl/expand.py``.
    """
    _, w, c = expand.hwc
    pixel = -(-expand.stored[2] // word_bytes) * word_bytes  # bytes of a window
    line = expand.out_w * pixel

    def place(y: int, x: int) -> int:
        """Address of channel 0 of image row ``y``, column ``x`` in the last window with it."""
        row, ky = divmod(y + expand.pad_top, expand.stride_h)
        column, kx = divmod(x + expand.pad_left, expand.stride_w)
        return row * line + column * pixel + (ky * expand.kernel_w + kx) * c

    tap_x = expand.stride_w * c - pixel
    tap_y = expand.stride_h * expand.kernel_w * c - line
    # Rows that begin no window: the same way from one to the next, so that of an image's first
    # row will do, with the step to the next window taken back where it is one.
    crosses = (expand.pad_top + 1) % expand.stride_h == 0
    step_row = place(1, 0) - (place(0, w - 1) + c - 1) + (tap_y if crosses else 0)
    y, rest = divmod(index, w * c)
    x, channel = divmod(rest, c)
    row, phase_y = divmod(y + expand.pad_top, expand.stride_h)
    column, phase_x = divmod(x + expand.pad_left, expand.stride_w)
    pad_column, pad_phase = divmod(expand.pad_left, expand.stride_w)
    return offset * word_bytes + place(y, x) + channel, {
        "channels": c, "columns": w, "out_h": expand.out_h, "out_w": expand.out_w,
        "kernel_h": expand.kernel_h, "kernel_w": expand.kernel_w,
        "stride_h": expand.stride_h, "stride_w": expand.stride_w,
        "pad_phase": pad_phase, "pad_column": pad_column, "tap_x": tap_x, "tap_y": tap_y,
        "step_column": 1 - tap_x, "step_row": step_row, "step_rows": step_row - tap_y,
        "channels_left": c - channel, "columns_left": w - x,
        "column": column, "phase_x": phase_x, "row": row, "phase_y": phase_y,
    }  # fmt: skip


def expand_requests(
    expand: ExpandLike, offset: int, word_bytes: int, data: bytes, piece: int = EXPAND_BYTES
) -> Iterator[bytes]:
    """Payloads of the LOADs that write a tensor's NHWC bytes, at most ``piece`` in each."""
    for index in range(0, len(data), piece):
        address, setup = expand_setup(expand, offset, word_bytes, index)
        packed = b"".join(
            (setup[name] % (1 << 24) if width == 3 else setup[name]).to_bytes(width, "little")
            for name, width in _WIDTHS.items()
        )
        body = packed + data[index : index + piece]
        yield load_request(Space.EXPAND, address % (word_bytes << 16), body)
