"""A board on a serial port: frames over a UART, by pyserial."""

from __future__ import annotations

import os
import warnings

from trivet.runtime.device import DeviceError, Stage
from trivet.runtime.link.client import BoardClient
from trivet.runtime.link.frame import Hello

from .board import BoardDevice
from .worker import int_option

__all__ = ["SerialTransport", "UartDevice"]

_BAUD = 3_000_000
_BOARD_BYTES = 16  # of a name that HELLO tells
# The first two are the user's; the others come with every device.
_OPTIONS = frozenset(("address", "baud", "credits", "kind", "board", "clock_hz", "threads"))
_TIMEOUT = 2.0
_EXCLUSIVE = os.name == "posix" or None  # elsewhere ports are always opened by one process alone
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
            self._port = serial.serial_for_url(
                address, baudrate=baud, write_timeout=_TIMEOUT, exclusive=_EXCLUSIVE
            )
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


class UartDevice(BoardDevice):
    """A board behind a UART.

    Parameters
    ----------
    options
        ``address``: the port. ``baud``: its rate, 3,000,000 unless given. ``credits``: submissions
        in flight, 2 unless given.
    """

    attach = "uart"

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

    def _connect(self, stage: Stage) -> tuple[SerialTransport, BoardClient, Hello]:
        transport = SerialTransport(self.name, self._address, self._baud)
        try:
            client = BoardClient(transport, self.name, timeout=_TIMEOUT, run_timeout=_RUN_TIMEOUT)
            self._check_build(stage, client.hello())
            # Whatever the board did for another host, unless that still has it.
            return transport, client, client.reset()
        except BaseException:
            transport.close()
            raise

    def _check_build(self, stage: Stage, hello: Hello) -> None:
        """Is it the rig's board, with the bundle's bitstream? DeviceError if it is another one."""
        wanted = self._options.get("board", hello.board)
        if hello.board != wanted[:_BOARD_BYTES]:
            raise DeviceError(
                f"device '{self.name}': the board on {self._address} is {hello.board!r}, the rig "
                f"says {wanted!r}; name its port, or the board in rig.toml"
            )
        built = stage.builds.get(wanted)
        if built is None:
            # Boards are programmed with other builds of the same engine, too; which one this is,
            # nobody can say then. Loading compares the engine.
            warnings.warn(
                f"device '{self.name}': the bundle has no bitstream of {wanted!r} to compare the "
                f"board's build {hello.build_sha256[:12]}.. with, only its engine is checked; "
                f"trivet build BUNDLE --board {wanted} puts one in",
                RuntimeWarning,
                stacklevel=2,
            )
        elif built != hello.build_sha256:
            raise DeviceError(
                f"device '{self.name}': board {wanted!r} holds build {hello.build_sha256[:12]}.., "
                f"the bundle has {built[:12]}..; run trivet program BUNDLE --board {wanted} --yes"
            )
