"""The virtual board in this process: the compiled RTL as a byte stream.

Imports nothing of ours: the board's own process runs this file alone, isolated.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
from pathlib import Path

__all__ = ["VirtualBoard"]

_CHUNK_CYCLES = 200  # between two looks at the input, about half a millisecond
_NEVER = 1 << 62


class VirtualBoard:
    """A board made of compiled RTL; a transport for :class:`~trivet.runtime.link.BoardClient`.

    Simulated time passes only while the board has something to do.

    Parameters
    ----------
    library : Path
        What :func:`trivet.sim.build.build` returned.
    seed : int
        Seed of the stalls.
    stall_in, stall_out : float
        Probability, a cycle, that the line does not offer, or take, a byte; below 1.
    """

    def __init__(
        self, library: Path, *, seed: int = 1, stall_in: float = 0.0, stall_out: float = 0.0
    ) -> None:
        self._board: int | None = None
        for name, value in (("stall_in", stall_in), ("stall_out", stall_out)):
            if not 0.0 <= value < 1.0:
                raise ValueError(f"virtual board: {name} is {value}, must be at least 0, below 1")
        self._library = _load(library)
        self.step: int | None = None  # cycles of a read, at most; None: until the board is idle
        scale = 1 << 16
        self._board = self._library.board_new(seed, int(stall_in * scale), int(stall_out * scale))

    @property
    def cycles(self) -> int:
        """Clock cycles since the board was made, those of the link included."""
        return int(self._library.board_cycles(self._board))

    def write(self, data: bytes) -> None:
        """Queue bytes for the board."""
        self._library.board_push(self._board, data, len(data))

    def read(self, timeout: float = 0.0) -> bytes:
        """Run until the board has nothing to do and return what it sent; never waits.

        With :attr:`step`, at most so many cycles: as a host sees it that looks now and then.
        """
        del timeout
        self.run(_NEVER if self.step is None else self.step)
        return self.pull()

    def run(self, cycles: int) -> bool:
        """Run until the board is idle, at most ``cycles``; True if it is idle."""
        return bool(self._library.board_run(self._board, cycles))

    def pull(self) -> bytes:
        """What the board sent up to now."""
        found = b""
        buffer = ctypes.create_string_buffer(1 << 16)
        while count := self._library.board_pull(self._board, buffer, len(buffer)):
            found += buffer.raw[:count]
        return found

    def reset(self) -> None:
        """Pulse the reset pin: as after power-up, but memories keep their contents."""
        self._library.board_reset(self._board)

    def close(self) -> None:
        """Free the board; idempotent."""
        board, self._board = self._board, None
        if board is not None:
            self._library.board_delete(board)

    def __del__(self) -> None:
        self.close()


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as e:
        raise OSError(
            f"virtual board: {path} is damaged ({e}); delete it, it is built again"
        ) from e
    handle = ctypes.c_void_p
    for name, result, arguments in (
        ("board_new", handle, [ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32]),
        ("board_delete", None, [handle]),
        ("board_reset", None, [handle]),
        ("board_push", None, [handle, ctypes.c_char_p, ctypes.c_size_t]),
        ("board_run", ctypes.c_int, [handle, ctypes.c_uint64]),
        ("board_pull", ctypes.c_size_t, [handle, ctypes.c_char_p, ctypes.c_size_t]),
        ("board_cycles", ctypes.c_uint64, [handle]),
    ):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def serve(board: VirtualBoard, source: int, sink: int) -> None:
    """Pass bytes between two file descriptors and the board until ``source`` ends.

    Sleeps while the board is idle; while it works, looks for new bytes now and then, so that a
    RESET reaches a running engine.
    """
    idle = True
    while True:
        if idle or select.select([source], [], [], 0.0)[0]:
            data = os.read(source, 1 << 16)
            if not data:
                return
            board.write(data)
        idle = board.run(_CHUNK_CYCLES)
        answer = memoryview(board.pull())
        while answer:
            answer = answer[os.write(sink, answer) :]


def main(arguments: list[str]) -> None:
    """``python -m trivet.sim.board LIBRARY SEED STALL_IN STALL_OUT``: serve on stdin and stdout."""
    library, seed, stall_in, stall_out = arguments
    try:
        board = VirtualBoard(
            Path(library), seed=int(seed), stall_in=float(stall_in), stall_out=float(stall_out)
        )
    except OSError as e:
        sys.exit(str(e))
    try:
        serve(board, 0, 1)
    except (BrokenPipeError, KeyboardInterrupt):
        pass  # the other side is gone: so is the board
    finally:
        board.close()


if __name__ == "__main__":
    main(sys.argv[1:])
