"""The CPU: runs a stage's ONNX model in onnxruntime, and programs by their fallback model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy.typing as npt
import onnxruntime as ort

from trivet.runtime.device import DeviceError, Stage

from .worker import Kind, Outputs, WorkerDevice, int_option

__all__ = ["LEVEL_KEY", "CpuDevice", "cpu_model"]

LEVEL_KEY: Final = "trivet.session_level"
"""Key in a model's metadata: how far onnxruntime may optimise it, as the name of a member of its
``GraphOptimizationLevel``; absent means not at all.

Its optimiser may turn int8 kernels into ones that saturate on some CPUs, so the compiler says what
keeps the bytes.
"""

_PROVIDERS: Final = ["CPUExecutionProvider"]
_DEFAULT_LEVEL: Final = "ORT_DISABLE_ALL"
_LEVELS: Final[dict[str, Any]] = dict(ort.GraphOptimizationLevel.__members__)


def cpu_model(name: str, stage: Stage) -> bytes:
    """The ONNX model by which a CPU computes a stage; :class:`DeviceError` when it has none."""
    model = stage.payload if stage.kind == "onnx" else stage.fallback
    if model is None:
        raise DeviceError(
            f"device '{name}': stage {stage.index} is an engine's program without a CPU fallback; "
            "run it on its own device, or compile the model again"
        )
    return model


class CpuDevice(WorkerDevice):
    """onnxruntime on the CPU, on the caller's thread; ``threads`` of them compute.

    Parameters
    ----------
    options
        ``credits``; ``threads`` (0 or absent: as many as onnxruntime thinks right).
    """

    kind: Kind = "cpu"
    attach = "cpu"
    inline = True  # onnxruntime's sessions may be run from many threads
    fresh_outputs = True

    def __init__(self, name: str, options: dict[str, str]) -> None:
        super().__init__(name, options)
        self._threads = int_option(name, options, "threads", 0, 0)
        self._session: Any = None
        self._inputs: list[str] = []
        self._outputs: list[str] = []

    def _load(self, stage: Stage) -> None:
        model = cpu_model(self.name, stage)
        session = self._open(stage, model, _DEFAULT_LEVEL)
        level = session.get_modelmeta().custom_metadata_map.get(LEVEL_KEY, _DEFAULT_LEVEL)
        if level not in _LEVELS:
            raise DeviceError(
                f"device '{self.name}': stage {stage.index} asks for optimisation level '{level}', "
                f"known are {', '.join(_LEVELS)}; install the Trivet that compiled it"
            )
        if level != _DEFAULT_LEVEL:
            session = self._open(stage, model, level)
        self._inputs = [spec.name for spec in stage.inputs]
        self._outputs = [spec.name for spec in stage.outputs]
        self._check_edges(stage, session)
        self._session = session

    def _open(self, stage: Stage, model: bytes, level: str) -> Any:
        options = ort.SessionOptions()
        options.graph_optimization_level = _LEVELS[level]
        options.intra_op_num_threads = self._threads
        options.log_severity_level = 3
        # Spinning threads of one stage steal the cores of the others.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            session = ort.InferenceSession(model, options, providers=_PROVIDERS)
        except Exception as error:  # onnxruntime's exceptions have no common public base
            raise DeviceError(
                f"device '{self.name}': onnxruntime {ort.__version__} cannot load stage "
                f"{stage.index} ({' '.join(str(error).split())[:300]}); compile the model again"
            ) from error
        if session.get_providers() != _PROVIDERS:
            raise DeviceError(
                f"device '{self.name}': onnxruntime put stage {stage.index} on "
                f"{session.get_providers()}, not on {_PROVIDERS}; check its installation"
            )
        return session

    def _check_edges(self, stage: Stage, session: Any) -> None:
        for what, specs, found in (
            ("input", self._inputs, {node.name for node in session.get_inputs()}),
            ("output", self._outputs, {node.name for node in session.get_outputs()}),
        ):
            if (what == "input" and found != set(specs)) or not set(specs) <= found:
                raise DeviceError(
                    f"device '{self.name}': stage {stage.index}'s model has {what}s "
                    f"{sorted(found)}, the bundle says {sorted(specs)}; compile the model again"
                )

    def _execute(
        self, stage: Stage, inputs: Sequence[npt.NDArray[Any]]
    ) -> tuple[Outputs, dict[str, int]]:
        session = self._session
        if session is None:
            raise DeviceError(f"device '{self.name}': is closed")
        return session.run(self._outputs, dict(zip(self._inputs, inputs, strict=True))), {}

    def bind(
        self, inputs: Sequence[npt.NDArray[Any]], outputs: Sequence[npt.NDArray[Any]]
    ) -> Callable[[], dict[str, int]]:
        """A prebuilt IOBinding: onnxruntime reads and writes the arrays themselves."""
        session = self._session
        if session is None:
            raise DeviceError(f"device '{self.name}': is closed")
        binding = session.io_binding()
        for name, array in zip(self._inputs, inputs, strict=True):
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for name, array in zip(self._outputs, outputs, strict=True):
            binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))

        def call() -> dict[str, int]:
            session.run_with_iobinding(binding)
            return {}

        return call

    def _unload(self) -> None:
        self._session = None
