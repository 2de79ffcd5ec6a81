"""A board on a serial port: frames over a UART, by pyserial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from trivet.runtime.device import DeviceError, Stage, TensorSpec
from trivet.runtime.link.client import BoardClient
from trivet.runtime.program_file import PortInfo

from .worker import Kind, Outputs, WorkerDevice, int_option

__all__ = ["SerialTransport", "UartDevice"]

_BAUD = 3_000_000
# The first two are the user's; the others come with every device.
_OPTIONS = frozenset(("address", "baud", "credits", "kind", "board", "clock_hz", "threads"))
_TIMEOUT = 2.0
_RUN_TIMEOUT = 60.0
_CHUNK = 1 << 16


class SerialTransport:
    """A serial port, 8N1 without flow control; a transport for BoardClient.

    ``address`` is what pyserial opens: a port's name, or one of its URLs.
    """

    def __init__(self, name: str, address: str, baud: int) -> None:
        self._name = name
        try:
            import serial
        except ImportError as e:
            raise DeviceError(
                f"device '{name}': pyserial is not installed, which opens serial ports; "
                "pip install 'trivet[uart]'"
            ) from e
        self._failures = (serial.SerialException, OSError, TypeError)
        try:
            self._port = serial.serial_for_url(address, baudrate=baud, write_timeout=_TIMEOUT)
            self._port.reset_input_buffer()
        except (serial.SerialException, OSError, ValueError) as e:
            raise DeviceError(
                f"device '{name}': cannot open {address} ({e}); check the cable and who may use "
                f"the port, or name another: --device {name}=uart:/dev/ttyUSB0"
            ) from e

    def write(self, data: bytes) -> None:
        try:
            self._port.write(data)
        except self._failures as e:
            raise self._lost(e) from e

    def read(self, timeout: float) -> bytes:
        try:
            self._port.timeout = timeout
            first: bytes = self._port.read(1)
            if not first:
                return b""
            return first + bytes(self._port.read(min(self._port.in_waiting, _CHUNK)))
        except self._failures as e:
            raise self._lost(e) from e

    def close(self) -> None:
        self._port.close()

    def _lost(self, error: Exception) -> DeviceError:
        return DeviceError(
            f"device '{self._name}': the serial port failed ({error}); connect the board again, "
            f"or choose --device {self._name}=model"
        )


class UartDevice(WorkerDevice):
    """A board behind a UART; one item at a time passes through it.

    Counters of an item: ``cycles`` of the board from start to the last output byte.

    Parameters
    ----------
    options
        ``address``: the port. ``baud``: its rate, 3,000,000 unless given. ``credits``: submissions
        in flight, 2 unless given.
    """

    kind: Kind = "fpga"
    attach = "uart"
    fresh_outputs = True

    def __init__(self, name: str, options: dict[str, str]) -> None:
        super().__init__(name, options)
        odd = sorted(set(options) - _OPTIONS)
        if odd:
            raise DeviceError(
                f"device '{name}': a UART knows no option {odd[0]!r}; its options are address and "
                f"baud: --device {name}=uart:address=/dev/ttyUSB0,baud=115200"
            )
        if not options.get("address"):
            raise DeviceError(
                f"device '{name}': which serial port? --device {name}=uart:/dev/ttyUSB0"
            )
        self._address = options["address"]
        self._baud = int_option(name, options, "baud", _BAUD, 1)
        self._transport: SerialTransport | None = None
        self._client: BoardClient | None = None
        self._ticket = 0
        self._ports: tuple[list[PortInfo], list[PortInfo]] = ([], [])

    def _load(self, stage: Stage) -> None:
        if stage.kind != "program":
            raise DeviceError(
                f"device '{self.name}': stage {stage.index} is an ONNX model, a board runs "
                "programs only; give the stage to a CPU or GPU"
            )
        transport = SerialTransport(self.name, self._address, self._baud)
        try:
            client = BoardClient(transport, self.name, timeout=_TIMEOUT, run_timeout=_RUN_TIMEOUT)
            hello = client.hello()
            built = stage.builds.get(hello.board)
            if built is not None and built != hello.build_sha256:
                raise DeviceError(
                    f"device '{self.name}': board {hello.board!r} holds build "
                    f"{hello.build_sha256[:12]}.., the bundle has {built[:12]}..; "
                    f"run trivet program BUNDLE --board {hello.board} --yes"
                )
            client.reset()
            program = client.load_program(stage.payload)
            form = program.forms[0]
            self._ports = (
                self._matched(stage, "inputs", stage.inputs, form.inputs),
                self._matched(stage, "outputs", stage.outputs, form.outputs),
            )
        except BaseException:
            transport.close()
            raise
        self._transport, self._client = transport, client

    def _matched(
        self, stage: Stage, what: str, specs: Sequence[TensorSpec], ports: Sequence[PortInfo]
    ) -> list[PortInfo]:
        """The program's ports in the stage's order."""
        by_name = {port.tensor: port for port in ports}
        if sorted(by_name) != sorted(spec.name for spec in specs):
            raise DeviceError(
                f"device '{self.name}': stage {stage.index}: the program has {what} "
                f"{sorted(by_name)}, the stage says {sorted(s.name for s in specs)}; "
                "compile the model again"
            )
        return [by_name[spec.name] for spec in specs]

    def _execute(
        self, stage: Stage, inputs: Sequence[npt.NDArray[Any]]
    ) -> tuple[Outputs, dict[str, int]]:
        client = self._client
        assert client is not None
        for port, array in zip(self._ports[0], inputs, strict=True):
            client.write_tensor(port, array)
        self._ticket = (self._ticket + 1) & 0xFFFFFFFF
        cycles = client.run(self._ticket, client.program.forms[0].first)
        outputs = [
            client.read_tensor(port).reshape(spec.shape)
            for port, spec in zip(self._ports[1], stage.outputs, strict=True)
        ]
        return outputs, {"cycles": cycles}

    def _unload(self) -> None:
        transport, self._transport, self._client = self._transport, None, None
        if transport is not None:
            transport.close()
