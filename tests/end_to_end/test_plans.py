"""Plans of every kind run through the runtime, and give the bytes of the arithmetic contract."""

from pathlib import Path
from typing import Any

import golden_graph
import msgspec
import numpy as np
import pytest
from qdq import Builder

import trivet
from trivet.compiler.driver import Compiled, Options, compile_model
from trivet.compiler.errors import CompileError
from trivet.compiler.load import load
from trivet.compiler.map import map_units
from trivet.compiler.normalise import normalise
from trivet.compiler.planner.plan import Plan
from trivet.compiler.rig import read_rig
from trivet.sim.verify import verify_program

RIG = """
version = 1
[devices.cpu0]
kind = "cpu"
power_w = { busy = 15.0, idle = 4.0, source = "given" }
"""
BOARD = """
[devices.NAME]
kind = "fpga"
board = "ulx3s-85f"
attach = "model"
power_w = { busy = 2.0, idle = 1.0, source = "given" }
[[links]]
ends = ["cpu0", "NAME"]
bandwidth_bytes_per_second = 1e9
latency_seconds = 1e-7
"""


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.getbasetemp() / "trivet-cache"
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(folder))


def model(path: Path, layers: int) -> Path:
    """Convolutions of 12 channels on 14 x 14 pixels, int8."""
    rng = np.random.default_rng(5)
    b = Builder()
    x = b.input("x", [1, 12, 14, 14])
    for k in range(layers):
        weights = rng.integers(-60, 61, (13 if k == layers - 1 else 12, 12, 3, 3)).astype(np.int8)
        scales = rng.uniform(0.004, 0.006, len(weights)).astype(np.float32)
        bias = rng.integers(-900, 900, len(weights)).astype(np.int32)
        y = b.op("Conv", b.dq(x, 0.05, 3), b.dq(b.constant(weights), scales, axis=0),
                 b.dq(b.constant(bias), np.float32(0.05) * scales, dtype=np.int32, axis=0),
                 name=f"conv{k}", kernel_shape=[3, 3], pads=[1, 1, 1, 1])  # fmt: skip
        x = b.q(y, 0.05, 3, out="y" if k == layers - 1 else None)
    return b.save(path, "y")


def compiled(tmp_path: Path, layers: int, boards: int, planner: str, **options: Any) -> Compiled:
    rig = tmp_path / "rig.toml"
    more = "".join(BOARD.replace("NAME", f"fpga{k}") for k in range(boards))
    rig.write_text(f"{RIG}{more}\n[planner]\n{planner}\n")
    path = model(tmp_path / "m.onnx", layers)
    out = tmp_path / "m.trivet"
    chosen = Options(read_rig(rig), **options)
    done = compile_model(path, out, chosen, verifier=verify_program)
    assert done.work.plan is not None
    assert done.work.plan.status == "optimal"
    return done


def same_bytes(tmp_path: Path, count: int = 9) -> None:
    """The bundle's outputs are those of the golden functions, in order and by futures."""
    graph = map_units(normalise(load(tmp_path / "m.onnx", {})))
    items = np.random.default_rng(2).integers(-128, 128, (count, 1, 12, 14, 14)).astype(np.int8)
    expected = [golden_graph.run(graph, {"x": item})["y"] for item in items]
    with trivet.Session(tmp_path / "m.trivet") as session:
        found = [y for (y,) in session.stream({"x": item} for item in items)]
        futures = [session.submit({"x": item}) for item in items]
        later = [f.result()[0] for f in futures]
    for right, have, other in zip(expected, found, later, strict=True):
        np.testing.assert_array_equal(have, right)
        np.testing.assert_array_equal(other, right)


def test_two_boards_take_turns_as_replicas(tmp_path: Path) -> None:
    plan = compiled(tmp_path, 1, 2, 'place = "fpga"\nreplicas = 2').work.plan
    assert plan is not None
    (stage,) = [s for s in plan.stages if s.device.startswith("fpga")]
    assert (stage.replicas, stage.shards, stage.members) == (2, 1, ["fpga0", "fpga1"])
    assert plan.bottleneck == pytest.approx((stage.compute + stage.communication) / 2)
    same_bytes(tmp_path)


def test_a_layer_is_split_by_its_channels(tmp_path: Path) -> None:
    done = compiled(tmp_path, 1, 2, 'place = "fpga"\nobjective = "latency"\nshards = 2')
    plan = done.work.plan
    assert plan is not None
    (stage,) = [s for s in plan.stages if s.device.startswith("fpga")]
    assert (stage.replicas, stage.shards, stage.shard_axis) == (1, 2, 3)
    assert len(done.work.parts[stage.index]) == 2
    assert sum(v.bytes_compared for v in done.work.verdicts) > 0
    same_bytes(tmp_path)


def test_parts_and_copies_of_them(tmp_path: Path) -> None:
    planner = 'place = "fpga"\nobjective = "batch"\nbatch = 2\nshards = 2\nreplicas = 2'
    plan = compiled(tmp_path, 1, 4, planner).work.plan
    assert plan is not None
    (stage,) = [s for s in plan.stages if s.device.startswith("fpga")]
    assert (stage.replicas, stage.shards, len(stage.members)) == (2, 2, 4)
    same_bytes(tmp_path)


def test_the_plan_of_least_energy(tmp_path: Path) -> None:
    plan = compiled(tmp_path, 3, 2, 'objective = "energy"').work.plan
    assert plan is not None
    # A board computes at 2 W what the CPU takes 15 W for; a second one only adds transfers.
    assert any(s.device.startswith("fpga") for s in plan.stages)
    same_bytes(tmp_path)


def test_stages_on_boards_where_they_were_asked_for(tmp_path: Path) -> None:
    plan = compiled(tmp_path, 3, 1, 'place = "fpga"').work.plan
    assert plan is not None
    assert {n for s in plan.stages if s.device == "fpga0" for n in s.nodes} >= {"conv0", "conv2"}
    same_bytes(tmp_path)


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        compiled(tmp_path, 2, 2, 'place = "fpga"\nreplicas = 2\nshards = 2')
        found.append((tmp_path / "m.trivet").read_bytes())
    assert found[0] == found[1]


def edited(plan: Plan, device: str) -> Plan:
    """The plan with the last unit cut out of the last stage and given to a device."""
    last = plan.stages[-1]
    kept = msgspec.structs.replace(last, units=last.units[:-1])
    new = msgspec.structs.replace(
        last, index=last.index + 1, device=device, members=[device], units=last.units[-1:]
    )
    return msgspec.structs.replace(plan, stages=[*plan.stages[:-1], kept, new])


def test_an_edited_plan_is_checked_kept_and_its_loss_told(tmp_path: Path) -> None:
    planner = 'place = "auto"'
    # A board that is slower than the host: the best plan leaves it empty.
    slow = BOARD.replace("1e-7", "1e-2")
    rig = tmp_path / "rig.toml"
    rig.write_text(f"{RIG}{slow.replace('NAME', 'fpga0')}\n[planner]\n{planner}\n")
    path = model(tmp_path / "m.onnx", 3)
    out = tmp_path / "m.trivet"
    best = compile_model(path, None, Options(read_rig(rig), stop_after="plan")).work.plan
    assert best is not None
    assert {s.device for s in best.stages} == {"cpu0"}
    file = tmp_path / "plan.json"
    file.write_bytes(edited(best, "fpga0").to_json())
    done = compile_model(path, out, Options(read_rig(rig), plan=file), verifier=verify_program)
    plan = done.work.plan
    assert plan is not None
    assert [s.device for s in plan.stages] == ["cpu0", "fpga0"]
    assert plan.auto is not None
    assert plan.auto.loss > 0
    assert plan.lower_bound is not None
    assert plan.bottleneck is not None
    assert plan.lower_bound <= plan.auto.bottleneck < plan.bottleneck
    assert {r.name for r in plan.rules if r.hard} >= {"order", "composition", "structure",
                                                      "parameters"}  # fmt: skip
    same_bytes(tmp_path)
    with pytest.raises(CompileError, match=r"times as long as the best one, and --strict"):
        compile_model(path, out, Options(read_rig(rig), plan=file, strict=True))
    file.write_bytes(best.to_json())
    compile_model(path, out, Options(read_rig(rig), plan=file, strict=True))


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('"conv1"', '"conv9"', "stage 0 holds node 'conv9', which the model does not have"),
        ('"conv1",', "", "no stage holds 'conv1'"),
        ('"device": "cpu0"', '"device": "fpga7"', "device 'fpga7' is not there"),
        ('"replicas": 1', '"replicas": 2', "with 2 replicas of 1 shards names the members cpu0"),
        ('"model_sha256": "', '"model_sha256": "0', "it was made for the model 0"),
    ],
)
def test_a_wrong_edit_is_one_line(tmp_path: Path, old: str, new: str, text: str) -> None:
    rig = tmp_path / "rig.toml"
    rig.write_text(RIG)
    path = model(tmp_path / "m.onnx", 3)
    best = compile_model(path, None, Options(read_rig(rig), stop_after="plan")).work.plan
    assert best is not None
    one = msgspec.structs.replace(best.stages[0], nodes=[], costs={})
    body = msgspec.structs.replace(best, stages=[one]).to_json().decode()
    assert old in body
    file = tmp_path / "plan.json"
    file.write_text(body.replace(old, new, 1))
    with pytest.raises(CompileError, match=text):
        compile_model(path, None, Options(read_rig(rig), stop_after="plan", plan=file))
