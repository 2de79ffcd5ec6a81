"""The recorded device: known outputs, paced as the board would be.

The functional model is slower than the board, so neither it nor the simulator shows how a pipeline
would run. This one answers each item after the board's predicted time, with outputs that the CPU
fallback computed beforehand.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet.runtime.device import Buffer, Completion, DeviceError, Stage

from .cpu import CpuDevice
from .worker import Outputs

__all__ = ["RecordedDevice"]


class RecordedDevice(CpuDevice):
    """Plays back outputs by the hash of the inputs, each after the predicted seconds.

    An input seen for the first time is computed on the CPU fallback and recorded (that item may be
    late; the counter ``recorded`` is 1 for it). Items are paced one after another, as on an engine:
    one that waits begins when the one before it ends, however late this host wakes up for that.

    Parameters
    ----------
    options
        ``credits``, ``threads``; ``seconds`` overrides the stage's predicted time of one item.
    """

    kind = "fpga"
    attach = "recorded"
    inline = False  # one engine: one item after another
    fresh_outputs = False  # the recording must not be the caller's to change

    def __init__(self, name: str, options: dict[str, str]) -> None:
        super().__init__(name, options)
        self._seconds_option = options.get("seconds")
        self._seconds = 0.0
        self._came: dict[int, float] = {}  # when an item was submitted
        self._due = 0.0  # when the engine is free
        self._known: dict[bytes, Outputs] = {}

    def _load(self, stage: Stage) -> None:
        seconds: float | None = stage.predicted_seconds
        if self._seconds_option is not None:
            try:
                seconds = float(self._seconds_option)
            except ValueError:
                seconds = -1.0
        if seconds is None or not 0.0 <= seconds < 3600.0:
            raise DeviceError(
                f"device '{self.name}': the time of one item of stage {stage.index} is "
                f"{self._seconds_option if seconds is not None else 'not in the plan'}, must be "
                "0 to 3600 seconds; give option seconds"
            )
        self._seconds = seconds
        super()._load(stage)

    def submit(self, ticket: int, inputs: Sequence[Buffer]) -> None:
        self._came[ticket] = time.perf_counter()
        super().submit(ticket, inputs)

    def _answer(self, stage: Stage, ticket: int, inputs: Sequence[Buffer]) -> Completion:
        self._due = max(self._due, self._came.pop(ticket, time.perf_counter())) + self._seconds
        return super()._answer(stage, ticket, inputs)

    def _execute(
        self, stage: Stage, inputs: Sequence[npt.NDArray[Any]]
    ) -> tuple[Outputs, dict[str, int]]:
        digest = hashlib.sha256()
        for array in inputs:
            digest.update(np.ascontiguousarray(array).tobytes())
        known = self._known.get(digest.digest())
        recorded = known is None
        if known is None:
            known, _ = super()._execute(stage, inputs)
            self._known[digest.digest()] = known
        time.sleep(max(0.0, self._due - time.perf_counter()))
        return known, {"recorded": int(recorded)}
