"""The commands that use a bundle: run and verify."""

from __future__ import annotations

import itertools
import re
import sys
import time
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import typer

from trivet._cli_common import Fault, check_target, console, print_json, write_whole

if TYPE_CHECKING:
    from trivet.runtime.device import Scrubbed
    from trivet.runtime.lane import Loss
    from trivet.runtime.manifest import PortInfo
    from trivet.runtime.report import StageReport
    from trivet.sim.verify import Report

__all__ = ["run_command", "verify_command"]

# What numpy and zipfile raise for damaged archives, headers and impossible sizes.
_UNREADABLE = (
    OSError, ValueError, AttributeError, EOFError, MemoryError, RuntimeError, SyntaxError,
    tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

Array = npt.NDArray[Any]


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on stderr that goes away; calls give (done, of, text). Terminals only."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda done, of, text: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of, text: bar.update(
            task, completed=done, total=of, description=text or what
        )


def _read_arrays(path: Path) -> dict[str, Array]:
    # numpy takes what is no archive for a pickle, and then advises to load it as one.
    if path.exists() and not (path.is_file() and zipfile.is_zipfile(path)):
        raise Fault(f"input {path}: is no .npz file; write one with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError as e:
        raise Fault(f"input {path}: does not exist; check the path") from e
    except _UNREADABLE as e:
        reason = "it holds Python objects" if "allow_pickle" in str(e) else str(e)
        raise Fault(
            f"input {path}: not a plain .npz of arrays ({reason}); write one with numpy.savez"
        ) from e


def _items(
    ports: Sequence[PortInfo], arrays: Mapping[str, Array]
) -> tuple[list[dict[str, Array]], bool]:
    """A feed for each item, and whether the arrays held several along axis 0."""
    columns: dict[str, list[Array]] = {}
    stacked = False
    for port in ports:
        if port.name not in arrays:
            raise Fault(
                f"input {port.name!r}: no such array in the file, which has {', '.join(arrays)}"
            )
        array = arrays[port.name]
        shape = port.item_shape()
        if array.dtype != np.dtype(port.dtype):
            raise Fault(f"input {port.name!r}: is {array.dtype}, must be {port.dtype}; convert it")
        if port.batch_axis is None and array.shape == shape:
            columns[port.name] = [array]
        elif array.shape[1:] == shape:
            columns[port.name], stacked = list(array), True
        elif array.ndim and shape[:1] == (1,) and array.shape[1:] == shape[1:]:
            columns[port.name] = [array[k : k + 1] for k in range(len(array))]
            stacked = True
        else:
            raise Fault(
                f"input {port.name!r}: has shape {list(array.shape)}, must be {port.shape} with "
                "any number of items along axis 0; reshape it"
            )
    counts = {name: len(c) for name, c in columns.items()}
    if len(set(counts.values())) > 1:
        raise Fault(f"inputs hold different numbers of items: {counts}; make them equal")
    count = next(iter(counts.values()), 0)
    if count == 0:
        raise Fault("the input file holds no item; give at least one")
    return [{n: c[k] for n, c in columns.items()} for k in range(count)], stacked


def run_command(
    bundle: Path,
    source: Path,
    target: Path,
    devices: dict[str, str],
    *,
    strict: bool,
    rebalance: bool,
    scrub: bool,
    as_json: bool,
) -> None:
    import io

    from trivet.runtime.bundle import Bundle
    from trivet.runtime.session import Session

    # A board may take a minute to open: what can be wrong before that is looked at before that.
    check_target(target)
    arrays = _read_arrays(source)
    with warnings.catch_warnings(), Bundle.open(bundle) as opened:
        warnings.simplefilter("always")
        warnings.showwarning = _show_warning
        feeds, stacked = _items(opened.manifest.model.inputs, arrays)
        with (
            _bar("opening the devices") as tell,
            Session(opened, devices, strict, rebalance=rebalance) as session,
        ):
            names = [o.name for o in session.get_outputs()]
            scrubbed = [session.scrub()] if scrub else []
            started = time.perf_counter()
            rows = []
            for row in session.stream(feeds):
                rows.append(row)
                tell(len(rows), len(feeds), "items")
            seconds = time.perf_counter() - started
            reports, losses, moves = session.last_reports, session.losses, session.moves
            scrubbed += [session.scrub()] if scrub else []
    columns = {name: [row[k] for row in rows] for k, name in enumerate(names)}
    joined = {n: _join(c, stacked) for n, c in columns.items()}
    held = io.BytesIO()
    np.savez(held, **joined)  # type: ignore[arg-type]
    write_whole(target, held.getvalue())
    stages = [
        {
            "stage": r.index,
            "device": r.device,
            "attach": r.attach,
            "items": r.items,
            "seconds": r.seconds,
            "busy": r.busy,
            "counters": r.counters,
        }
        for r in reports
    ]
    damaged = [f"'{s.device}' ({s.attach})" for found in scrubbed[1:] for s in found if s.damaged]
    if as_json:
        found = {"items": len(rows), "seconds": seconds, "output": str(target), "stages": stages}
        found["moves"] = list(moves)
        found["losses"] = [msgspec.to_builtins(loss) for loss in losses]
        found["scrubbed"] = [[msgspec.to_builtins(s) for s in found] for found in scrubbed]
        print_json(found)
    else:
        told = (*map(_told_report, reports), *moves, *map(_told_loss, losses))
        for what in (*told, *map(_told_scrub, itertools.chain(*scrubbed))):
            console().print(what, markup=False, soft_wrap=True)
    if damaged:
        print(
            f"trivet: device {', '.join(damaged)}: computed wrong bytes after the run, so the "
            f"outputs may be wrong; its program was loaded again, run once more",
            file=sys.stderr,
        )
        raise typer.Exit(1)
    if as_json:
        return
    console().print(
        f"{len(rows)} items in {seconds:.3f} s ({len(rows) / seconds:.1f} items/s of this machine "
        f"and its simulators) -> {target}",
        markup=False,
        soft_wrap=True,
    )


def _told_report(report: StageReport) -> str:
    counters = "".join(f", {k} {v:,}" for k, v in report.counters.items())
    return (
        f"stage {report.index} on {report.device} ({report.attach}): {report.items} items, "
        f"{report.seconds:.3f} s{counters}"
    )


def _told_loss(loss: Loss) -> str:
    return (
        f"stage {loss.stage} went on {loss.seconds:.2f} s after the last sign of life of "
        f"{loss.device} ({loss.attach})"
    )


def _told_scrub(found: Scrubbed) -> str:
    state = "its memory was damaged" if found.damaged else "sound"
    mended = ", program and weights loaded again" if found.reloaded else ""
    return f"scrub: stage {found.stage} on {found.device} ({found.attach}): {state}{mended}"


def _join(column: list[Array], stacked: bool) -> Array:
    if not stacked:
        return column[0]
    if all(a.ndim and a.shape[0] == 1 for a in column):
        return np.concatenate(column)
    return np.stack(column)


def _show_warning(message: Warning | str, *rest: object, **more: object) -> None:
    print(f"trivet: warning: {message}", file=sys.stderr)


def verify_command(
    path: Path, *, rtl: bool, vectors: str | None, junit: Path | None, as_json: bool
) -> None:
    from trivet.runtime.bundle import Bundle
    from trivet.sim import verify

    if junit is not None:
        check_target(junit)
    with Bundle.open(path) as bundle:
        if vectors is None:
            items = verify.bundle_vectors(bundle, 2 if rtl else None)
        elif re.fullmatch(r"[+-]?\d+", vectors):
            if int(vectors) < 1:
                raise Fault(f"--vectors is {int(vectors)}, must be at least 1")
            items = verify.bundle_vectors(bundle, int(vectors))
        else:
            items = verify.file_vectors(bundle, vectors)
        with _bar("preparing the simulator" if rtl else "verifying") as tell:
            if rtl:
                from trivet.sim.rtl_machine import rtl_machines

                with rtl_machines(lambda done, what: tell(int(100 * done), 100, what)) as machines:
                    report = verify.verify_bundle(bundle, items, rtl=machines, progress=tell)
            else:
                report = verify.verify_bundle(bundle, items, progress=tell)
    if not (report.bytes_compared or report.outputs_compared):
        raise Fault(
            f"{path}: verify compared 0 bytes ({report.vectors} vectors, {len(report.layers)} FPGA "
            "layers); give --vectors N, or compile with --place fpga"
        )
    if junit is not None:
        write_whole(junit, verify.junit(report))
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report), indent=1).decode() + "\n")
    else:
        _print_report(report)
    if not report.ok:
        raise typer.Exit(1)


def _print_report(report: Report) -> None:
    from rich.table import Table
    from rich.text import Text

    from trivet._cli_common import shorten

    screen = console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("layer", no_wrap=True)
    for name in ("MACs", "cycles", "predicted", "stalls", "bytes", "wrong"):
        table.add_column(name, justify="right", no_wrap=True)
    for x in report.layers:
        table.add_row(
            Text(shorten(x.node, 22)),
            f"{x.macs:,}",
            "-" if x.cycles is None else f"{x.cycles:,}",
            f"{x.cycles_predicted:,}",
            f"{x.stalls:,}",
            f"{x.bytes_compared:,}",
            f"{x.bytes_different:,}",
            style="red" if x.bytes_different else None,
        )
    screen.print(table)
    machine = "the board's RTL" if report.machine == "rtl" else "the reference machine"
    sources = ", ".join(f"{n} {source}" for source, n in report.sources.items())
    screen.print(f"{report.vectors} vectors ({sources}) on {machine} against the contract form")
    lines = [f"{report.bytes_compared:,} bytes compared, {report.bytes_different:,} different"]
    if report.outputs_compared:
        lines.append(
            f"stored outputs: {report.outputs_compared:,} bytes compared, "
            f"{report.outputs_different:,} different"
        )
    if report.layers:
        counted = "" if report.cycles is None else f"{report.cycles:,} cycles counted, "
        use = report.mac_utilisation or 0.0
        lines.append(
            f"{counted}{report.cycles_predicted:,} predicted; MAC utilisation {100 * use:.1f} % "
            f"({report.mac_utilisation_source})"
        )
        if report.interval_predicted is not None:
            counted = "" if report.interval is None else f"{report.interval:,} counted, "
            lines.append(
                f"in a stream an item every {counted}{report.interval_predicted:,} predicted cycles"
            )
    else:
        lines.append("no FPGA stage in this bundle: only the stored outputs were compared")
    for line in lines:
        screen.print(line, style="green" if report.ok else "red")
