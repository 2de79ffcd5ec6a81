"""Hands answers to callbacks: each once, in the order of the tickets, on one thread."""

from __future__ import annotations

import logging
import threading
from collections import deque

from .device import DeviceError
from .lane import Item

__all__ = ["Delivery"]

_log = logging.getLogger("trivet.runtime")


class Delivery:
    """The queue of items that somebody wants to be told of; guarded by the pipeline's lock.

    The thread starts with the first such item. Callbacks may use the session, and close it.
    ``room`` is notified of each item that has left.
    """

    def __init__(self, lock: threading.Lock, room: threading.Condition) -> None:
        self._lock = lock
        self._room = room
        self._wake = threading.Condition(lock)
        self._items: deque[Item] = deque()
        self._closed: DeviceError | None = None
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def is_current(self) -> bool:
        """The caller is a callback."""
        return threading.current_thread() is self._thread

    def expect(self, item: Item) -> None:
        """Queue an item that was given its ticket just now. The lock is held."""
        self._items.append(item)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trivet-answers", daemon=True)
            self._thread.start()

    def notify(self, item: Item) -> None:
        """An item is done. The lock is held."""
        if self._items and self._items[0] is item:
            self._wake.notify()

    def close(self, error: DeviceError) -> None:
        """End what is not done with ``error``."""
        with self._lock:
            self._closed = error
            self._wake.notify()

    def join(self) -> None:
        """Wait until every callback has been called; not from a callback itself."""
        if self._thread is not None and not self.is_current:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (self._closed or (self._items and self._items[0].done)):
                    self._wake.wait()
                if not self._items:
                    return
                item = self._items.popleft()
                self._room.notify_all()
                if not item.done:
                    item.error = item.error or self._closed
            assert item.deliver is not None
            try:
                item.deliver(item)
            except Exception:
                _log.exception("the callback for item %d failed", item.ticket)
