"""Bitstreams in a bundle: their member, their report beside it, and the line that tells of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.runtime.bundle import BitstreamInfo, Bundle, BundleWriter

from .errors import CompileError

if TYPE_CHECKING:
    from .build.build import Built

__all__ = ["Bitstream", "add_bitstream", "bitstream_note", "put_bitstream"]


@dataclass(frozen=True)
class Bitstream:
    """A build for a board and an engine (hash of its configuration)."""

    board: str
    engine: str
    built: Built


def add_bitstream(writer: BundleWriter, bitstream: Bitstream) -> None:
    """Add a bitstream and its report (without the times measured: equal inputs, equal bytes).

    The engine must be in the bundle. An archive for a vendor's tools goes to ``export/`` and is
    not listed as a bitstream: nothing could be programmed with it.
    """
    from .build.report import without_times

    built = bitstream.built
    folder = "export" if built.is_export else "bit"
    stem = f"{folder}/{bitstream.board}"
    if any(name.startswith(f"{stem}.") for name in writer.members):  # another engine's
        stem = f"{stem}-{bitstream.engine[:12]}"
    member = writer.add(f"{stem}{built.bitstream.suffix}", built.bitstream.read_bytes())
    writer.add(f"{stem}.report.json", without_times(built.report).to_json())
    if not built.is_export:
        info = BitstreamInfo(member, built.build_sha256)
        writer.add_bitstream(bitstream.engine, bitstream.board, info)


def put_bitstream(path: Path, bitstream: Bitstream) -> None:
    """Put a bitstream into a bundle that is there; one of the same board and engine is replaced.

    BundleError when the bundle cannot be read or written; CompileError for another engine.
    """
    with Bundle.open(path) as bundle:
        if bitstream.engine not in bundle.manifest.engines:
            raise CompileError(
                f"{path}: has no program for engine {bitstream.engine[:12]}..; compile for this "
                "board"
            )
        writer = BundleWriter.copy_of(bundle, without=(bitstream.engine, bitstream.board))
    add_bitstream(writer, bitstream)
    writer.write(path)


def bitstream_note(built: Built) -> str:
    """One line for people."""
    report = built.report
    what = f"{built.board}: {report.bitstream_bytes:,} bytes"
    if built.is_export:
        return f"export for {what}, build {built.build_sha256[:12]}; Vivado makes the bitstream"
    assert report.fmax_hz is not None
    how = "from the cache" if built.cached else f"built in {report.seconds:.0f} s"
    return (
        f"bitstream for {what}, {report.fmax_hz / 1e6:.1f} MHz for a clock of "
        f"{report.clock_target_hz / 1e6:g} MHz, build {built.build_sha256[:12]}, {how}"
    )
