"""What devices share that compute on the host: one thread, credits, answers in order."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy.typing as npt

from trivet.runtime.device import (
    Buffer,
    Completion,
    DeviceBusy,
    DeviceError,
    DeviceInfo,
    Scrubbed,
    Stage,
)

__all__ = ["Check", "Job", "Kind", "Outputs", "WorkerDevice", "check_payload", "int_option"]

Outputs = Sequence[npt.NDArray[Any]]
Kind = Literal["cpu", "gpu", "fpga", "null"]


@dataclass
class Check:
    """A scrub that waits for the device's thread; see :meth:`WorkerDevice.scrub`."""

    inputs: list[npt.NDArray[Any]]
    expected: list[npt.NDArray[Any]]
    done: threading.Event = field(default_factory=threading.Event)
    found: Scrubbed | None = None
    error: DeviceError | None = None


Job = tuple[int, Sequence[Buffer]] | Check


def int_option(name: str, options: dict[str, str], key: str, default: int, low: int) -> int:
    """An integer of a device's options; :class:`DeviceError` when it is none or below ``low``."""
    text = options.get(key, str(default))
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if value < low:
        raise DeviceError(f"device '{name}': {key} is '{text}', not a whole number from {low} up")
    return value


def check_payload(name: str, stage: Stage) -> None:
    """:class:`DeviceError` unless the stage's payload has the hash that it should."""
    found = hashlib.sha256(stage.payload).hexdigest()
    if found != stage.sha256:
        raise DeviceError(
            f"device '{name}': stage {stage.index} has sha256 {found[:12]}.., not "
            f"{stage.sha256[:12]}..; open the bundle again"
        )


class WorkerDevice(ABC):
    """A device whose :meth:`_load` and :meth:`_execute` run on the host.

    One instance serves one stage. :meth:`_execute` runs on the device's own thread; what it raises
    becomes the error of that item's Completion, and the next item runs as usual.

    Parameters
    ----------
    name
        The rig's name of the device.
    options
        ``credits``: submissions in flight, 2 unless given.
    """

    kind: Kind = "cpu"
    attach: str = "cpu"
    inline: bool = False
    """True in a class whose :meth:`_execute` may run on any number of threads at once."""
    fresh_outputs: bool = False
    """True in a class whose :meth:`_execute` makes new arrays each time; others' are copied."""

    def __init__(self, name: str, options: dict[str, str]) -> None:
        self.name = name
        self._credits = int_option(name, options, "credits", 2, 1)
        self._stage: Stage | None = None
        self._lock = threading.RLock()  # close() may come by garbage collection
        self._in_flight = 0
        self._closed = False
        self._todo: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Completion | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def _load(self, stage: Stage) -> None:
        """Make ready for the stage; :class:`DeviceError` when it cannot."""

    @abstractmethod
    def _execute(
        self, stage: Stage, inputs: Sequence[npt.NDArray[Any]]
    ) -> tuple[Outputs, dict[str, int]]:
        """Outputs in the stage's order, and counters."""

    def _unload(self) -> None:  # noqa: B027 - most devices have nothing to let go of
        """Let go of what :meth:`_load` made; called once, after the last :meth:`_execute`."""

    def describe(self) -> DeviceInfo:
        engine = None if self._stage is None else self._stage.engine
        return DeviceInfo(self.name, self.kind, self.attach, self._credits, engine)

    def prepare(self, stage: Stage) -> None:
        with self._lock:
            self._check_open()
            if self._stage is not None:
                if (self._stage.index, self._stage.sha256) == (stage.index, stage.sha256):
                    return
                raise DeviceError(
                    f"device '{self.name}': holds stage {self._stage.index}, asked for stage "
                    f"{stage.index}; make one device per stage"
                )
            check_payload(self.name, stage)
            self._load(stage)
            self._stage = stage

    def submit(self, ticket: int, inputs: Sequence[Buffer]) -> None:
        with self._lock:
            self._check_open()
            if self._stage is None:
                raise DeviceError(f"device '{self.name}': has no stage; call prepare first")
            if len(inputs) != len(self._stage.inputs):
                raise DeviceError(
                    f"device '{self.name}': stage {self._stage.index} was given {len(inputs)} "
                    f"inputs, it has {len(self._stage.inputs)}"
                )
            if self._in_flight >= self._credits:
                raise DeviceBusy(
                    f"device '{self.name}': {self._in_flight} items are in flight, its "
                    f"{self._credits} credits; take a result first"
                )
            self._start(self._stage)
            self._in_flight += 1
            self._todo.put((ticket, inputs))

    def _start(self, stage: Stage) -> None:
        """The thread, if it does not run yet: a device that is only called inline needs none."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work,
                args=(stage,),
                name=f"trivet-{self.name}-{stage.index}",
                daemon=True,  # an unclosed session must not keep the process alive
            )
            self._thread.start()

    def scrub(self, inputs: Sequence[Buffer], expected: Sequence[Buffer]) -> Scrubbed:
        """See :class:`trivet.runtime.device.ScrubbedDevice`."""
        check = Check([b.array for b in inputs], [b.array for b in expected])
        with self._lock:
            self._check_open()
            stage = self._stage
            if stage is None:
                raise DeviceError(f"device '{self.name}': has no stage; call prepare first")
            if not self.inline:
                self._start(stage)
                self._todo.put(check)
        if self.inline:
            self._examine(stage, check)
        while not check.done.wait(0.5):
            self._check_open()
        if check.error is not None:
            raise check.error
        assert check.found is not None
        return check.found

    def _examine(self, stage: Stage, check: Check) -> None:
        """Do a scrub, between two items."""
        try:
            check_payload(self.name, stage)
            sound = self._is_sound(stage, check)
            reloaded = self._reload(stage)
            if not sound and not (reloaded and self._is_sound(stage, check)):
                raise DeviceError(
                    f"device '{self.name}': computes wrong bytes for stage {stage.index}"
                    f"{', also' if reloaded else ''} with what was loaded just now; do not use it"
                )
            check.found = Scrubbed(stage.index, self.name, self.attach, not sound, reloaded)
        except DeviceError as e:
            check.error = e
        except Exception as e:
            check.error = DeviceError(f"device '{self.name}': {type(e).__name__}: {e}")
        check.done.set()

    def _is_sound(self, stage: Stage, check: Check) -> bool:
        try:
            found = self._sample(stage, check.inputs)
        except DeviceError:
            return False
        return all(
            a.tobytes() == b.tobytes()
            for outputs in found
            for a, b in zip(outputs, check.expected, strict=True)
        )

    def _sample(self, stage: Stage, inputs: Sequence[npt.NDArray[Any]]) -> list[Outputs]:
        """The outputs of one item, by each way in which the device may compute it."""
        return [self._execute(stage, inputs)[0]]

    def _reload(self, stage: Stage) -> bool:
        """Load the stage anew where that can be; whether it was."""
        del stage
        return False

    def compute(self, ticket: int, inputs: Sequence[Buffer]) -> Completion:
        """Answer on the caller's thread; see :class:`trivet.runtime.device.InlineDevice`."""
        self._check_open()
        if self._stage is None:
            raise DeviceError(f"device '{self.name}': has no stage; call prepare first")
        return self._answer(self._stage, ticket, inputs)

    def bind(
        self, inputs: Sequence[npt.NDArray[Any]], outputs: Sequence[npt.NDArray[Any]]
    ) -> Callable[[], dict[str, int]]:
        """See :class:`trivet.runtime.device.InlineDevice`."""
        stage = self._stage
        if stage is None:
            raise DeviceError(f"device '{self.name}': has no stage; call prepare first")

        def call() -> dict[str, int]:
            self._check_open()
            found, counters = self._execute(stage, inputs)
            for target, array in zip(outputs, found, strict=True):
                target[...] = array
            return counters

        return call

    def result(self, timeout: float | None) -> Completion:
        if self._closed:
            raise DeviceError(f"device '{self.name}': is closed")
        try:
            completion = self._done.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"device '{self.name}': no result within {timeout} s") from None
        if completion is None:
            self._done.put(None)  # for whoever else waits
            raise DeviceError(f"device '{self.name}': is closed")
        with self._lock:
            self._in_flight -= 1
        return completion

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._todo.put(None)
        self._done.put(None)
        thread = self._thread
        if thread is None:
            self._unload()
        elif thread is not threading.current_thread():
            thread.join(timeout=10.0)

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError(f"device '{self.name}': is closed")

    def _work(self, stage: Stage) -> None:
        while True:
            job = self._todo.get()
            if job is None or self._closed:
                self._unload()
                return
            if isinstance(job, Check):
                self._examine(stage, job)
            else:
                self._done.put(self._answer(stage, *job))

    def _answer(self, stage: Stage, ticket: int, inputs: Sequence[Buffer]) -> Completion:
        started = time.perf_counter()
        try:
            outputs, counters = self._execute(stage, [buffer.array for buffer in inputs])
            # A view of the device's own memory would change under the caller with the next item.
            buffers = tuple(
                Buffer.of(array if self.fresh_outputs else array.copy()) for array in outputs
            )
        except DeviceError as error:
            return Completion(ticket, (), started, time.perf_counter(), error=error)
        except Exception as error:
            wrapped = DeviceError(
                f"device '{self.name}': stage {stage.index} failed ({type(error).__name__}: "
                f"{' '.join(str(error).split())})"
            )
            wrapped.__cause__ = error
            return Completion(ticket, (), started, time.perf_counter(), error=wrapped)
        return Completion(ticket, buffers, started, time.perf_counter(), counters)
