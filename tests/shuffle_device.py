"""Devices for tests of the pipeline: they answer late, out of order, wrong or never."""

from __future__ import annotations

import hashlib
import queue
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trivet.runtime.device import (
    Buffer,
    Completion,
    DeviceBusy,
    DeviceError,
    DeviceInfo,
    Stage,
    TensorSpec,
)
from trivet.runtime.pipeline import Pipeline

Array = np.ndarray[Any, Any]


class Gauge:
    """How many items are inside devices, and the most there were."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = 0

    def add(self, step: int) -> None:
        with self.lock:
            self.now += step
            self.most = max(self.most, self.now)


class ShuffleDevice:
    """Adds 1; answers each item after a random delay, on a thread of its own, in any order.

    ``trouble(ticket, count)`` says what goes wrong with the ``count``-th item: "" nothing, "error",
    "die" (result raises), "hang", "twice", "shape", "refuse" (submit raises), "busy".
    """

    def __init__(
        self,
        name: str,
        *,
        credits: int = 3,
        delay: float = 0.002,
        seed: int = 0,
        gauge: Gauge | None = None,
        trouble: Callable[[int, int], str] = lambda ticket, count: "",
        attach: str = "fake",
    ) -> None:
        self.info = DeviceInfo(name, "fpga", attach, credits)
        self.random = random.Random(seed)
        self.delay, self.gauge, self.trouble = delay, gauge, trouble
        self.answers: queue.SimpleQueue[Completion | None] = queue.SimpleQueue()
        self.seen: list[int] = []
        self.inside = 0
        self.closed = False
        self.released = 0

    def describe(self) -> DeviceInfo:
        return self.info

    def prepare(self, stage: Stage) -> None:
        pass

    def submit(self, ticket: int, inputs: Sequence[Buffer]) -> None:
        if self.closed:
            raise DeviceError("the board is gone")
        what = self.trouble(ticket, len(self.seen))
        self.seen.append(ticket)
        if what == "refuse":
            raise DeviceError("no such board any more")
        if what == "busy" or self.inside >= self.info.credits:
            raise DeviceBusy("busy")
        self.inside += 1
        if self.gauge:
            self.gauge.add(1)
        if what == "hang":
            return
        wait = self.random.random() * self.delay
        threading.Timer(wait, self._answer, (ticket, inputs[0].array, what)).start()

    def _answer(self, ticket: int, x: Array, what: str) -> None:
        if what == "die":
            self.close()
            return
        y = x + 1 if what != "shape" else np.zeros((7,), np.int64)
        error = DeviceError("lost every frame") if what == "error" else None
        for _ in range(2 if what == "twice" else 1):
            self.answers.put(
                Completion(ticket, (Buffer(y),), error=error, on_release=self._release)
            )

    def _release(self) -> None:
        self.released += 1

    def result(self, timeout: float | None) -> Completion:
        try:
            answer = self.answers.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        if answer is None:
            self.answers.put(None)
            raise DeviceError("the board is gone")
        self.inside -= 1
        if self.gauge:
            self.gauge.add(-1)
        return answer

    def close(self) -> None:
        self.closed = True
        self.answers.put(None)


def stages(count: int, kind: str = "program") -> list[Stage]:
    names = [f"t{i}" for i in range(count + 1)]
    payload = b"p"
    return [
        Stage(
            index=i,
            kind=kind,  # type: ignore[arg-type]
            payload=payload,
            sha256=hashlib.sha256(payload).hexdigest(),
            inputs=(TensorSpec(names[i], "int64", (1,)),),
            outputs=(TensorSpec(names[i + 1], "int64", (1,)),),
            fallback=b"f",
        )
        for i in range(count)
    ]


def pipeline(devices: Sequence[ShuffleDevice], **options: Any) -> Pipeline:
    return Pipeline(
        stages(len(devices)), [[device] for device in devices], [f"t{len(devices)}"], **options
    )


def cpu(stage: Stage, name: str, credits: int) -> ShuffleDevice:
    return ShuffleDevice(name, credits=credits, attach="cpu")


def drive(pipe: Pipeline, count: int) -> list[int | str]:
    """Values out for values in 0..count-1, as a session streams them; errors as their text."""
    out: list[int | str] = []
    pending: list[int] = []

    def take() -> None:
        try:
            values = pipe.take(pending.pop(0)).outputs
            out.append(int(next(iter(values.values()))[0]))
        except DeviceError as error:
            out.append(str(error))

    for value in range(count):
        while True:
            ticket = None
            if len(pending) < pipe.capacity:
                ticket = pipe.step({"t0": np.int64([value])}, pending[0] if pending else None)
            if ticket is not None:
                pending.append(ticket)
                break
            take()
    while pending:
        take()
    return out


def in_time(work: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The result of ``work``; a hang fails."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "hangs"
    return result[0]
