"""The null device: zeros of the right shape at once; for dry runs, and to time the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet.runtime.device import Stage

from .worker import Outputs, WorkerDevice

__all__ = ["NullDevice"]


class NullDevice(WorkerDevice):
    """Answers every item with zeros; takes any stage. Its outputs are not the model's."""

    kind = "null"
    attach = "null"
    fresh_outputs = True

    def _load(self, stage: Stage) -> None:
        pass

    def _execute(
        self, stage: Stage, inputs: Sequence[npt.NDArray[Any]]
    ) -> tuple[Outputs, dict[str, int]]:
        return [np.zeros(spec.shape, spec.dtype) for spec in stage.outputs], {}
