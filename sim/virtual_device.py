"""The virtual board as a device: the RTL of the bitstream, compiled, in a process of its own."""

from __future__ import annotations

import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy.typing as npt

from trivet.hdl.config import EngineConfig
from trivet.hdl.isa import Port, Program, ProgramError
from trivet.runtime.device import (
    Buffer,
    Completion,
    DeviceError,
    DeviceInfo,
    Stage,
    TensorSpec,
)
from trivet.runtime.devices.worker import Kind, Outputs, WorkerDevice
from trivet.runtime.link.client import BoardClient
from trivet.runtime.link.frame import Counters, Hello
from trivet.runtime.link.items import Items

from . import board as board_module
from .build import build, build_sha256

__all__ = ["BoardProcess", "VirtualDevice"]

Array = npt.NDArray[Any]
# Nothing is lost on a pipe, and a board that dies is seen at once: these only end a hang.
_TIMEOUT = 120.0
_RUN_TIMEOUT = 3600.0
_GLANCE = 0.002  # seconds that an item which comes may have to wait for its inputs to be taken
# The first two are the user's; the others come with every device.
_OPTIONS = frozenset(("stall", "seed", "credits", "kind", "board", "clock_hz", "threads"))


class BoardProcess:
    """A virtual board in its own process; a transport for BoardClient.

    Parameters
    ----------
    library
        What :func:`trivet.sim.build.build` returned.
    name
        Name of the device, for messages.
    seed, stall_in, stall_out
        Random stalls of the byte streams, see :class:`trivet.sim.board.VirtualBoard`.
    """

    def __init__(
        self,
        library: Path,
        name: str,
        *,
        seed: int = 1,
        stall_in: float = 0.0,
        stall_out: float = 0.0,
    ) -> None:
        self._name = name
        # The file itself, isolated: the board needs neither our packages nor the user's paths.
        command = [sys.executable, "-I", "-S", str(board_module.__file__), str(library)]
        try:
            self._process = subprocess.Popen(
                [*command, str(seed), str(stall_in), str(stall_out)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
            )
        except OSError as e:
            raise DeviceError(
                f"device '{name}': cannot start the virtual board ({e.strerror}); "
                f"choose --device {name}=model"
            ) from e
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin.fileno()
        self._stdout = self._process.stdout.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._stdin, left) :]
        except OSError as e:
            raise self._dead() from e

    def read(self, timeout: float) -> bytes:
        try:
            if not select.select([self._stdout], [], [], timeout)[0]:
                return b""
            data = os.read(self._stdout, 1 << 16)
        except (OSError, ValueError) as e:
            raise self._dead() from e
        if not data:
            raise self._dead()
        return data

    def kill(self) -> None:
        """End the process; whoever waits in :meth:`read` gets its DeviceError."""
        self._process.kill()

    def close(self) -> None:
        """End the process and free its pipes; idempotent. Nobody may be in :meth:`read`."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

    def _dead(self) -> DeviceError:
        try:
            code = str(self._process.wait(timeout=1.0))
        except subprocess.TimeoutExpired:
            code = "unknown"
        return DeviceError(
            f"device '{self._name}': the process of the virtual board ended (exit code {code}); "
            f"run again, or choose --device {self._name}=model"
        )


def _connect(
    config: EngineConfig, name: str, options: dict[str, str]
) -> tuple[BoardProcess, BoardClient, Hello]:
    """Build, start and greet a board."""
    odd = sorted(set(options) - _OPTIONS)
    if odd:
        what = repr(options["address"]) if "address" in options else f"option {odd[0]!r}"
        raise DeviceError(
            f"device '{name}': the virtual board knows no {what}; its options are stall and seed: "
            f"--device {name}=virtual:stall=0.2,seed=4"
        )
    try:
        seed = int(options.get("seed", "1"))
        stall = float(options.get("stall", "0"))
        if not 0.0 <= stall < 1.0:
            raise ValueError
    except ValueError as e:
        raise DeviceError(
            f"device '{name}': options {options} of the virtual board are not understood; seed is "
            "a whole number, stall a probability of at least 0 and below 1"
        ) from e
    key = build_sha256(config)  # once: the RTL may be edited while a board is being built
    process = BoardProcess(build(config, key=key), name, seed=seed, stall_in=stall, stall_out=stall)
    try:
        client = BoardClient(process, name, timeout=_TIMEOUT, run_timeout=_RUN_TIMEOUT, retries=0)
        hello = client.hello()
        if hello.build_sha256 != key:
            raise DeviceError(
                f"device '{name}': the virtual board says build {hello.build_sha256[:12]}.., not "
                f"{key[:12]}..; empty Trivet's cache folder and run again"
            )
    except BaseException:
        process.close()
        raise
    return process, client, hello


class VirtualDevice(WorkerDevice):
    """A board that is simulated at cycle level, host link included.

    Items overlap as the program allows: while the engine runs one, the next one's inputs go in.

    Counters of an item: ``cycles`` of the board from start to the last output byte, or, of an item
    right behind another, from that one's last byte; ``simulator_microseconds`` from its submission
    to its answer here, which say nothing about a board.

    Parameters
    ----------
    options
        ``credits``: submissions in flight, 2 unless given. ``stall``, ``seed``: probability and
        seed of random stalls on the byte streams, none unless given.
    """

    kind: Kind = "fpga"
    attach = "virtual"
    fresh_outputs = True

    def __init__(self, name: str, options: dict[str, str]) -> None:
        super().__init__(name, options)
        self._options = dict(options)
        self._process: BoardProcess | None = None
        self._client: BoardClient | None = None
        self._epoch = 0
        self._line = threading.Lock()  # one request at a time
        self._inputs: list[Port] = []
        self._outputs: list[Port] = []

    def describe(self) -> DeviceInfo:
        info = super().describe()
        return DeviceInfo(info.name, info.kind, info.attach, info.credits, info.engine, self._epoch)

    def close(self) -> None:
        process = self._process
        if process is not None and not self._closed:
            process.kill()  # ends a run that would keep the worker for long
        super().close()

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
                f"device '{self.name}': stage {stage.index} is an ONNX model, the virtual board "
                "runs programs only; give the stage to a CPU or GPU"
            )
        try:
            program = Program.from_bytes(stage.payload)
            if stage.engine is not None and stage.engine != program.config_sha256:
                raise ProgramError(
                    f"program is for engine {program.config_sha256[:12]}.., "
                    f"the stage says {stage.engine[:12]}.."
                )
            self._inputs = _ports("inputs", stage.inputs, program.inputs)
            self._outputs = _ports("outputs", stage.outputs, program.outputs)
        except ProgramError as e:
            raise DeviceError(
                f"device '{self.name}': stage {stage.index}: {e}; compile the model again"
            ) from e
        process, client, hello = _connect(program.config, self.name, self._options)
        try:
            client.load_program(stage.payload)
        except BaseException:
            process.close()
            raise
        self._process, self._client, self._epoch = process, client, hello.epoch

    def _work(self, stage: Stage) -> None:
        """Items pass through the board two at a time, where the program allows."""
        client = self._client
        assert client is not None
        items = Items(client)
        begun: deque[tuple[int, float]] = deque()  # tickets in flight, when they came
        while True:
            job = None
            if len(items) < items.depth:
                with suppress(queue.Empty):
                    job = self._todo.get(block=not begun)
                    if job is None or self._closed:
                        self._unload()
                        return
            if job is not None:
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
                return items.ready(_GLANCE if len(items) < items.depth else _TIMEOUT)
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
        counters = {"cycles": cycles, "simulator_microseconds": round((now - started) * 1e6)}
        return Completion(ticket, buffers, started, now, counters)

    def _execute(self, stage: Stage, inputs: Sequence[Array]) -> tuple[Outputs, dict[str, int]]:
        raise NotImplementedError  # items overlap: see _work

    def _unload(self) -> None:
        process, self._process, self._client = self._process, None, None
        if process is not None:
            process.close()


def _ports(what: str, specs: Sequence[TensorSpec], ports: Sequence[Port]) -> list[Port]:
    """The program's ports in the stage's order; ProgramError when they do not fit."""
    by_name = {port.tensor: port for port in ports}
    if set(by_name) != {spec.name for spec in specs}:
        raise ProgramError(
            f"program has {what} {sorted(by_name)}, the stage says {sorted(s.name for s in specs)}"
        )
    for spec in specs:
        port, items = by_name[spec.name], 1
        for size in spec.shape:
            items *= size
        if items != port.nbytes or spec.dtype != port.dtype:
            raise ProgramError(
                f"program has {port.dtype} {list(port.hwc)} for {spec.name!r}, "
                f"the stage says {spec.dtype} {list(spec.shape)}"
            )
    return [by_name[spec.name] for spec in specs]
