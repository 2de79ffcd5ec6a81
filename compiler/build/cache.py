"""Finished builds, one folder each: made elsewhere and renamed, checked when read, one builder.

A folder can be opened: it has the scripts, logs and reports of its build. ``entry.json`` comes last
and holds the hashes of what is read back, so a damaged or half-written entry is built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import platformdirs
from filelock import FileLock, Timeout

from trivet.compiler.errors import CompileError

from .report import Report

__all__ = ["Entry", "builds_folder", "load", "locked", "save", "work_folder"]

_ENTRY = "entry.json"
# What only --keep leaves behind: tens of megabytes each, and made again from top.il.
_LARGE = ("*.il", "*.json.log", "synth.json", "top.json", "*.config", "*.asc", "routed-*.json")


class Entry(msgspec.Struct, frozen=True):
    """A finished build: its folder, report and bitstream (None for a family without one)."""

    folder: Path
    report: Report
    bitstream: Path


def builds_folder() -> Path:
    """Where builds are kept: in the user's cache folder, or in ``$TRIVET_CACHE_DIR``."""
    override = os.environ.get("TRIVET_CACHE_DIR")
    root = Path(override) if override else Path(platformdirs.user_cache_dir("trivet"))
    folder = root / "builds"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = None if os.access(folder, os.W_OK) else "it is read-only"
    except OSError as e:
        reason = e.strerror or str(e)
    if reason is not None:
        raise CompileError(
            f"build: its cache folder {folder} cannot be written ({reason}); set TRIVET_CACHE_DIR "
            "to a folder that can"
        )
    return folder


@contextmanager
def locked(name: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Be the only builder of ``name``; ``tell`` hears when another one is waited for."""
    lock = FileLock(builds_folder() / f"{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        tell("waiting for another build of the same")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def work_folder(name: str) -> Iterator[Path]:
    """A folder to build in, for the holder of the lock.

    After a CompileError it stays as ``NAME.failed``, to be looked at; Ctrl-C leaves nothing.
    """
    root = builds_folder()
    failed = root / f"{name}.failed"
    for stale in [*root.glob(f"{name}.work-*"), failed]:
        shutil.rmtree(stale, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}.work-", dir=root))
    try:
        yield folder
    except CompileError:
        os.replace(folder, failed)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def failed_folder(name: str) -> Path:
    """Where :func:`work_folder` leaves a build that failed."""
    return builds_folder() / f"{name}.failed"


def save(name: str, work: Path, report: Report, bitstream: str, *, keep: bool) -> Entry:
    """Make ``work`` the entry ``name``; without ``keep`` its large files go."""
    (work / "report.json").write_bytes(report.to_json())
    if not keep:
        for pattern in _LARGE:
            for path in work.glob(pattern):
                path.unlink()
    files = {f: _sha256(work / f) for f in ("report.json", bitstream)}
    entry = {"bitstream": bitstream, "files": files, "kept": keep}
    (work / _ENTRY).write_text(json.dumps(entry, indent=1, sort_keys=True), encoding="utf-8")
    folder = builds_folder() / name
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(work, folder)
    return Entry(folder, report, folder / bitstream)


def load(name: str, *, keep: bool) -> Entry | None:
    """The entry, if it is there whole; with ``keep`` only one that has kept its large files."""
    folder = builds_folder() / name
    try:
        entry = json.loads((folder / _ENTRY).read_text(encoding="utf-8"))
        if any(_sha256(folder / f) != digest for f, digest in entry["files"].items()):
            return None
        if keep and not entry["kept"]:
            return None
        report = msgspec.json.decode((folder / "report.json").read_bytes(), type=Report)
        return Entry(folder, report, folder / entry["bitstream"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
