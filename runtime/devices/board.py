"""What boards share, simulated or real: a program behind a link, items that overlap."""

from __future__ import annotations

import math
import queue
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy.typing as npt

from trivet.runtime.device import Buffer, Completion, DeviceError, DeviceInfo, Stage, TensorSpec
from trivet.runtime.link.client import BoardClient
from trivet.runtime.link.frame import Counters, Hello
from trivet.runtime.link.items import Items
from trivet.runtime.program_file import PortInfo, ProgramFile, ProgramFileError

from .worker import Check, Kind, Outputs, WorkerDevice

__all__ = ["BoardDevice", "Link"]

Array = npt.NDArray[Any]
_GLANCE = 0.002  # seconds that an item which comes may have to wait for its inputs to be taken
_RENEW = 1.0  # seconds without items after which the lease is renewed; one lasts at least 2


class Link(Protocol):
    """A transport of BoardClient that can be closed."""

    def write(self, data: bytes) -> None: ...

    def read(self, timeout: float) -> bytes: ...

    def close(self) -> None: ...


class BoardDevice(WorkerDevice):
    """A board that runs the stage's program.

    Items overlap as the program allows: while the engine runs one, the next one's inputs go in.

    Counters of an item: ``cycles`` of the board from start to the last output byte, or, of an item
    right behind another, from that one's last byte.
    """

    kind: Kind = "fpga"
    fresh_outputs = True
    _patience: float = 0.5
    """Seconds between two looks at whether an item that nothing else waits for is done."""

    def __init__(self, name: str, options: dict[str, str]) -> None:
        super().__init__(name, options)
        self._options = dict(options)
        self._link: Link | None = None
        self._client: BoardClient | None = None
        self._epoch = 0
        self._line = threading.Lock()  # one request at a time
        self._inputs: list[PortInfo] = []
        self._outputs: list[PortInfo] = []

    @abstractmethod
    def _connect(self, stage: Stage) -> tuple[Link, BoardClient, Hello]:
        """A board that has said what it is and may take the program; DeviceError if there is none.

        What was opened is closed again when this raises.
        """

    def describe(self) -> DeviceInfo:
        info = super().describe()
        return DeviceInfo(info.name, info.kind, info.attach, info.credits, info.engine, self._epoch)

    def layer_counters(self) -> list[Counters]:
        """Counters of every instruction, END left out, of the item that ran last."""
        client = self._client
        if client is None:
            raise DeviceError(f"device '{self.name}': has no stage; call prepare first")
        with self._line:
            return client.counters(client.program.instructions - 1)

    def _load(self, stage: Stage) -> None:
        if stage.kind != "program":
            raise DeviceError(
                f"device '{self.name}': stage {stage.index} is an ONNX model, a board runs "
                "programs only; give the stage to a CPU or GPU"
            )
        try:
            program = ProgramFile.from_bytes(stage.payload)
            if stage.engine is not None and stage.engine != program.config_sha256:
                raise ProgramFileError(
                    f"program is for engine {program.config_sha256[:12]}.., "
                    f"the stage says {stage.engine[:12]}.."
                )
            self._inputs = _matched("inputs", stage.inputs, program.inputs)
            self._outputs = _matched("outputs", stage.outputs, program.outputs)
        except ProgramFileError as e:
            raise DeviceError(
                f"device '{self.name}': stage {stage.index}: {e}; compile the model again"
            ) from e
        link, client, hello = self._connect(stage)
        try:
            client.load_program(stage.payload)
        except BaseException:
            link.close()
            raise
        self._link, self._client, self._epoch = link, client, hello.epoch

    def _work(self, stage: Stage) -> None:
        """Items pass through the board two at a time, where the program allows."""
        client = self._client
        assert client is not None
        items = Items(client)
        begun: deque[tuple[int, float]] = deque()  # tickets in flight, when they came
        while True:
            job = None
            if len(items) < items.depth:
                try:
                    job = self._todo.get(not begun, _RENEW)
                except queue.Empty:
                    if not begun:
                        self._renew(client)
                        continue
                else:
                    if job is None or self._closed:
                        self._unload()
                        return
            if isinstance(job, Check):
                while begun:
                    self._done.put(self._finish(stage, items, *begun.popleft()))
                self._examine(stage, job)
            elif job is not None:
                started = time.perf_counter()
                if (error := self._begin(items, *job)) is None:
                    begun.append((job[0], started))
                else:
                    # What is ahead of it may be gone as well, and is answered first.
                    while begun:
                        self._done.put(self._finish(stage, items, *begun.popleft()))
                    self._done.put(Completion(job[0], (), started, time.perf_counter(), {}, error))
            elif begun and self._is_ready(items):
                self._done.put(self._finish(stage, items, *begun.popleft()))

    def _renew(self, client: BoardClient) -> None:
        """Keep the lease; a board that was lost is found by the next item."""
        with self._line, suppress(DeviceError):
            client.hello()

    def _begin(self, items: Items, ticket: int, inputs: Sequence[Buffer]) -> DeviceError | None:
        arrays = {p.tensor: b.array for p, b in zip(self._inputs, inputs, strict=True)}
        try:
            with self._line:
                items.begin(ticket, arrays)
        except Exception as e:
            return self._wrapped(e)
        return None

    def _wrapped(self, error: Exception) -> DeviceError:
        if isinstance(error, DeviceError):
            return error
        text = " ".join(str(error).split())
        return DeviceError(f"device '{self.name}': failed ({type(error).__name__}: {text})")

    def _is_ready(self, items: Items) -> bool:
        try:
            with self._line:
                # The next item may come meanwhile.
                return items.ready(_GLANCE if len(items) < items.depth else self._patience)
        except DeviceError:
            return True

    def _finish(self, stage: Stage, items: Items, ticket: int, started: float) -> Completion:
        try:
            with self._line:
                found, outputs, cycles = items.finish()
            assert found == ticket
        except Exception as e:
            return Completion(ticket, (), started, time.perf_counter(), {}, self._wrapped(e))
        buffers = tuple(
            Buffer.of(outputs[port.tensor].reshape(spec.shape))
            for port, spec in zip(self._outputs, stage.outputs, strict=True)
        )
        now = time.perf_counter()
        return Completion(ticket, buffers, started, now, self._counted(cycles, now - started))

    def _counted(self, cycles: int, seconds: float) -> dict[str, int]:
        """Counters of an item; ``seconds`` from its submission to its answer here."""
        del seconds
        return {"cycles": cycles}

    def _sample(self, stage: Stage, inputs: Sequence[Array]) -> list[Outputs]:
        client = self._client
        assert client is not None
        found: list[Outputs] = []
        items = Items(client)
        with self._line:
            for k in range(items.depth):
                arrays = (p.tensor for p in self._inputs)
                items.begin(k, dict(zip(arrays, inputs, strict=True)))
                _, outputs, _ = items.finish()
                found.append([outputs[port.tensor] for port in self._outputs])
        return found

    def _reload(self, stage: Stage) -> bool:
        client = self._client
        assert client is not None
        with self._line:
            client.load_program(stage.payload)
        return True

    def _execute(self, stage: Stage, inputs: Sequence[Array]) -> tuple[Outputs, dict[str, int]]:
        raise NotImplementedError  # items overlap: see _work

    def close(self) -> None:
        client = self._client
        if client is not None and not self._closed:
            client.stop()  # who waits for a board that says nothing does not wait any longer
        super().close()

    def _unload(self) -> None:
        link, client, self._link, self._client = self._link, self._client, None, None
        if link is not None and client is not None:
            with suppress(DeviceError):
                client.give_back()
            link.close()


def _matched(what: str, specs: Sequence[TensorSpec], ports: Sequence[PortInfo]) -> list[PortInfo]:
    """The program's ports in the stage's order; ProgramFileError when they do not fit."""
    by_name = {port.tensor: port for port in ports}
    if set(by_name) != {spec.name for spec in specs}:
        raise ProgramFileError(
            f"program has {what} {sorted(by_name)}, the stage says {sorted(s.name for s in specs)}"
        )
    for spec in specs:
        port = by_name[spec.name]
        if math.prod(spec.shape) != port.nbytes or spec.dtype != port.dtype:
            raise ProgramFileError(
                f"program has {port.dtype} {list(port.hwc)} for {spec.name!r}, "
                f"the stage says {spec.dtype} {list(spec.shape)}"
            )
    return [by_name[spec.name] for spec in specs]
