"""Runs a bundle; looks like ``onnxruntime.InferenceSession``, and streams."""

from __future__ import annotations

import itertools
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from . import registry
from .bundle import Bundle
from .device import Device, DeviceError, Scrubbed, Stage
from .lane import Loss
from .manifest import PortInfo, RigDevice
from .pipeline import Item, Pipeline
from .report import StageReport

__all__ = ["NodeArg", "Session"]

Array = npt.NDArray[Any]

_ONNX_NAMES: Final = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output, as onnxruntime's ``NodeArg``; a string at axis 0 is the batch axis."""

    name: str
    shape: list[int | str]
    type: str  # "tensor(int8)", "tensor(float)", ...

    @classmethod
    def of(cls, port: PortInfo) -> NodeArg:
        return cls(port.name, list(port.shape), f"tensor({_onnx_name(port.dtype)})")


class Session:
    """A bundle, loaded onto its devices.

    Each stage gets a device instance of its own, also when the plan gives one device two stages; a
    stage on replicas, or split, one for each of its devices. Any number of threads may call
    :meth:`run`, :meth:`stream`, :meth:`submit` and :meth:`run_async`.

    Parameters
    ----------
    source
        Path of a `.trivet` file, or an open :class:`Bundle` (which stays the caller's to close).
    devices
        What stands behind the rig's devices on this machine: ``{"fpga0": "model"}``, "virtual",
        "uart:/dev/ttyUSB0", or "cpu", which runs a program stage's fallback (the same bytes).
        Others stay as the bundle's rig says.
    strict
        A device that fails makes its items fail. Otherwise they are computed again on a replica or
        on the CPU, with a ``RuntimeWarning`` that names the device.
    timeout
        Seconds without an answer after which a device that holds items counts as dead.
    rebalance
        Devices are measured as they work; a stage whose boards are too slow is shared with the CPU
        as long as that makes the stream faster (:attr:`moves`). The bytes stay the same.

    Raises
    ------
    BundleError
        The file is not a sound bundle.
    DeviceError
        A device is unknown, cannot be reached or cannot take its stage.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Bundle,
        devices: Mapping[str, str] | None = None,
        strict: bool = False,
        *,
        timeout: float | None = None,
        rebalance: bool = False,
    ) -> None:
        if isinstance(source, Bundle):
            self._load(source, devices or {}, strict, timeout, rebalance)
        else:
            with Bundle.open(source) as bundle:
                self._load(bundle, devices or {}, strict, timeout, rebalance)

    def _load(
        self,
        bundle: Bundle,
        devices: Mapping[str, str],
        strict: bool,
        timeout: float | None,
        rebalance: bool,
    ) -> None:
        manifest = bundle.manifest
        self._inputs = {port.name: port for port in manifest.model.inputs}
        self._outputs = {port.name: port for port in manifest.model.outputs}
        self._batch = manifest.model.outputs[0].batch_axis
        self._nhwc = {name for name, t in manifest.tensors.items() if t.layout == "NHWC"}
        self._reports: list[StageReport] = []
        rig = bundle.rig().devices
        planned = [stage.device for stage in bundle.plan().stages]
        members = [
            info.members or [device] for info, device in zip(manifest.stages, planned, strict=True)
        ]
        for name in (*(m for group in members for m in group), *devices):
            if name not in rig:
                raise ValueError(
                    f"{bundle.path}: device '{name}' is not in the bundle's rig, which has "
                    f"{', '.join(sorted(rig))}; use one of these names"
                )
        stages = bundle.stages()
        threads = next((d.threads for d in rig.values() if d.kind == "cpu"), None)
        self._fallback = partial(_fallback, threads or 0)
        made: list[list[Device]] = []
        try:
            for stage, names in zip(stages, members, strict=True):
                pieces = stage.parts or (stage,)
                made.append([])
                for k, name in enumerate(names):
                    device = _make(name, devices.get(name, rig[name].attached), rig[name])
                    made[-1].append(device)
                    device.prepare(pieces[k % len(pieces)])
            self._pipeline = Pipeline(
                stages,
                made,
                list(self._outputs),
                fallback=self._fallback,
                strict=strict,
                timeout=timeout,
                rebalance=rebalance,
                threads=threads or 0,
            )
        except BaseException:
            for device in itertools.chain(*made):
                device.close()
            raise
        # A session that nobody closed is closed when it is collected, or when Python ends.
        self._finalizer = weakref.finalize(self, self._pipeline.close)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the devices; runs under way end with DeviceError. Idempotent, from any thread."""
        self._finalizer()

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs."""
        return [NodeArg.of(port) for port in self._inputs.values()]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs."""
        return [NodeArg.of(port) for port in self._outputs.values()]

    @property
    def last_reports(self) -> tuple[StageReport, ...]:
        """Of the run or stream that ended last: items, seconds, counters by stage and device."""
        return tuple(self._reports)

    @property
    def last_counters(self) -> dict[int, dict[str, int]]:
        """Of the run that ended last: stage index -> the device's counters, summed over items."""
        found: dict[int, dict[str, int]] = {}
        for report in self._reports:
            stage = found.setdefault(report.index, {})
            for key, value in report.counters.items():
                stage[key] = stage.get(key, 0) + value
        return found

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Devices that were lost, and the seconds that their stages did without an answer."""
        return self._pipeline.losses

    @property
    def moves(self) -> tuple[str, ...]:
        """What ``rebalance`` changed so far, in words."""
        return self._pipeline.moves

    def scrub(self) -> list[Scrubbed]:
        """Check what the devices hold, between two items, and load it anew where it may decay.

        Each stage is held against its hash. Then a seeded item is computed, boards get their
        program and weights once more, and the item is computed again: a board whose memory was
        damaged is told of, and mended. One that stays wrong is taken out of use as one that failed.
        Bytes that the item does not reach are not compared, but written they are.
        """
        try:
            return self._pipeline.scrub(lambda stage: self._fallback(stage, "scrub", 1))
        finally:
            self._pipeline.warn()

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, npt.ArrayLike]
    ) -> list[Array]:
        """The outputs for one feed, in the order of ``output_names`` (None: all).

        A model with a batch axis takes any number of items on axis 0; they stream through the
        stages and their outputs are put together. ``ValueError`` for wrong names, dtypes, shapes.
        """
        names = self._output_names(output_names)
        feed, count = self._check_feed(input_feed)
        if count == 1:
            return self._run_one(feed, names)
        if count == 0:
            return [np.zeros((0, *self._item_shape(n)[1:]), self._outputs[n].dtype) for n in names]
        items = ({n: a[i : i + 1] for n, a in feed.items()} for i in range(count))
        parts = list(self._stream(items, names))
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def stream(
        self,
        feeds: Iterable[Mapping[str, npt.ArrayLike]],
        output_names: Sequence[str] | None = None,
    ) -> Iterator[list[Array]]:
        """The outputs of each feed, in order, while later feeds are already under way.

        A feed is one item (its batch axis is 1) and may be reused by the caller once the next is
        asked for: it is copied. At most as many feeds are ahead as the devices have credits.
        """
        items = (self._one_item(given, f"feed {k}") for k, given in enumerate(feeds))
        return self._stream(items, self._output_names(output_names))

    def submit(
        self,
        input_feed: Mapping[str, npt.ArrayLike],
        output_names: Sequence[str] | None = None,
    ) -> Future[list[Array]]:
        """One item's outputs, later; blocks while the devices have all the items they take.

        Futures are done in the order of their submission. The feed is copied.
        """
        future: Future[list[Array]] = Future()
        future.set_running_or_notify_cancel()

        def deliver(outputs: list[Array], error: DeviceError | None) -> None:
            if error is None:
                future.set_result(outputs)
            else:
                future.set_exception(error)

        self._submit(input_feed, output_names, deliver)
        return future

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, npt.ArrayLike],
        callback: Callable[[list[Array], Any, str], None],
        user_data: Any = None,
    ) -> None:
        """One item; ``callback(outputs, user_data, error)`` is called when it is done.

        As onnxruntime's: ``error`` is empty unless something failed. Callbacks come on one thread,
        in the order of the calls, each once; they may use and close the session.
        """

        def deliver(outputs: list[Array], error: DeviceError | None) -> None:
            callback(outputs, user_data, "" if error is None else str(error))

        self._submit(input_feed, output_names, deliver)

    def _submit(
        self,
        given: Mapping[str, npt.ArrayLike],
        output_names: Sequence[str] | None,
        deliver: Callable[[list[Array], DeviceError | None], None],
    ) -> None:
        names = self._output_names(output_names)
        feed = self._one_item(given, "feed")
        pipeline = self._pipeline

        def done(item: Item) -> None:
            if item.error is not None:
                deliver([], item.error)
            else:
                deliver([self._leave(name, item.outputs[name]) for name in names], None)
            pipeline.warn()  # last: where warnings are errors, the answer must have gone out

        pipeline.submit({name: self._enter(name, array) for name, array in feed.items()}, done)

    def _one_item(self, given: Mapping[str, npt.ArrayLike], where: str) -> dict[str, Array]:
        feed, count = self._check_feed(given)
        if count != 1:
            raise ValueError(
                f"{where}: axis 0 ('{self._batch}') is {count}, must be 1 item a feed; use run, or "
                "split the feed"
            )
        return feed

    def _stream(self, feeds: Iterator[dict[str, Array]], names: list[str]) -> Iterator[list[Array]]:
        pipeline = self._pipeline
        reports = pipeline.reports()
        pending: deque[int] = deque()

        def take() -> list[Array]:
            try:
                item = pipeline.take(pending.popleft())
            finally:
                pipeline.warn(3)
            reports.add(item.spans)
            return [self._leave(name, item.outputs[name]) for name in names]

        try:
            for feed in feeds:
                values = {name: self._enter(name, array) for name, array in feed.items()}
                while True:
                    ticket = None
                    if len(pending) < pipeline.capacity:
                        ticket = pipeline.step(values, pending[0] if pending else None)
                    if ticket is not None:
                        pending.append(ticket)
                        break
                    yield take()
            while pending:
                yield take()
        finally:
            pipeline.abandon(pending)
            self._reports = reports.rows()

    def _run_one(self, feed: dict[str, Array], names: list[str]) -> list[Array]:
        values = {n: np.ascontiguousarray(self._enter(n, a)) for n, a in feed.items()}
        item = self._pipeline.direct(values)
        if item is None:
            (outputs,) = self._stream(iter([feed]), names)
            return outputs
        reports = self._pipeline.reports()
        reports.add(item.spans)
        self._reports = reports.rows()
        return [self._leave(name, item.outputs[name]) for name in names]

    def _enter(self, name: str, array: Array) -> Array:
        """To the order of the first stage: a 4-D input that an FPGA reads travels as NHWC."""
        return array.transpose(0, 2, 3, 1) if name in self._nhwc else array

    def _leave(self, name: str, array: Array) -> Array:
        return np.ascontiguousarray(array.transpose(0, 3, 1, 2)) if name in self._nhwc else array

    def _item_shape(self, name: str) -> tuple[int, ...]:
        return self._outputs[name].item_shape()

    def _output_names(self, wanted: Sequence[str] | None) -> list[str]:
        names = list(wanted or self._outputs)
        for name in names:
            if name not in self._outputs:
                raise ValueError(f"output '{name}': is none of {', '.join(self._outputs)}")
        return names

    def _check_feed(self, given: Mapping[str, npt.ArrayLike]) -> tuple[dict[str, Array], int]:
        """The feed as arrays, and its number of items."""
        for name in given:
            if name not in self._inputs:
                raise ValueError(f"input '{name}': is none of {', '.join(self._inputs)}")
        feed: dict[str, Array] = {}
        counts: dict[str, int] = {}
        for name, port in self._inputs.items():
            if name not in given:
                raise ValueError(
                    f"input '{name}': is missing; feed all of {', '.join(self._inputs)}"
                )
            array = np.asarray(given[name])
            if array.dtype != np.dtype(port.dtype):
                raise ValueError(
                    f"input '{name}': has dtype {array.dtype}, must be {port.dtype}; convert it"
                )
            wanted = port.shape
            if len(wanted) != array.ndim or any(
                isinstance(want, int) and want != have
                for want, have in zip(wanted, array.shape, strict=True)
            ):
                raise ValueError(
                    f"input '{name}': has shape {list(array.shape)}, must be {wanted}; reshape it"
                )
            feed[name] = array
            if port.batch_axis is not None:
                counts[name] = array.shape[0]
        if len(set(counts.values())) > 1:
            raise ValueError(f"inputs: axis 0 ('{self._batch}') differs: {counts}; make it one")
        return feed, next(iter(counts.values()), 1)


def _onnx_name(dtype: str) -> str:
    return _ONNX_NAMES.get(dtype, dtype)


def _fallback(threads: int, stage: Stage, name: str, credits: int) -> Device:
    """The CPU in the place of a failed device; knows no session, so that one can be collected."""
    options = {"credits": str(credits), "threads": str(threads)}
    device = registry.create("cpu", name, options)
    try:
        device.prepare(stage)
    except BaseException:
        device.close()
        raise
    return device


def _make(name: str, attach: str, rig: RigDevice) -> Device:
    """``attach`` may carry an address or options: "NAME:ADDRESS", "virtual:stall=0.2,seed=4"."""
    kind, _, rest = attach.partition(":")
    options: dict[str, str] = {}
    for part in rest.split(",") if "=" in rest else ():
        key, _, text = part.partition("=")
        options[key.strip()] = text.strip()
    for key, value in (
        ("address", None if options else rest or None),
        ("kind", rig.kind),
        ("board", rig.board),
        ("clock_hz", rig.clock_hz),
        ("threads", rig.threads),
    ):
        if value is not None:
            options[key] = str(value)
    try:
        return registry.create(kind, name, options)
    except DeviceError:
        raise
    except Exception as error:
        raise DeviceError(
            f"device '{name}': '{attach}' cannot be opened ({type(error).__name__}: {error}); "
            "check its address and options"
        ) from error
