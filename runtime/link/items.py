"""Items in flight on one board: the next one's inputs go in while the engine runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from trivet.runtime.device import DeviceError
from trivet.runtime.program_file import Form

if TYPE_CHECKING:
    from .client import BoardClient, Run

__all__ = ["Items"]

Arrays = dict[str, npt.NDArray[Any]]


@dataclass
class _Item:
    ticket: int
    form: Form
    head: Run | None = None  # of a program that releases its inputs: up to there
    rest: Run | None = None  # from there on; or the whole run
    cycles: int = 0
    trouble: DeviceError | None = None


class Items:
    """Up to :attr:`depth` items, answered in order.

    A program of two forms with inputs of their own has one run an item, the forms in turn. One
    whose inputs are free after ``release`` instructions (:class:`trivet.hdl.isa.Odd`) has two: when
    the first is done the next item's inputs are written, and its first run waits behind the second.
    There a run must not overtake another, so each is confirmed before the next is asked for.
    """

    def __init__(self, client: BoardClient) -> None:
        self._client = client
        self._flying: deque[_Item] = deque()
        self._count = 0

    @property
    def depth(self) -> int:
        """Items that may be in flight."""
        return len(self._client.program.forms)

    def __len__(self) -> int:
        return len(self._flying)

    def begin(self, ticket: int, inputs: Arrays) -> None:
        """Write an item's inputs (by tensor name) and ask for its run; there must be room."""
        client = self._client
        forms = client.program.forms
        form = forms[self._count % len(forms)]
        if form.release and self._flying:
            self._end_head(self._flying[-1])
        for port in form.inputs:
            client.write_tensor(port, inputs[port.tensor])
        item = _Item(ticket, form)
        if form.release:
            item.head = client.start_run(ticket, form.first, form.release)
            client.confirm_run(item.head)
        else:
            item.rest = client.start_run(ticket, form.first)
        self._count += 1
        self._flying.append(item)
        if len(self._flying) == 1:
            self._go_on(item)

    def ready(self, seconds: float) -> bool:
        """Whether the oldest item is done; waits so long for it."""
        item = self._flying[0]
        return item.rest is None or self._client.wait_run(item.rest, seconds)

    def finish(self) -> tuple[int, Arrays, int]:
        """Ticket, outputs by tensor name and cycles of the oldest item; waits for its end.

        The cycles of an item behind another are those since that one's end. What goes wrong is a
        DeviceError, and the item is gone all the same.
        """
        item = self._flying.popleft()
        try:
            self._end_head(item)
            if item.rest is not None:
                item.cycles += self._client.finish_run(item.rest)
        except DeviceError as e:
            item.trouble = item.trouble or e
        if self._flying:
            self._go_on(self._flying[0])
        if item.trouble is not None:
            raise item.trouble
        outputs = {port.tensor: self._client.read_tensor(port) for port in item.form.outputs}
        return item.ticket, outputs, item.cycles

    def _go_on(self, item: _Item) -> None:
        """Ask for the second run of an item, now that the board has room for it."""
        if not item.form.release or item.rest is not None or item.trouble is not None:
            return
        try:
            item.rest = self._client.start_run(item.ticket, item.form.first + item.form.release)
            self._client.confirm_run(item.rest)
        except DeviceError as e:
            item.trouble = e

    def _end_head(self, item: _Item) -> None:
        head, item.head = item.head, None
        if head is None:
            return
        try:
            item.cycles += self._client.finish_run(head)
        except DeviceError as e:
            item.trouble = e
