"""Programming a board: is the bitstream for it, and how openFPGALoader is called."""

from __future__ import annotations

from trivet.boards.board import Board
from trivet.compiler.errors import CompileError
from trivet.runtime.bundle import BitstreamInfo, Bundle

__all__ = ["check_bitstream", "loader_command"]

# openFPGALoader's names of boards (its doc/boards.yml); those it does not know go by cable.
_LOADER = {
    "ulx3s": ("-b", "ulx3s"),
    "ecpix5": ("-b", "ecpix5"),
    "colorlight-i5": ("-b", "colorlight-i5"),
    "orangecrab": ("-b", "orangecrab"),
    "icebreaker": ("-b", "ice40_generic"),
    "tang-nano-20k": ("-b", "tangnano20k"),
    "arty-a7-100t": ("-b", "arty_a7_100t"),
}


def check_bitstream(bundle: Bundle, board: Board) -> BitstreamInfo:
    """The bundle's bitstream for a board and the engine of its programs; CompileError if none."""
    engines = bundle.manifest.engines
    used = {s.engine for s in bundle.manifest.stages if s.engine is not None}
    for engine in sorted(used):
        info = engines[engine].bitstreams.get(board.name)
        if info is not None:
            _check_report(bundle, board, engine, info)
            return info
    exported = f"export/{board.name}.zip"
    if exported in bundle.manifest.members:
        raise CompileError(
            f"{bundle.path}: {board.name!r} has no open place and route, so the bundle has no "
            f"bitstream; unzip {exported} and let Vivado make it (build.tcl)"
        )
    there = sorted({name for e in engines.values() for name in e.bitstreams})
    has = f"it has {', '.join(there)}" if there else "it has none"
    raise CompileError(
        f"{bundle.path}: has no bitstream for {board.name!r}, {has}; run trivet build "
        f"{bundle.path.name} --board {board.name}"
    )


def _check_report(bundle: Bundle, board: Board, engine: str, info: BitstreamInfo) -> None:
    """The report beside the bitstream must say the same board, engine and build."""
    import hashlib

    import msgspec

    from .report import Report

    name = f"{info.member.rpartition('.')[0]}.report.json"
    try:
        report = msgspec.json.decode(bundle.read(name), type=Report)
    except msgspec.DecodeError as e:
        raise CompileError(f"{bundle.path}: {name} is no report of a build; build it again") from e
    found = hashlib.sha256(bundle.read(info.member)).hexdigest()
    told = (report.board, report.engine_sha256, report.build_sha256, report.bitstream_sha256)
    if told != (board.name, engine, info.build_sha256, found):
        raise CompileError(
            f"{bundle.path}: the bitstream for {board.name!r} is not the one that its report "
            f"describes ({report.board}, build {report.build_sha256[:12]}..); build it again"
        )


def loader_command(board: Board, file: str, *, flash: bool = False) -> list[str]:
    """The words of the openFPGALoader call; into the FPGA's memory unless ``flash``.

    CompileError for a board that openFPGALoader is not known to program.
    """
    key = next((k for k in _LOADER if board.name.startswith(k)), None)
    if key is None:
        raise CompileError(
            f"program: no openFPGALoader call is known for {board.name!r}; use the vendor's tool"
        )
    return ["openFPGALoader", *_LOADER[key], *(["-f"] if flash else []), file]
