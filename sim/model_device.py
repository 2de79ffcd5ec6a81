"""The functional model of a board: a program on the reference machine, as a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from trivet.hdl.isa import Port, Program, ProgramError, predicted_total
from trivet.runtime.device import DeviceError, Stage, TensorSpec
from trivet.runtime.devices.worker import Kind, Outputs, WorkerDevice

from .reference import ReferenceMachine

__all__ = ["ModelDevice"]


class ModelDevice(WorkerDevice):
    """Gives a board's bytes without its RTL; it knows the predicted cycles, and counts none.

    Counters: ``cycles_predicted`` of one item.

    Parameters
    ----------
    options
        ``credits``: submissions in flight, 2 unless given.
    """

    kind: Kind = "fpga"
    attach = "model"

    def __init__(self, name: str, options: dict[str, str]) -> None:
        super().__init__(name, options)
        self._machine: ReferenceMachine | None = None
        self._cycles = 0

    def _load(self, stage: Stage) -> None:
        if stage.kind != "program":
            raise DeviceError(
                f"device '{self.name}': stage {stage.index} is an ONNX model, the functional model "
                "runs programs only; give the stage to a CPU or GPU"
            )
        try:
            program = Program.from_bytes(stage.payload)
            self._check(stage, program)
            self._machine = ReferenceMachine(program)
        except ProgramError as e:
            raise DeviceError(
                f"device '{self.name}': stage {stage.index}: {e}; compile the model again"
            ) from e
        self._cycles = predicted_total(program.config, program.instructions)

    def _check(self, stage: Stage, program: Program) -> None:
        """The stage's engine and tensors are the program's."""
        if stage.engine is not None and stage.engine != program.config_sha256:
            raise ProgramError(
                f"program is for engine {program.config_sha256[:12]}.., "
                f"the stage says {stage.engine[:12]}.."
            )
        self._check_edges("inputs", stage.inputs, program.inputs)
        self._check_edges("outputs", stage.outputs, program.outputs)

    def _check_edges(self, what: str, specs: Sequence[TensorSpec], ports: Sequence[Port]) -> None:
        names, found = {spec.name for spec in specs}, {port.tensor for port in ports}
        if names != found:
            raise ProgramError(
                f"program has {what} {sorted(found)}, the stage says {sorted(names)}"
            )

    def _execute(
        self, stage: Stage, inputs: Sequence[npt.NDArray[Any]]
    ) -> tuple[Outputs, dict[str, int]]:
        assert self._machine is not None
        feeds = {spec.name: array for spec, array in zip(stage.inputs, inputs, strict=True)}
        found = self._machine.run(feeds)
        outputs = [found[spec.name].reshape(spec.shape) for spec in stage.outputs]
        return outputs, {"cycles_predicted": self._cycles}

    def _reload(self, stage: Stage) -> bool:
        self._load(stage)
        return True

    def _unload(self) -> None:
        self._machine = None
