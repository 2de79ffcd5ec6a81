"""The build of a board: Amaranth -> RTLIL -> yosys -> netlist pass -> nextpnr -> packer, cached.

Equal inputs (configuration, board, RTL, recipe, tool versions, seeds) give equal bits, so they name
the build: ``build_sha256`` goes into the bitstream (HELLO tells it), and with the number of seeds
it names the folder in the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from trivet.boards.board import Board, Toolchain
from trivet.compiler.errors import CompileError
from trivet.hdl.config import EngineConfig

from . import cache, export
from .design import Design, design
from .floorplan import floorplan
from .netlist import absorb
from .predict import predict
from .process import Finished, TimeLimit, run_tool
from .recipe import SUFFIX, Recipe, recipe
from .replicate import replicate
from .report import CriticalPath, Phase, Report, Resource, Seed, read_nextpnr
from .tools import Tool, prepare, toolset

__all__ = ["LIMIT_S", "Built", "build", "build_inputs"]

Tell = Callable[[str, str], None]  # phase, what it is doing
LIMIT_S = 20 * 60.0
WAY_OUT = "choose a smaller engine, another board or --no-bitstream"
# nextpnr's and yosys' names of what a board's budget counts. A narrow multiplier of Gowin's counts
# like a wide one, though two of them share its place.
_CELLS = {
    "ecp5": {"lut": "TRELLIS_COMB", "ff": "TRELLIS_FF", "dsp": "MULT18X18D", "bram": "DP16KD"},
    "ice40": {"lut": "ICESTORM_LC", "dsp": "ICESTORM_DSP", "bram": "ICESTORM_RAM",
              "spram": "ICESTORM_SPRAM"},
    "gowin": {"lut": "LUT4", "ff": "DFF", "dsp": "MULT18X18 MULT9X9", "bram": "BSRAM"},
    "xilinx": {},
}  # fmt: skip
_SYNTHESISED = {
    "ecp5": {"dsp": "MULT18X18D", "bram": "DP16KD", "ff": "TRELLIS_FF", "lut": "LUT4"},
    "ice40": {"dsp": "SB_MAC16", "bram": "SB_RAM40_4K", "lut": "SB_LUT4"},
    "gowin": {"dsp": "MULT18X18 MULT9X9"},
    "xilinx": {
        "dsp": "DSP48E1 DSP48E2",
        # A cell is named as often as it counts: 36 kbit are two blocks of 18, a RAM64M four LUTs.
        "bram": "RAMB36E1 RAMB36E1 RAMB36E2 RAMB36E2 RAMB18E1 RAMB18E2",
        "lut": "LUT1 LUT2 LUT3 LUT4 LUT5 LUT6 SRL16E" + 4 * " RAM32M RAM64M",
        "ff": "FDRE FDSE FDCE FDPE",
    },
}
_WORDS = {"lut": "LUTs", "ff": "flip-flops", "dsp": "multipliers", "bram": "block RAMs"}


@dataclass(frozen=True)
class Built:
    """A bitstream (or an export archive, where there is no open place and route) and its report."""

    board: str
    bitstream: Path
    build_sha256: str
    report: Report
    folder: Path
    cached: bool
    is_export: bool


@dataclass(frozen=True)
class Inputs:
    """All that a build is made from. ``parts`` are hashed into ``build_sha256``."""

    board: Board
    config: EngineConfig
    toolchain: Toolchain
    tools: dict[str, Tool]
    design: Design
    recipe: Recipe
    parts: dict[str, Any]

    @property
    def build_sha256(self) -> str:
        return _sha256(json.dumps(self.parts, sort_keys=True))


def build_inputs(board: Board, config: EngineConfig) -> Inputs:
    """Everything that goes into a build; CompileError when the board or a tool is not there."""
    toolchain = board.toolchain
    if toolchain is None:
        raise CompileError(
            f"build: board {board.name!r} has no tool chain; choose another board or --no-bitstream"
        )
    tools = toolset(toolchain.family)
    made = design(board, config, bytes(32))
    commands = recipe(made, toolchain)
    parts = {
        "config": config.to_dict(),
        "board": {"name": board.name, "clock_hz": made.clock_hz, **asdict(toolchain)},
        "rtl": _sha256(made.rtlil),
        "constraints": _sha256("\n".join(made.constraints)),
        "recipe": asdict(commands),
        "netlist": _sha256(
            "".join(
                files("trivet.compiler.build").joinpath(name).read_text("utf-8")
                for name in ("netlist.py", "replicate.py", "floorplan.py")
            )
        ),
        "tools": {name: tool.text for name, tool in tools.items()},
    }
    return Inputs(board, config, toolchain, tools, made, commands, parts)


def build(
    board: Board,
    config: EngineConfig,
    *,
    seeds: int = 1,
    limit_s: float = LIMIT_S,
    keep: bool = False,
    tell: Tell | None = None,
) -> Built:
    """The bitstream of an engine on a board, from the cache when it was built before.

    Parameters
    ----------
    board, config
        What to build; ``board.toolchain`` must be set.
    seeds
        Try up to so many placements, stop at the first that reaches the clock, keep the best.
    limit_s
        Seconds for each run of a tool.
    keep
        Keep the netlists in the folder too (tens of megabytes).
    tell
        Told the phase and what it is doing; from another thread as well.

    Raises
    ------
    CompileError
        A tool is missing, failed or took too long; the engine does not fit; the clock is missed.
        The folder with all logs is named where there is one.
    """
    if seeds < 1:
        raise CompileError(f"build: --seeds is {seeds}, must be at least 1")
    say = tell or (lambda phase, what: None)
    say("write", "RTL")
    inputs = build_inputs(board, config)
    key = _sha256(f"{inputs.build_sha256} {seeds}")
    name = f"{board.name}-{config.lanes}x{config.simd}-{key[:16]}"
    entry = cache.load(name, keep=keep)
    cached = entry is not None
    if entry is None:
        with cache.locked(name, lambda what: say("wait", what)):
            entry = cache.load(name, keep=keep)  # another builder was faster
            if entry is None:
                with cache.work_folder(name) as folder:
                    run = _Run(inputs, folder, cache.failed_folder(name), limit_s, say)
                    report, bitstream = run.build(seeds)
                    entry = cache.save(name, folder, report, bitstream, keep=keep)
    report = entry.report
    if inputs.recipe.place and not report.met:
        assert report.fmax_hz is not None
        raise CompileError(
            f"build: {board.name}: the best of {len(report.seeds)} seeds runs at "
            f"{report.fmax_hz / 1e6:.1f} MHz, the clock is {report.clock_target_hz / 1e6:g} MHz; "
            f"try more with trivet build --seeds N, {WAY_OUT} (report in {entry.folder})"
        )
    is_export = not inputs.recipe.place
    return Built(
        board.name, entry.bitstream, inputs.build_sha256, report, entry.folder, cached, is_export
    )


class _Run:
    """One build in its folder."""

    def __init__(
        self, inputs: Inputs, folder: Path, later: Path, limit_s: float, tell: Tell
    ) -> None:
        self.inputs = inputs
        self.folder = folder
        self.later = later  # where the folder will be if the build fails
        self.limit_s = limit_s
        self.tell = tell
        self.phases: dict[str, Phase] = {}

    def build(self, seeds: int) -> tuple[Report, str]:
        """The report, and the bitstream's name in the folder."""
        inputs = self.inputs
        self.tell("write", "RTL with its build hash")
        began = time.monotonic()
        final = design(inputs.board, inputs.config, bytes.fromhex(inputs.build_sha256))
        if final.constraints != inputs.design.constraints or final.name != inputs.design.name:
            raise CompileError("build: hdl/ was changed while the board was built; run it again")
        (self.folder / "top.il").write_text(final.rtlil, encoding="utf-8")
        (self.folder / final.constraints[0]).write_text(final.constraints[1], encoding="utf-8")
        (self.folder / "build.ys").write_text(inputs.recipe.synthesis, encoding="utf-8")
        self._phase("RTL", time.monotonic() - began, None)
        for tool in inputs.tools.values():
            prepare(tool, lambda what: self.tell("prepare", what))

        self.tell("yosys", "synthesis")
        done = self._call("yosys", "yosys", ("-q", "-l", "yosys.log", "build.ys"))
        cells = _cells(self._read("stat.json"))
        self._check_fit(cells)
        if not inputs.recipe.place:
            made = export.archive(
                self.folder, inputs.board, inputs.toolchain, inputs.design, SUFFIX["xilinx"]
            )
            return self._report(made, cells, {}, None, [], None, None), made

        moved: dict[str, Any] = {}
        if inputs.recipe.absorb:
            self.tell("netlist", "registers into block RAMs and multipliers")
            began = time.monotonic()
            netlist = self._read("synth.json")
            found = absorb(netlist, inputs.design.name)
            copied = replicate(netlist, inputs.design.name)
            is_85f = any(
                a in ("--85k", "--um5g-85k", "--um-85k") for a in inputs.toolchain.arguments
            )
            moved = {
                **vars(found),
                "left_alone": dict(found.left_alone),
                "flip_flops_copied": copied.flip_flops,
                "copies": copied.copies,
                "blocks_fixed": floorplan(netlist, inputs.design.name) if is_85f else 0,
            }
            (self.folder / "top.json").write_text(json.dumps(netlist), encoding="utf-8")
            del netlist
            self._phase("netlist", time.monotonic() - began, None)
        else:
            os.replace(self.folder / "synth.json", self.folder / "top.json")

        tried: list[Seed] = []
        best: tuple[float, int, CriticalPath | None, dict[str, tuple[int, int]]] | None = None
        failure: CompileError | None = None
        for seed in range(1, seeds + 1):
            began = time.monotonic()
            try:
                fmax, path, use = self._place(seed, seeds)
            except CompileError as e:
                failure = e
                tried.append(Seed(seed, None, round(time.monotonic() - began, 1)))
                continue
            tried.append(Seed(seed, fmax, round(time.monotonic() - began, 1)))
            if best is None or fmax > best[0]:
                best = (fmax, seed, path, use)
            if fmax >= inputs.design.clock_hz:
                break
        if best is None:
            assert failure is not None
            raise failure
        fmax, seed, path, use = best
        self.tell("pack", f"seed {seed}")
        pack = self._tool(2)
        done = self._call("pack", pack, _for_seed(inputs.recipe.pack, seed))
        made = inputs.recipe.bitstream.format(seed=seed)
        if not (self.folder / made).exists():
            raise self._failure(pack, done)
        final_name = f"top.{SUFFIX[inputs.recipe.family]}"
        os.replace(self.folder / made, self.folder / final_name)
        return self._report(final_name, use, moved, seed, tried, fmax, path), final_name

    def _place(
        self, seed: int, seeds: int
    ) -> tuple[float, CriticalPath | None, dict[str, tuple[int, int]]]:
        arguments = (*_for_seed(self.inputs.recipe.place, seed), "--log", f"nextpnr-{seed}.log")
        of = f"seed {seed} of {seeds}: " if seeds > 1 else ""
        self.tell("nextpnr", f"{of}reading the netlist")

        def hear(line: str) -> None:
            text = _progress(line)
            if text:
                self.tell("nextpnr", of + text)

        done = self._call("nextpnr", self._tool(1), arguments, hear)
        try:
            found = self._read(f"report-{seed}.json")
        except FileNotFoundError:
            raise self._failure(self._tool(1), done) from None
        fmax, path, use = read_nextpnr(found, self.inputs.design.clock_net)
        if fmax is None:
            raise CompileError(
                f"build: {self.inputs.board.name}: nextpnr reports no clock; this is a defect of "
                f"the board's design, report it (logs in {self.later})"
            )
        return fmax, path, use

    def _tool(self, index: int) -> str:
        return list(self.inputs.tools)[index]

    def _call(
        self,
        phase: str,
        tool: str,
        arguments: tuple[str, ...],
        hear: Callable[[str], None] | None = None,
    ) -> Finished:
        command = (*self.inputs.tools[tool].argv, *arguments)
        try:
            done = run_tool(
                command,
                self.folder,
                limit_s=self.limit_s,
                on_line=hear,
                environment={"TMPDIR": str(self.folder)},
            )
        except TimeLimit as e:
            raise CompileError(
                f"build: {self.inputs.board.name}: {tool} was still running after "
                f"{e.seconds / 60:g} minutes; {WAY_OUT}, or give it longer with --time-limit "
                f"(logs in {self.later})"
            ) from e
        except OSError as e:
            raise CompileError(
                f"build: cannot start {tool} ({e.strerror}); check the tools with trivet doctor"
            ) from e
        self._phase(phase, done.seconds, done.memory_bytes)
        if done.code != 0:
            raise self._failure(tool, done)
        return done

    def _failure(self, tool: str, done: Finished) -> CompileError:
        board = self.inputs.board.name
        complaint = next(
            (x for x in done.lines if re.match(r"(ERROR|Error|error)\b", x)),
            done.lines[-1] if done.lines else "no message",
        )
        complaint = re.sub(r"^(ERROR|Error|error):?\s*", "", complaint.strip()).rstrip(".")
        return CompileError(
            f"build: {board}: {tool} failed with exit code {done.code}: {complaint}; {WAY_OUT} "
            f"(logs in {self.later})"
        )

    def _phase(self, name: str, seconds: float, memory: int | None) -> None:
        before = self.phases.get(name, Phase(name, 0.0, None))
        peak = max((m for m in (before.memory_bytes, memory) if m is not None), default=None)
        self.phases[name] = Phase(name, round(before.seconds + seconds, 1), peak)

    def _read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def _check_fit(self, cells: Counter[str]) -> None:
        """Refuse before an hour of placing what can never be placed."""
        budget = self.inputs.board.resources.budget
        for resource, cell in _SYNTHESISED[self.inputs.recipe.family].items():
            used = sum(cells[name] for name in cell.split())
            if resource in budget and used > budget[resource]:
                word = _WORDS[resource]
                raise CompileError(
                    f"build: {self.inputs.board.name}: the engine needs {used:,} {word}, the "
                    f"board has {budget[resource]:,}; {WAY_OUT}"
                )

    def _report(
        self,
        bitstream: str,
        use: Any,
        moved: dict[str, Any],
        seed: int | None,
        seeds: list[Seed],
        fmax: float | None,
        path: CriticalPath | None,
    ) -> Report:
        inputs = self.inputs
        predicted = predict(inputs.board, inputs.config)
        budget = inputs.board.resources.budget
        resources = {}
        table = _CELLS[inputs.recipe.family] if seed else _SYNTHESISED[inputs.recipe.family]
        for resource, cells in table.items():
            there = [use[cell] for cell in cells.split() if cell in use]
            if not there:
                continue
            used, available = (sum(n for n, _ in there), there[0][1]) if seed else (sum(there), 0)
            guess = predicted.get(resource)
            error = None if guess is None or not used else round(guess / used - 1, 4)
            resources[resource] = Resource(used, budget.get(resource, available), guess, error)
        data = (self.folder / bitstream).read_bytes()
        parts = inputs.parts
        return Report(
            board=inputs.board.name,
            engine=dict(inputs.config.to_dict()),
            engine_sha256=inputs.config.sha256,
            build_sha256=inputs.build_sha256,
            inputs={
                "config": inputs.config.sha256,
                "rtl": parts["rtl"],
                "constraints": parts["constraints"],
                "recipe": _sha256(json.dumps([parts["recipe"], parts["netlist"], parts["board"]])),
            },
            tools=parts["tools"],
            seed=seed,
            seeds=seeds,
            clock_target_hz=inputs.design.clock_hz,
            fmax_hz=fmax,
            critical_path=path,
            resources=resources,
            absorbed=moved,
            phases=list(self.phases.values()),
            bitstream_sha256=hashlib.sha256(data).hexdigest(),
            bitstream_bytes=len(data),
        )


def _cells(stat: Any) -> Counter[str]:
    found = stat.get("design", {}).get("num_cells_by_type", {})
    return Counter({name: int(n) for name, n in found.items()})


def _for_seed(arguments: tuple[str, ...], seed: int) -> tuple[str, ...]:
    return tuple(a.replace("{seed}", str(seed)) for a in arguments)


_ROUTER = re.compile(r"^\s*(\d+) \|\s*\d+\s+\d+ \|\s*\d+\s+\d+ \|\s*(\d+)\|")
_TELLING = re.compile(r"(Packing|Promoting|Creating|at |Running|Routing|Max frequency)")


def _progress(line: str) -> str | None:
    """nextpnr's line as a short text; None for what says nothing while it runs."""
    text = re.sub(r"^Info:\s?", "", line)
    routing = _ROUTER.match(text)
    if routing:
        return f"routing, {int(routing[2]):,} connections left"
    text = " ".join(text.split())
    return text if _TELLING.match(text) else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
