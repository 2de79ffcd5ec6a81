"""The RTL as a machine to verify with: every layer read back over the link, counters read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt

from trivet.hdl.isa import LayerNote, Op, Program
from trivet.runtime.link.client import BoardClient

from .board import VirtualBoard
from .build import build
from .verify import Counted

__all__ = ["BoardMachine", "rtl_machines"]

Array = npt.NDArray[Any]


class BoardMachine:
    """A board, real or simulated, that runs a program and shows every layer's output.

    An item is run twice: instruction by instruction, reading back what each wrote (later layers
    write over it), and as a whole, for the counters and for the outputs once more.

    Parameters
    ----------
    client : BoardClient
        The board; it gets the program now.
    program : bytes
        A TRVP file image.
    board : VirtualBoard, optional
        What is behind the client, if it is simulated in this process: without it, the interval of
        a program that releases its inputs is not counted.
    """

    def __init__(
        self, client: BoardClient, program: bytes, board: VirtualBoard | None = None
    ) -> None:
        self._board = board
        self.program = Program.from_bytes(program)
        self._client = client
        self._client.load_program(program)
        self._counted: Counted | None = None
        self._interval: int | None = None
        self._ticket = 0

    def layers(self, inputs: dict[str, Array]) -> Iterator[tuple[LayerNote, Array]]:
        """After each instruction: its note and its output ``[h, w, c]``, read over the link."""
        notes = {note.instruction: note for note in self.program.layers}
        self._write(inputs)
        for k, instruction in enumerate(self.program.instructions):
            if instruction.op == Op.END:
                break
            self._client.run(self._next(), k, 1)
            if k in notes:
                yield notes[k], self._client.read_tensor(notes[k].output)
        self._write(inputs)
        cycles = self._client.run(self._next())
        found = self._client.counters(len(self.program.forms[0]))
        if self.program.odd is not None and self._interval is None:
            self._interval = self._stream(inputs)
        counts = tuple((c.cycles, c.stalls) for c in found)
        self._counted = Counted(cycles, counts, self._interval)

    def counted(self) -> Counted:
        """Counters of the last item's whole run. ValueError before the first."""
        if self._counted is None:
            raise ValueError("no item was run yet: the counters have nothing to tell")
        return self._counted

    def _stream(self, inputs: dict[str, Array]) -> int | None:
        """Cycles from item to item with inputs in place: mean of the two forms, rounded up.

        Each form is queued behind the other at once: a board in this process runs until it is idle
        whenever it is read, so what is sent later would come late.
        """
        if self.program.odd is not None and self.program.odd.release:
            return None if self._board is None else self._stream_in_parts(self._board, inputs)
        total = 0
        for forms in (self._client.program.forms, self._client.program.forms[::-1]):
            for form in forms:
                for port in form.inputs:
                    self._client.write_tensor(port, inputs[port.tensor])
            runs = [self._client.start_run(self._next(), form.first) for form in forms]
            total += [self._client.finish_run(run) for run in runs][1]
        return (total + 1) // 2

    def _stream_in_parts(self, board: VirtualBoard, inputs: dict[str, Array]) -> int:
        """The same where an item is two runs: nothing writes to the inputs, so they stay."""
        self._write(inputs)
        client = self._client
        parts = [
            (form.first + k * form.release, (1 - k) * form.release)
            for form in (*client.program.forms, client.program.forms[0])
            for k in range(2)
        ]
        board.step = 50  # cycles between two looks of this host
        try:
            runs = [client.start_run(self._next(), *part) for part in parts[:2]]
            cycles = []
            for part in parts[2:]:
                cycles.append(client.finish_run(runs.pop(0)))
                runs.append(client.start_run(self._next(), *part))
            cycles += [client.finish_run(run) for run in runs]
        finally:
            board.step = None
        return (sum(cycles[2:]) + 1) // 2

    def _write(self, inputs: dict[str, Array]) -> None:
        for port in self.program.inputs:
            self._client.write_tensor(port, inputs[port.tensor])

    def _next(self) -> int:
        self._ticket += 1
        return self._ticket


@contextmanager
def rtl_machines(
    progress: Callable[[float, str], None] | None = None,
) -> Iterator[Callable[[bytes, str], BoardMachine]]:
    """A factory (program, device name) -> machine on the compiled RTL; boards are freed at the end.

    Building a configuration that is not in the cache takes a minute or so; ``progress`` is told.
    """
    boards: list[VirtualBoard] = []

    def make(program: bytes, device: str) -> BoardMachine:
        board = VirtualBoard(build(Program.from_bytes(program).config, progress=progress))
        boards.append(board)
        return BoardMachine(BoardClient(board, device), program, board)

    try:
        yield make
    finally:
        for board in boards:
            board.close()
