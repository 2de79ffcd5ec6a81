"""The way of a model: a named list of steps, each with typed results and something to read.

load -> normalise -> quantise -> map -> cost -> plan -> lower -> verify -> build -> bundle
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import onnx
from rich.console import Group, RenderableType
from rich.text import Text

from trivet import boards
from trivet.hdl.isa import Program
from trivet.runtime.bundle import (
    BundleWriter,
    EngineInfo,
    ModelInfo,
    PortInfo,
    TensorInfo,
)
from trivet.runtime.bundle import Rig as BundleRig
from trivet.runtime.bundle import RigDevice as BundleDevice

from . import cost_cpu, cost_fpga, show
from .bitstreams import Bitstream, add_bitstream, bitstream_note
from .contract import stage_model
from .errors import CompileError
from .load import Loaded, load
from .map import map_units
from .normalise import normalise
from .planner.build import Costs, make_plan
from .planner.plan import Plan, RuleResult, read_plan
from .planner.show import render
from .quantise import quantise
from .rejoin import rejoin
from .rig import Rig, default_rig
from .split import split_unit
from .stages import StageUnits, part_nhwc
from .trace import trace_nodes
from .tune.tune import tune
from .units import Array, Graph
from .verify import (
    LayerVerdict,
    StageModels,
    Vectors,
    Verifier,
    expected_outputs,
    read_arrays,
    real_vectors,
    seeded_vectors,
)

__all__ = ["STEPS", "Compiled", "InfeasiblePlan", "Options", "Step", "Work", "compile_model"]

_T = TypeVar("_T")
Progress = Callable[[str, str], None]  # step, what it is doing
NOT_ASKED = (
    "no bitstream: none was asked for; name the board with --board, or add it later with "
    "trivet build BUNDLE --board B"
)
REAL = 4  # items kept in the bundle: of the user's data, and seeded
SEEDED = 4


class InfeasiblePlan(CompileError):
    """No plan keeps all pins, limits and rules; ``plan`` lists the conflict."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        super().__init__(
            f"plan: infeasible: {'; '.join(plan.conflict)}; drop one of these pins, limits or rules"
        )


@dataclass(frozen=True)
class Options:
    """What the user chose. ``vectors`` and ``calibrate`` map input names to arrays of items.

    ``bitstream`` builds the boards of the plan's FPGA stages (minutes, then cached); False leaves
    them out, None too, with a note that says how to get them. ``plan`` is a plan.json to keep to;
    ``strict``: it must be as good as the best. ``tune``: the rig's FPGAs get engines made for the
    model.
    """

    rig: Rig | None = None
    shapes: Mapping[str, int] | None = None
    calibrate: Path | None = None
    vectors: Path | None = None
    stop_after: str | None = None
    bitstream: bool | None = None
    plan: Path | None = None
    strict: bool = False
    tune: bool = False


@dataclass(frozen=True)
class Work:
    """What the steps have made so far; each step fills its own part."""

    path: Path
    out: Path | None
    options: Options
    rig: Rig
    verifier: Verifier | None
    tell: Progress
    calibration: dict[str, Array] | None = None
    original: Loaded | None = None  # as in the user's file
    loaded: Loaded | None = None
    graph: Graph | None = None
    costs: Costs | None = None
    plan: Plan | None = None
    stages: tuple[StageUnits, ...] = ()
    programs: Mapping[int, Program] | None = None
    parts: Mapping[int, tuple[Program, ...]] | None = None  # of stages that are split
    models: tuple[StageModels, ...] = ()
    vectors: Vectors | None = None
    expected: tuple[dict[str, Array], ...] = ()
    verdicts: tuple[LayerVerdict, ...] = ()
    bitstreams: tuple[Bitstream, ...] = ()
    warnings: tuple[str, ...] = ()  # what was asked for and could not be done
    notes: tuple[str, ...] = ()

    @property
    def nhwc(self) -> frozenset[str]:
        return frozenset().union(*(s.nhwc for s in self.stages))


@dataclass(frozen=True)
class Step:
    """A step: what it does to the work, and what it has for a person to read."""

    name: str
    run: Callable[[Work], Work]
    show: Callable[[Work], RenderableType]


@dataclass(frozen=True)
class Compiled:
    """What compile_model returns: the work done, and the last step's result to print."""

    work: Work
    step: str
    shown: RenderableType


def compile_model(
    path: Path,
    out: Path | None,
    options: Options,
    *,
    verifier: Verifier | None = None,
    progress: Progress | None = None,
) -> Compiled:
    """Run :data:`STEPS` on a model, up to ``options.stop_after``.

    ``verifier`` runs programs in the verify step; without one the step says that it was left out.
    Raises CompileError; nothing is written unless everything went well.
    """
    names = [step.name for step in STEPS]
    last = options.stop_after or names[-1]
    if last not in names:
        raise CompileError(f"--stop-after is {last!r}, must be one of {', '.join(names)}")
    tell = progress or (lambda step, what: None)
    rig = options.rig or default_rig()
    work = Work(path, out, options, rig, verifier, tell)
    for step in STEPS:
        tell(step.name, "")
        work = step.run(work)
        if step.name == last:
            return Compiled(work, step.name, step.show(work))
    raise AssertionError("unreachable")


def _need(value: _T | None) -> _T:
    """A result of an earlier step; the order of STEPS guarantees that it is there."""
    assert value is not None
    return value


def _load(work: Work) -> Work:
    calibration = None
    if work.options.calibrate is not None:
        calibration = read_arrays(work.options.calibrate, "calibration data")
    loaded = load(work.path, dict(work.options.shapes or {}))
    return replace(work, original=loaded, loaded=loaded, calibration=calibration)


def _normalise(work: Work) -> Work:
    return replace(work, loaded=normalise(_need(work.loaded)))


def _quantise(work: Work) -> Work:
    return replace(work, loaded=quantise(_need(work.loaded), work.calibration))


def _map(work: Work) -> Work:
    loaded = _need(work.loaded)
    graph = trace_nodes(map_units(loaded), _need(work.original).model)
    return replace(work, graph=graph, notes=(*work.notes, *loaded.notes))


def _cost(work: Work) -> Work:
    if work.options.tune:
        work = _tuned(work)
    graph = _need(work.graph)
    cpu = {}
    fpga = {}
    for device in work.rig.devices:
        if device.engine is None:
            cpu[device.name] = cost_cpu.measure(
                graph, device.threads, progress=lambda what: work.tell("cost", what)
            )
        else:
            fpga[device.name] = cost_fpga.weigh(
                graph, device.engine, progress=lambda what: work.tell("cost", what)
            )
    return replace(work, costs=Costs(cpu, fpga))


def _tuned(work: Work) -> Work:
    """Every FPGA of the rig with the fastest engine for the model, whatever engine it had."""
    devices = []
    notes = list(work.notes)
    for device in work.rig.devices:
        if device.engine is not None and device.board is not None:
            work.tell("cost", f"tuning the engine of {device.name}")
            found = tune(_need(work.graph), boards.get(device.board))
            device = replace(device, engine=found.chosen.config)
            c = found.chosen.config
            notes.append(
                f"{device.name}: tuned engine {c.lanes} x {c.simd} with {c.requantisers} "
                f"requantisers, limit {found.limit.resource}"
            )
        devices.append(device)
    if not any(d.engine is not None and d.board is not None for d in devices):
        raise CompileError("--tune: the rig has no FPGA on a known board; name one with --board")
    return replace(work, rig=replace(work.rig, devices=tuple(devices)), notes=tuple(notes))


def _plan(work: Work) -> Work:
    options = work.options
    planned = make_plan(
        _need(work.graph),
        work.rig,
        _need(work.costs),
        edited=None if options.plan is None else read_plan(options.plan),
        strict=options.strict,
        progress=lambda what: work.tell("plan", what),
    )
    if not planned.plan.feasible:
        raise InfeasiblePlan(planned.plan)
    return replace(
        work,
        plan=planned.plan,
        stages=planned.stages,
        programs=planned.programs,
        parts=planned.parts,
    )


def _lower(work: Work) -> Work:
    """Stage models; the programs were lowered for the plan's exact costs already."""
    graph = _need(work.graph)
    models = []
    for stage in work.stages:
        work.tell("lower", f"stage {stage.index} of {len(work.stages)}")
        whole = _serialised(stage_model(graph, stage.units, nhwc=stage.nhwc))
        pieces = _pieces(work, stage)
        if pieces:
            parts = tuple(
                _tapped(piece, stage.units, part_nhwc(stage, k)) for k, piece in enumerate(pieces)
            )
            models.append(StageModels(whole, parts=parts))
        elif stage.kind == "fpga":
            models.append(_tapped(graph, stage.units, stage.nhwc))
        else:
            models.append(StageModels(whole))
    rules = _rejoined(stage_model(graph, [u.name for u in graph.units]), models)
    plan = _need(work.plan)
    plan = msgspec.structs.replace(plan, rules=[*plan.rules, *rules])
    return replace(work, models=tuple(models), plan=plan)


def _rejoined(whole: onnx.ModelProto, models: Sequence[StageModels]) -> list[RuleResult]:
    """The rules that the stages put together are the model; CompileError when they are not."""
    found = rejoin(whole, [onnx.load_model_from_string(m.onnx) for m in models])
    where = f"{found.nodes} nodes in {len(models)} stages"
    rules = [
        RuleResult("structure", True, found.structure == 0, float(found.structure), 0.0, where),
        RuleResult("parameters", True, found.parameters == 0, float(found.parameters), 0.0, where),
    ]
    for rule in rules:
        if not rule.ok:
            raise CompileError(
                f"rule {rule.name!r}: {rule.value:g} nodes of the stages put together differ from "
                "the model; report the model, it is a defect of the compiler"
            )
    return rules


def _pieces(work: Work, stage: StageUnits) -> tuple[Graph, ...]:
    """Graphs of the parts of a stage that is split."""
    count = len((work.parts or {}).get(stage.index, ()))
    return split_unit(_need(work.graph), stage.units[0], count) if count else ()


def _tapped(graph: Graph, units: Sequence[str], nhwc: frozenset[str]) -> StageModels:
    return StageModels(
        _serialised(stage_model(graph, units, nhwc=nhwc)),
        _serialised(stage_model(graph, units, nhwc=nhwc, taps=True)),
    )


def _serialised(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString(deterministic=True))


def _verify(work: Work) -> Work:
    graph = _need(work.graph)
    vectors = seeded_vectors(graph, SEEDED)
    given = work.calibration
    source = f"{work.options.calibrate}"
    if work.options.vectors is not None:
        given, source = read_arrays(work.options.vectors, "vectors"), f"{work.options.vectors}"
    if given is not None:
        real = real_vectors(graph, given, REAL, source)
        vectors = Vectors(
            (*real.feeds, *vectors.feeds), (*("real",) * len(real.feeds), *vectors.source)
        )
    work.tell("verify", f"{len(vectors.feeds)} vectors in contract form")
    values = expected_outputs(work.models, work.nhwc, vectors)
    work = replace(work, vectors=vectors, expected=tuple(values))
    if work.verifier is None:
        if work.programs or work.parts:
            note = "verify: left out, no machine to run programs on was given"
            return replace(work, notes=(*work.notes, note))
        return work
    verdicts: list[LayerVerdict] = []
    for stage in work.stages:
        models = work.models[stage.index]
        feeds = [{n: value[n] for n in stage.inputs} for value in values]
        programs = _programs(work, stage.index)
        pairs = zip(programs, models.parts or (models,), strict=True) if programs else ()
        for k, (program, model) in enumerate(pairs):
            work.tell("verify", f"stage {stage.index} on the reference machine")
            nhwc = part_nhwc(stage, k) if models.parts else stage.nhwc
            for verdict in work.verifier(program.to_bytes(), _need(model.taps), nhwc, feeds):
                if verdict.bytes_different:
                    raise CompileError(
                        f"verify: layer {verdict.node!r} of stage {stage.index}: "
                        f"{verdict.bytes_different} of {verdict.bytes_compared} bytes differ from "
                        "its contract form; report the model, it is a defect of the compiler"
                    )
                verdicts.append(verdict)
    return replace(work, verdicts=tuple(verdicts))


def _programs(work: Work, index: int) -> tuple[Program, ...]:
    """Programs of a stage: none on a CPU, one for each part where it is split."""
    whole = (work.programs or {}).get(index)
    return (whole,) if whole is not None else tuple((work.parts or {}).get(index, ()))


def _build(work: Work) -> Work:
    if not (work.programs or work.parts):
        empty = [n for n in _need(work.plan).notes if " is left empty: " in n]
        if not work.options.bitstream or not empty:
            return work
        line = (
            f"no bitstream: the plan has no FPGA stage ({'; '.join(empty)}); trivet explain tells "
            "what each layer lacks; choose a larger engine, another board or --no-bitstream"
        )
        return replace(work, warnings=(*work.warnings, line))
    if not work.options.bitstream:
        note = NOT_ASKED if work.options.bitstream is None else "no bitstream, as asked for"
        return replace(work, notes=(*work.notes, note))
    from .build.build import build  # Amaranth and more, for those who want it

    made: list[Bitstream] = []
    notes = list(work.notes)
    warnings = list(work.warnings)
    plan = _need(work.plan)
    wanted = {
        (work.rig.device(stage.device).board, program.config): None
        for stage in plan.stages
        for program in _programs(work, stage.index)
    }
    for name, config in wanted:
        if name is None:
            notes.append("no bitstream: the plan's FPGA is no known board")
            continue
        try:
            built = build(
                boards.get(name),
                config,
                tell=lambda phase, what: work.tell("build", f"{phase}: {what}"),
            )
        except CompileError as e:
            # The rest of the bundle is worth having: virtual board, model device and CPU run it.
            warnings.append(f"no bitstream: {e}")
            continue
        made.append(Bitstream(name, config.sha256, built))
        notes.append(bitstream_note(built))
    return replace(work, bitstreams=tuple(made), notes=tuple(notes), warnings=tuple(warnings))


def _bundle(work: Work) -> Work:
    if work.out is None:
        raise CompileError("no output given; name one with -o OUT.trivet, or use --stop-after")
    graph = _need(work.graph)
    plan = msgspec.structs.replace(_need(work.plan), seconds=None)
    writer = BundleWriter(
        trivet=version("trivet"),
        model=_model_info(graph),
        plan=plan.to_json(),
        rig=_bundle_rig(work.rig),
        tools=_tools(),
    )
    for name in dict.fromkeys(n for s in work.stages for n in (*s.inputs, *s.outputs)):
        writer.add_tensor(name, _tensor_info(graph, name, work.nhwc))
    for stage in work.stages:
        _add_stage(writer, work, stage)
    for bitstream in work.bitstreams:
        add_bitstream(writer, bitstream)
    writer.add_vectors(_vector_arrays(graph, work))
    writer.write(work.out)
    return work


def _add_stage(writer: BundleWriter, work: Work, stage: StageUnits) -> None:
    """A stage's models and programs; replicas and parts name the devices that run them."""
    planned = _need(work.plan).stages[stage.index]
    model = work.models[stage.index]
    members = planned.members if len(planned.members) > 1 else ()
    programs = _programs(work, stage.index)
    for program in programs:
        writer.add_engine(program.config_sha256, EngineInfo(dict(program.config.to_dict())))
    if not programs:
        writer.add_onnx_stage(stage.inputs, stage.outputs, model.onnx, members=members)
        return
    if not model.parts:
        (program,) = programs
        writer.add_program_stage(
            stage.inputs,
            stage.outputs,
            program.to_bytes(),
            engine=program.config_sha256,
            fallback=model.onnx,
            members=members,
        )
        writer.add(f"taps/{stage.index}.onnx", _need(model.taps))
        return
    for k, piece in enumerate(_pieces(work, stage)):
        (name,) = piece.outputs
        writer.add_tensor(name, _tensor_info(piece, name, part_nhwc(stage, k)))
    writer.add_split_stage(
        stage.inputs,
        stage.outputs,
        model.onnx,
        [
            (p.to_bytes(), p.config_sha256, m.onnx)
            for p, m in zip(programs, model.parts, strict=True)
        ],
        axis=_need(planned.shard_axis),
        members=members,
    )


def _model_info(graph: Graph) -> ModelInfo:
    def port(name: str) -> PortInfo:
        tensor = graph.tensors[name]
        shape: list[int | str] = list(tensor.shape)
        if graph.batch_axis is not None:
            shape[0] = graph.batch_axis
        return PortInfo(name, tensor.dtype, shape)

    return ModelInfo(
        graph.model_sha256,
        [port(n) for n in graph.inputs],
        [port(n) for n in graph.outputs],
        graph.name,
    )


def _bundle_rig(rig: Rig) -> BundleRig:
    return BundleRig(
        {
            d.name: BundleDevice(d.kind, d.attach, d.board, d.clock_hz, d.threads)
            for d in rig.devices
        }
    )


def _tensor_info(graph: Graph, name: str, nhwc: frozenset[str]) -> TensorInfo:
    tensor = graph.tensors[name]
    shape = list(tensor.shape)
    quant = tensor.quant
    scale = None if quant is None else float(quant.scale)
    zero = None if quant is None else int(quant.zero_point)
    if name in nhwc:
        return TensorInfo(tensor.dtype, [shape[0], *shape[2:], shape[1]], "NHWC", scale, zero)
    return TensorInfo(tensor.dtype, shape, "ONNX", scale, zero)


def _tools() -> dict[str, str]:
    found = {}
    for name in ("numpy", "onnx", "onnx-ir", "onnxruntime"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _vector_arrays(graph: Graph, work: Work) -> dict[str, Array]:
    """``input.NAME``, ``output.NAME``: ``[N, *item]`` in ONNX order; ``source``: texts [N]."""
    vectors = _need(work.vectors)
    arrays: dict[str, Array] = {"source": np.array(vectors.source)}
    for name in graph.inputs:
        arrays[f"input.{name}"] = np.stack([feed[name] for feed in vectors.feeds])
    for name in graph.outputs:
        rows = [value[name] for value in work.expected]
        if name in work.nhwc:
            rows = [row.transpose(0, 3, 1, 2) for row in rows]
        arrays[f"output.{name}"] = np.stack(rows)
    return arrays


def _show_plan(work: Work) -> RenderableType:
    return render(_need(work.plan))


def _show_build(work: Work) -> RenderableType:
    if not (work.programs or work.parts):
        return Text("nothing to build")
    return Text("\n".join((*work.warnings, *work.notes[-max(len(work.bitstreams), 1) :])))


def _show_bundle(work: Work) -> RenderableType:
    lines = [Text(f"note: {note}", style="dim") for note in work.notes]
    return Group(_show_plan(work), show.verdicts(work.verdicts), *lines)


STEPS: tuple[Step, ...] = (
    Step("load", _load, lambda w: show.model(_need(w.loaded))),
    Step("normalise", _normalise, lambda w: show.model(_need(w.loaded))),
    Step("quantise", _quantise, lambda w: show.model(_need(w.loaded))),
    Step("map", _map, lambda w: show.units(_need(w.graph), w.rig)),
    Step("cost", _cost, lambda w: show.costs(_need(w.graph), w.rig, _need(w.costs))),
    Step("plan", _plan, _show_plan),
    Step("lower", _lower, lambda w: show.programs(w.programs or {})),
    Step("verify", _verify, lambda w: show.verdicts(w.verdicts)),
    Step("build", _build, _show_build),
    Step("bundle", _bundle, _show_bundle),
)
