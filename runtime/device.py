"""What every device is to the pipeline: five methods and the values that pass through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

__all__ = [
    "Buffer",
    "Completion",
    "Device",
    "DeviceBusy",
    "DeviceError",
    "DeviceInfo",
    "InlineDevice",
    "Scrubbed",
    "ScrubbedDevice",
    "Stage",
    "TensorSpec",
]


class DeviceError(Exception):
    """A device that cannot do what was asked: device, what happened, the way out."""


class DeviceBusy(DeviceError):
    """No credit is left; take a result first."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor at a stage's edge. ``shape`` is that of the bytes as they travel (``layout``)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str = "ONNX"  # "NHWC" for image tensors that an FPGA stage reads or writes


@dataclass(frozen=True)
class Stage:
    """What a device prepares: an ONNX model or an engine program, with its edges."""

    index: int
    kind: Literal["onnx", "program"]
    payload: bytes
    sha256: str  # of payload, from the manifest
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    fallback: bytes | None = None  # the same stage as ONNX in contract form
    engine: str | None = None  # configuration hash
    engine_config: Mapping[str, Any] | None = None  # fields of hdl.config.EngineConfig
    builds: Mapping[str, str] = field(default_factory=dict)  # board -> build hash of its bitstream
    predicted_seconds: float | None = None  # of one item on the planned device
    parts: tuple[Stage, ...] = ()  # what devices hold of it when it is split, in order,
    shard_axis: int | None = None  # and the axis along which their outputs are put together


@dataclass(frozen=True)
class DeviceInfo:
    name: str  # that of the rig: "fpga0"
    kind: Literal["cpu", "gpu", "fpga", "null"]
    attach: str  # "cpu", "virtual", "model", ...
    credits: int  # submissions that may be in flight
    engine: str | None = None  # configuration hash of the bitstream or model behind it
    epoch: int = 0


@dataclass
class Buffer:
    """One tensor's value. The array is C-contiguous; its owner is the party that made it."""

    array: npt.NDArray[Any]

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> Buffer:
        return cls(np.ascontiguousarray(array))

    @classmethod
    def zeros(cls, spec: TensorSpec) -> Buffer:
        return cls(np.zeros(spec.shape, spec.dtype))


@dataclass
class Completion:
    """The answer to one ticket. Outputs belong to the caller until :meth:`release`."""

    ticket: int
    outputs: tuple[Buffer, ...] = ()
    started: float = 0.0  # time.perf_counter() seconds on the host
    finished: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)  # e.g. "cycles" of a board
    error: DeviceError | None = None
    on_release: Callable[[], None] | None = None

    def release(self) -> None:
        """Hand the output buffers back to the device; idempotent."""
        callback, self.on_release = self.on_release, None
        if callback is not None:
            callback()


class Device(Protocol):
    """A device of the rig. Constructed as ``Factory(name: str, options: dict[str, str])``.

    Inputs stay untouched until their Completion. Results may come in any order.
    """

    def describe(self) -> DeviceInfo: ...

    def prepare(self, stage: Stage) -> None:
        """Load the stage; hashes checked; idempotent. DeviceError when it cannot."""

    def submit(self, ticket: int, inputs: Sequence[Buffer]) -> None:
        """Take one item; never blocks; DeviceBusy when out of credits."""

    def result(self, timeout: float | None) -> Completion:
        """The next answer; TimeoutError after ``timeout`` seconds, DeviceError once closed."""

    def close(self) -> None:
        """Stop; idempotent, from any thread; wakes :meth:`result`."""


@runtime_checkable
class InlineDevice(Protocol):
    """A device that can also answer on the caller's thread: saves two changes of thread an item."""

    inline: bool  # False: it has the methods, but must not be used that way

    def compute(self, ticket: int, inputs: Sequence[Buffer]) -> Completion:
        """Answer one item at once, outside the credits; from any number of threads."""

    def bind(
        self, inputs: Sequence[npt.NDArray[Any]], outputs: Sequence[npt.NDArray[Any]]
    ) -> Callable[[], dict[str, int]]:
        """A call that computes from and into these arrays and tells its counters.

        The arrays stay; calls of one binding follow one another, those of several may overlap.
        """


@dataclass(frozen=True)
class Scrubbed:
    """What a device found when it checked the stage that it holds."""

    stage: int
    device: str
    attach: str
    damaged: bool  # it computed wrong bytes, before its program was loaded again
    reloaded: bool  # its program was loaded again


@runtime_checkable
class ScrubbedDevice(Protocol):
    """A device that can check what it holds."""

    def scrub(self, inputs: Sequence[Buffer], expected: Sequence[Buffer]) -> Scrubbed:
        """Hash the stage, compute an item, load the stage anew where it lies in a memory of the
        device's own, compute the item again; between two items. DeviceError when it is still wrong.
        """
