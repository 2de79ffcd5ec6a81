"""The commands about bitstreams: build and program."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from trivet._cli_common import Fault, check_target, console, phases, write_whole

if TYPE_CHECKING:
    from trivet.compiler.build.build import Built
    from trivet.hdl.config import EngineConfig

__all__ = ["build_command", "program_command"]


def build_command(
    path: Path | None,
    board_name: str,
    *,
    seeds: int,
    limit_minutes: float,
    keep: bool,
    only_folder: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    from trivet import boards
    from trivet.compiler.bitstreams import Bitstream, put_bitstream
    from trivet.compiler.build.build import build

    board = boards.get(board_name)
    if limit_minutes <= 0:
        raise Fault(f"--time-limit is {limit_minutes:g} minutes, must be above 0")
    if output is not None:
        check_target(output)
    config = _engine_of(path, board_name)
    with phases() as tell:
        built = build(board, config, seeds=seeds, limit_s=60 * limit_minutes, keep=keep, tell=tell)
    if output is not None:
        write_whole(output, built.bitstream.read_bytes())
    if path is not None:
        put_bitstream(path, Bitstream(board_name, config.sha256, built))
    if only_folder:
        print(built.folder)
    elif as_json:
        found = msgspec.to_builtins(built.report)
        found |= {"cached": built.cached, "folder": str(built.folder)}
        text = msgspec.json.format(msgspec.json.encode(found), indent=1).decode()
        sys.stdout.write(text + "\n")
    else:
        _print_report(built, path, output)


def _engine_of(path: Path | None, board_name: str) -> EngineConfig:
    """The bundle's engine (one for this board where it has several), or the board's own."""
    from trivet import boards
    from trivet.hdl.config import EngineConfig
    from trivet.runtime.bundle import Bundle

    board = boards.get(board_name)
    if path is None:
        if board.engine is None:
            raise Fault(
                f"board {board_name!r} has no engine configuration yet; give a bundle whose "
                "engine to build, or choose another board"
            )
        return EngineConfig(**board.engine)
    with Bundle.open(path) as bundle:
        manifest = bundle.manifest
        devices = bundle.rig().devices
        plan = bundle.plan()
    engines = {}
    for stage, planned in zip(manifest.stages, plan.stages, strict=True):
        if stage.engine is not None:
            engines[stage.engine] = devices[planned.device].board
    if not engines:
        raise Fault(f"{path}: has no FPGA stage, so no engine to build; compile with --place fpga")
    fitting = [sha for sha, name in engines.items() if name == board_name]
    if not fitting:
        names = ", ".join(sorted({str(name) for name in engines.values()}))
        raise Fault(
            f"{path}: was planned for {names}, not for {board_name!r}; compile the model for that "
            "board"
        )
    if len(fitting) > 1:
        raise Fault(f"{path}: has {len(fitting)} engines for {board_name!r}; build one at a time")
    return EngineConfig.from_dict(manifest.engines[fitting[0]].config)  # type: ignore[arg-type]


def _print_report(built: Built, path: Path | None, output: Path | None) -> None:
    from rich.table import Table

    report = built.report
    screen = console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("resource", "used", "budget", "share", "predicted", "error"):
        table.add_column(name, justify="left" if name == "resource" else "right")
    for name, r in report.resources.items():
        table.add_row(
            name.upper(),
            f"{r.used:,}",
            f"{r.budget:,}",
            f"{100 * r.used / r.budget:.0f} %" if r.budget else "-",
            "-" if r.predicted is None else f"{r.predicted:,}",
            "-" if r.error is None else f"{100 * r.error:+.1f} %",
        )
    screen.print(table)
    lines = []
    if report.fmax_hz is not None:
        lines.append(
            f"Fmax {report.fmax_hz / 1e6:.1f} MHz (worst corner, seed {report.seed} of "
            f"{len(report.seeds)} tried), the clock is {report.clock_target_hz / 1e6:g} MHz"
        )
    if report.critical_path is not None:
        lines.append(f"critical path {report.critical_path.text}")
    memory = max((p.memory_bytes or 0 for p in report.phases), default=0)
    phases = ", ".join(f"{p.name} {p.seconds:.0f} s" for p in report.phases)
    lines.append(f"{phases}; {memory / 1e6:,.0f} MB at most; build {report.build_sha256[:12]}")
    if built.cached:
        lines.append("from the cache: figures are of the build")
    lines.append(f"{built.bitstream.name}: {report.bitstream_bytes:,} bytes, in {built.folder}")
    if built.is_export:
        lines.append(
            "no bitstream: that needs Vivado (vivado -mode batch -source build.tcl in that folder, "
            "which has Verilog, constraints and Tcl); cells are counted after yosys' synth_xilinx"
        )
    if path is not None:
        lines.append(f"put into {path}")
    if output is not None:
        lines.append(f"copied to {output}")
    lines.append("nothing has been run on hardware")
    for line in lines:
        screen.print(line, markup=False, soft_wrap=True)


def program_command(path: Path, board_name: str, *, yes: bool, flash: bool, as_json: bool) -> None:
    from trivet import boards
    from trivet.compiler.build.program import check_bitstream, loader_command
    from trivet.runtime.bundle import Bundle

    board = boards.get(board_name)
    with Bundle.open(path) as bundle:
        found = check_bitstream(bundle, board)
        data = bundle.read(found.member)
    loader = shutil.which("openFPGALoader")
    command = loader_command(board, found.member.rpartition("/")[2], flash=flash)
    if not yes:
        if as_json:
            shown = {"command": command, "member": found.member, "ran": False}
            shown |= {"build_sha256": found.build_sha256, "loader": loader is not None}
            sys.stdout.write(msgspec.json.encode(shown).decode() + "\n")
            return
        print(f"unzip -j {path} {found.member} && {' '.join(command)}")
        print("nothing was programmed; --yes does it", file=sys.stderr)
        return
    if loader is None:
        raise Fault(
            "openFPGALoader is not installed, which programs boards; apt install openfpgaloader, "
            "or program the file that the command without --yes names by another tool"
        )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / command[-1]).write_bytes(data)
        code = subprocess.run([loader, *command[1:]], cwd=folder, check=False).returncode
    if as_json:
        shown = {"command": command, "member": found.member, "ran": True, "code": code}
        sys.stdout.write(msgspec.json.encode(shown).decode() + "\n")
    if code != 0:
        print(
            f"trivet: openFPGALoader failed with exit code {code}; check cable and permissions",
            file=sys.stderr,
        )
        raise typer.Exit(2)
