"""Runs one tool: its lines as they come, a time limit, its peak memory, and an end when we end.

A tool runs in a process group of its own, so that Ctrl-C, a time limit or an error here ends all
of it, and nothing goes on computing (or writing) behind the user's back.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

__all__ = ["Finished", "TimeLimit", "run_tool"]

_POLL_S = 0.05
_GRACE_S = 2.0  # from the polite signal to the other one
_KEPT_LINES = 200
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class TimeLimit(Exception):
    """The tool ran longer than it may; ``lines`` are its last ones."""

    def __init__(self, seconds: float, lines: Sequence[str]) -> None:
        self.seconds = seconds
        self.lines = tuple(lines)
        super().__init__(f"still running after {seconds:g} s")


@dataclass(frozen=True)
class Finished:
    """A tool that ended by itself: exit code, last lines, wall-clock seconds.

    ``memory_bytes`` is the peak resident size of its largest process; None where the system does
    not tell (Windows).
    """

    code: int
    lines: tuple[str, ...]
    seconds: float
    memory_bytes: int | None


def run_tool(
    command: Sequence[str],
    folder: Path,
    *,
    limit_s: float | None = None,
    on_line: Callable[[str], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Run ``command`` in ``folder`` and wait for it.

    Parameters
    ----------
    command
        Program and arguments; file names in them relative to ``folder`` (YoWASP tools have a
        ``/tmp`` of their own and do not see the system's).
    limit_s
        Seconds after which it is killed; None is no limit.
    on_line
        Told every line of its stdout and stderr, from another thread.
    environment
        Added to this process's.

    Raises
    ------
    TimeLimit
        After ``limit_s``; the tool is gone.
    OSError
        It cannot be started.
    """
    began = time.monotonic()
    with _terminate_as_interrupt():
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        lines: deque[str] = deque(maxlen=_KEPT_LINES)
        reader = threading.Thread(target=_read, args=(process, lines, on_line), daemon=True)
        reader.start()
        try:
            memory = _wait(process, began, limit_s)
        except _Overdue:
            _end(process)
            reader.join(_GRACE_S)
            raise TimeLimit(limit_s or 0.0, lines) from None
        except BaseException:
            _end(process)
            raise
        reader.join(_GRACE_S)
        # A tool must not leave children behind, whatever way it ended.
        _signal_group(process.pid, signal.SIGKILL if os.name != "nt" else signal.SIGTERM)
    assert process.returncode is not None
    return Finished(process.returncode, tuple(lines), time.monotonic() - began, memory)


class _Overdue(Exception):
    pass


def _read(
    process: subprocess.Popen[str], lines: deque[str], on_line: Callable[[str], None] | None
) -> None:
    assert process.stdout is not None
    with suppress(ValueError, OSError), process.stdout as stream:
        for line in stream:
            text = line.rstrip()
            lines.append(text)
            if on_line is not None:
                on_line(text)


def _wait(process: subprocess.Popen[str], began: float, limit_s: float | None) -> int | None:
    """Peak memory once it has ended; _Overdue after the limit."""
    while True:
        if hasattr(os, "wait4"):
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                return int(usage.ru_maxrss) * _MAXRSS_UNIT
        elif process.poll() is not None:
            return None
        if limit_s is not None and time.monotonic() - began > limit_s:
            raise _Overdue
        time.sleep(_POLL_S)


def _end(process: subprocess.Popen[str]) -> None:
    """End the whole group, and be sure that it has ended."""
    _signal_group(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    if os.name != "nt":
        _signal_group(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _signal_group(pid: int, number: int) -> None:
    if os.name != "nt":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """A SIGTERM to us (a CI runner, a closed terminal) unwinds like Ctrl-C, so tools end too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
