"""The virtual board as a device: the RTL of the bitstream, compiled, in a process of its own."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy.typing as npt

from trivet.hdl.config import EngineConfig
from trivet.hdl.isa import Program, ProgramError
from trivet.runtime.device import DeviceError, Stage
from trivet.runtime.devices.board import BoardDevice
from trivet.runtime.link.client import BoardClient
from trivet.runtime.link.frame import Hello

from . import board as board_module
from .build import build, build_sha256

__all__ = ["BoardProcess", "VirtualDevice"]

Array = npt.NDArray[Any]
# A board that dies is seen at once; one that says nothing for so long is wedged, though its run may
# take much longer: it answers in between.
_TIMEOUT = 2.5
_RUN_TIMEOUT = 3600.0
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
        client = BoardClient(process, name, timeout=_TIMEOUT, run_timeout=_RUN_TIMEOUT)
        hello = client.reset()
        if hello.build_sha256 != key:
            raise DeviceError(
                f"device '{name}': the virtual board says build {hello.build_sha256[:12]}.., not "
                f"{key[:12]}..; empty Trivet's cache folder and run again"
            )
    except BaseException:
        process.close()
        raise
    return process, client, hello


class VirtualDevice(BoardDevice):
    """A board that is simulated at cycle level, host link included.

    Counters of an item: beside ``cycles``, ``simulator_microseconds`` from its submission to its
    answer here, which say nothing about a board.

    Parameters
    ----------
    options
        ``credits``: submissions in flight, 2 unless given. ``stall``, ``seed``: probability and
        seed of random stalls on the byte streams, none unless given.
    """

    attach = "virtual"

    def close(self) -> None:
        link = self._link
        if isinstance(link, BoardProcess) and not self._closed:
            link.kill()  # ends a run that would keep the worker for long
        super().close()

    def _connect(self, stage: Stage) -> tuple[BoardProcess, BoardClient, Hello]:
        try:
            config = Program.from_bytes(stage.payload).config
        except ProgramError as e:
            raise DeviceError(
                f"device '{self.name}': stage {stage.index}: {e}; compile the model again"
            ) from e
        return _connect(config, self.name, self._options)

    def _counted(self, cycles: int, seconds: float) -> dict[str, int]:
        return {"cycles": cycles, "simulator_microseconds": round(seconds * 1e6)}
