"""The commands that need the compiler: compile, plan, explain."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trivet._cli_common import DeviceOptions, Fault, check_target, console, phases, print_json

if TYPE_CHECKING:
    from trivet.compiler.driver import Compiled, Options
    from trivet.compiler.planner.plan import Plan

__all__ = ["compile_command", "explain_command", "plan_command"]


def _compile(
    model: Path, out: Path | None, options: Options, *, verify: bool, as_json: bool
) -> Compiled:
    from trivet.compiler.driver import InfeasiblePlan, compile_model

    verifier = None
    if verify:
        from trivet.sim.verify import verify_program

        verifier = verify_program
    try:
        with phases(log=False) as tell:
            return compile_model(model, out, options, verifier=verifier, progress=tell)
    except InfeasiblePlan as e:
        _print_plan(e.plan, as_json)
        raise


def _print_plan(plan: Plan, as_json: bool) -> None:
    from trivet.compiler.planner.show import render

    if as_json:
        sys.stdout.write(plan.to_json().decode())
    else:
        console().print(render(plan))


def compile_command(
    model: Path,
    out: Path | None,
    devices: DeviceOptions,
    *,
    calibrate: Path | None,
    shapes: Mapping[str, int],
    vectors: Path | None,
    bitstream: bool | None,
    stop_after: str | None,
    plan: Path | None,
    strict: bool,
    tune: bool,
    as_json: bool,
) -> None:
    from trivet.compiler.driver import Options

    if out is None and stop_after in (None, "bundle"):
        raise Fault("no output given; name one with -o OUT.trivet, or use --stop-after STEP")
    if out is not None:
        check_target(out)
    if strict and plan is None:
        raise Fault("--strict is about a plan of your own; give it with --plan FILE.json")
    options = Options(
        devices.resolve(), shapes, calibrate, vectors, stop_after, bitstream, plan, strict, tune
    )
    done = _compile(model, out, options, verify=True, as_json=as_json)
    for warning in done.work.warnings:
        print(f"trivet: {warning}", file=sys.stderr)
    if as_json:
        print_json(_summary(done))
        return
    screen = console()
    screen.print(done.shown)
    if done.step == "bundle":
        assert out is not None
        screen.print(f"wrote {out} ({out.stat().st_size:,} bytes)", markup=False, soft_wrap=True)


def _summary(done: Compiled) -> dict[str, Any]:
    work = done.work
    from trivet.compiler.results import result

    return {
        "step": done.step,
        "result": result(done.step, work),
        "out": None if done.step != "bundle" else str(work.out),
        "plan": None if work.plan is None else msgspec.to_builtins(work.plan),
        "bytes_compared": sum(v.bytes_compared for v in work.verdicts),
        "bytes_different": sum(v.bytes_different for v in work.verdicts),
        "bitstreams": {b.board: msgspec.to_builtins(b.built.report) for b in work.bitstreams},
        "warnings": list(work.warnings),
        "notes": list(work.notes),
    }


def plan_command(
    source: Path,
    devices: DeviceOptions,
    *,
    calibrate: Path | None,
    shapes: Mapping[str, int],
    replicas: int | None,
    as_json: bool,
) -> None:
    from trivet.compiler.driver import Options
    from trivet.compiler.planner.plan import read_plan

    if source.suffix == ".json":
        _plan_workload(source, devices, replicas, as_json)
        return
    if zipfile.is_zipfile(source):
        from trivet.runtime.bundle import Bundle

        given = {
            "--board": devices.board,
            "--rig": devices.rig,
            "--place": devices.place,
            "--pin": devices.pins,
            "--calibrate": calibrate,
            "--shape": shapes,
            "--replicas": replicas,
        }
        for option, value in given.items():
            if value:
                raise Fault(
                    f"{source}: a bundle holds its plan, {option} does not change it; give the "
                    "model to plan anew"
                )
        with Bundle.open(source) as bundle:
            _print_plan(read_plan(source, bundle.read("plan.json")), as_json)
        return
    rig = devices.resolve().with_options(replicas=replicas)
    options = Options(rig, shapes, calibrate, None, "plan")
    done = _compile(source, None, options, verify=False, as_json=as_json)
    assert done.work.plan is not None
    if as_json:
        sys.stdout.write(done.work.plan.to_json().decode())
    else:
        console().print(done.shown)


def _plan_workload(
    source: Path, devices: DeviceOptions, replicas: int | None, as_json: bool
) -> None:
    from trivet.compiler.errors import CompileError
    from trivet.compiler.planner.workload import plan_workload

    if devices.board or devices.rig or devices.place or devices.pins:
        raise Fault(
            f"{source}: a workload file names its devices itself; leave out --board, --rig, "
            "--place and --pin"
        )
    with phases(log=False) as tell:
        tell("plan", "proving")
        plan = plan_workload(source, most_replicas=replicas or 1)
    _print_plan(plan, as_json)
    if not plan.feasible:
        raise CompileError(f"plan: infeasible: {'; '.join(plan.conflict)}; loosen one of these")


def explain_command(
    model: Path,
    devices: DeviceOptions,
    *,
    calibrate: Path | None,
    shapes: Mapping[str, int],
    as_json: bool,
) -> None:
    from trivet.compiler.driver import Options
    from trivet.compiler.explain import explain

    options = Options(devices.resolve(), shapes, calibrate, None, "map")
    done = _compile(model, None, options, verify=False, as_json=as_json)
    if as_json:
        assert done.work.graph is not None
        print_json([r.to_dict() for r in explain(done.work.graph, done.work.rig)])
    else:
        console().print(done.shown)
