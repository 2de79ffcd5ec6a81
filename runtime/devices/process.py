"""A CPU stage in a process of its own: what kills or stops it leaves the session alive.

``python -m trivet.runtime.devices.process`` is that process. It reads one JSON line and the models
from stdin, then items as the bytes of their inputs. It writes blocks: a byte says what it is, four
its length. A beat comes twice a second, whatever the stage computes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from trivet.runtime.device import Buffer, DeviceError, Stage, TensorSpec

from .cpu import CpuDevice, cpu_model
from .worker import Kind, Outputs, WorkerDevice, int_option

__all__ = ["ProcessDevice"]

Array = npt.NDArray[Any]
_BEAT: Final = 0.5  # seconds
_SILENT: Final = 3.0  # seconds after which a process without a beat is taken for stopped
_START: Final = 60.0  # ... while it starts and loads the model
_HEAD: Final = struct.Struct("<cI")
_ANSWER, _ERROR, _ALIVE = b"A", b"E", b"B"


class ProcessDevice(WorkerDevice):
    """onnxruntime on the CPU in another process.

    Parameters
    ----------
    options
        ``credits``, ``threads`` as the CPU has them.
    """

    kind: Kind = "cpu"
    attach = "process"
    fresh_outputs = True

    def __init__(self, name: str, options: dict[str, str]) -> None:
        super().__init__(name, options)
        self._threads = int_option(name, options, "threads", 0, 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._partial = bytearray()
        self._wait = _START

    @property
    def pid(self) -> int | None:
        """Of the process, once a stage is prepared."""
        return None if self._process is None else self._process.pid

    def _load(self, stage: Stage) -> None:
        model = cpu_model(self.name, stage)
        head = {
            "name": self.name,
            "threads": self._threads,
            "index": stage.index,
            "bytes": len(model),
            "inputs": [[s.name, s.dtype, list(s.shape)] for s in stage.inputs],
            "outputs": [[s.name, s.dtype, list(s.shape)] for s in stage.outputs],
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
            )
        except OSError as e:
            raise DeviceError(
                f"device '{self.name}': its process cannot be started ({e.strerror}); "
                f"choose --device {self.name}=cpu"
            ) from e
        try:
            self._write(json.dumps(head).encode() + b"\n" + model)
            self._read()
        except BaseException:
            self._unload()
            raise
        self._wait = _SILENT

    def _execute(self, stage: Stage, inputs: Sequence[Array]) -> tuple[Outputs, dict[str, int]]:
        self._write(b"".join(np.ascontiguousarray(array).tobytes() for array in inputs))
        data, outputs, start = self._read(), [], 0
        for spec in stage.outputs:
            dtype = np.dtype(spec.dtype)
            count = math.prod(spec.shape)
            outputs.append(np.frombuffer(data, dtype, count, start).reshape(spec.shape))
            start += count * dtype.itemsize
        return outputs, {}

    def _write(self, data: bytes) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        left = memoryview(data)
        pipe = process.stdin.fileno()
        os.set_blocking(pipe, False)
        try:
            while left:
                if not select.select([], [pipe], [], self._wait)[1]:
                    raise self._stopped()
                left = left[os.write(pipe, left) :]
        except (OSError, ValueError) as e:
            raise self._ended() from e

    def _read(self) -> bytes:
        """The next answer; DeviceError for one that says what went wrong."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        while True:
            if len(self._partial) >= _HEAD.size:
                kind, length = _HEAD.unpack_from(self._partial)
                if len(self._partial) >= _HEAD.size + length:
                    data = bytes(self._partial[_HEAD.size : _HEAD.size + length])
                    del self._partial[: _HEAD.size + length]
                    if kind == _ERROR:
                        raise DeviceError(data.decode())
                    if kind == _ANSWER:
                        return data
                    continue
            try:
                if not select.select([process.stdout], [], [], self._wait)[0]:
                    raise self._stopped()
                piece = os.read(process.stdout.fileno(), 1 << 20)
            except (OSError, ValueError) as e:
                raise self._ended() from e
            if not piece:
                raise self._ended()
            self._partial += piece

    def _ended(self) -> DeviceError:
        code: object = "unknown"
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(timeout=1.0)
        return DeviceError(
            f"device '{self.name}': its process ended (exit code {code}); run again, or choose "
            f"--device {self.name}=cpu"
        )

    def _stopped(self) -> DeviceError:
        return DeviceError(
            f"device '{self.name}': its process says nothing for {self._wait:g} s; run again, or "
            f"choose --device {self.name}=cpu"
        )

    def close(self) -> None:
        process = self._process
        if process is not None and not self._closed:
            process.kill()  # ends an item that would keep the worker for long
        super().close()

    def _unload(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait()


def _specs(rows: list[list[Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in rows)


def _serve(source: BinaryIO, sink: BinaryIO) -> None:
    lock = threading.Lock()

    def say(kind: bytes, data: bytes) -> None:
        with lock:
            sink.write(_HEAD.pack(kind, len(data)) + data)
            sink.flush()

    def beat() -> None:
        while True:
            time.sleep(_BEAT)
            try:
                say(_ALIVE, b"")
            except OSError:
                os._exit(0)  # nobody is there any more

    threading.Thread(target=beat, daemon=True).start()
    head = json.loads(source.readline())
    model = source.read(head["bytes"])
    stage = Stage(
        head["index"],
        "onnx",
        model,
        hashlib.sha256(model).hexdigest(),
        _specs(head["inputs"]),
        _specs(head["outputs"]),
    )
    device = CpuDevice(head["name"], {"threads": str(head["threads"])})
    try:
        device.prepare(stage)
    except DeviceError as e:
        say(_ERROR, str(e).encode())
        return
    say(_ANSWER, b"")
    while True:
        inputs = []
        for spec in stage.inputs:
            size = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
            data = source.read(size)
            if len(data) < size:
                return
            inputs.append(Buffer(np.frombuffer(data, spec.dtype).reshape(spec.shape)))
        done = device.compute(0, inputs)
        if done.error is not None:
            say(_ERROR, str(done.error).encode())
        else:
            say(_ANSWER, b"".join(buffer.array.tobytes() for buffer in done.outputs))


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        _serve(sys.stdin.buffer, sys.stdout.buffer)
