"""The MLPerf Tiny networks from the command line to bytes: compile, run, verify on the RTL."""

import json
from pathlib import Path

import golden_graph
import numpy as np
import pytest
from layerwise import compare_layers, shared
from typer.testing import CliRunner

import trivet
from trivet.cli import app
from trivet.compiler.load import load
from trivet.compiler.map import map_units
from trivet.compiler.normalise import normalise
from trivet.hdl.isa import Program
from trivet.sim.reference import ReferenceMachine

# network, file of real items (None: there is none to be had), most cycles, least utilisation
NETWORKS = [
    ("ad_autoencoder", None, 2_300, 0.85),
    ("ic_resnet8", "cifar10_500_uint8.npz", 101_500, 0.75),
    ("kws_dscnn", "kws_1000_int8.npz", 29_000, 0.70),
]


def items(name: str, real: str | None, count: int) -> np.ndarray:
    """``count`` real items, then as many seeded full-range ones, int8 [2 * count, ...]."""
    graph = map_units(normalise(load(shared(f"mlperf_tiny_{name}_int8.onnx"), {})))
    shape = graph.tensors[graph.inputs[0]].shape[1:]
    seeded = np.random.default_rng(11).integers(-128, 128, (count, *shape)).astype(np.int8)
    if real is None:
        return seeded
    taken = np.load(shared(real))["input"][:count]
    if taken.dtype == np.uint8:
        taken = (taken.astype(np.int16) - 128).astype(np.int8)
    return np.concatenate([taken.reshape(count, *shape), seeded])


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(params=NETWORKS, ids=[n[0] for n in NETWORKS])
def network(request: pytest.FixtureRequest, tmp_path: Path):
    name, *rest = request.param
    model = shared(f"mlperf_tiny_{name}_int8.onnx")
    bundle = tmp_path / f"{name}.trivet"
    call("compile", str(model), "--place", "fpga", "-o", str(bundle))
    return (name, bundle, *rest)


def test_stages_are_those_that_the_design_promises(network) -> None:
    _, bundle, *_ = network
    with trivet.Bundle.open(bundle) as opened:
        kinds = [stage.kind for stage in opened.manifest.stages]
        plan = json.loads(opened.read("plan.json"))
        elsewhere = [n for s in plan["stages"] if s["device"] == "cpu0" for n in s["nodes"]]
    assert kinds.count("program") == 1
    # On the CPU: transposes and reshapes of the input, the Softmax with its (De)QuantizeLinear.
    assert len(elsewhere) <= 6, elsewhere


def test_session_gives_goldens_bytes(network) -> None:
    """20 real and 20 seeded items through CPU and functional model, and through the fallback."""
    name, bundle, real, *_ = network
    x = items(name, real, 20)
    graph = map_units(normalise(load(shared(f"mlperf_tiny_{name}_int8.onnx"), {})))
    (source,), (target,) = graph.inputs, graph.outputs
    want = [golden_graph.run(graph, {source: x[k : k + 1]})[target] for k in range(len(x))]
    for attach in ("model", "cpu"):
        with trivet.Session(bundle, {"fpga0": attach}) as session:
            (found,) = session.run(None, {source: x})
        assert found.dtype == np.int8
        assert found.tobytes() == np.concatenate(want).tobytes(), attach


def test_hundred_items_layer_by_layer(network) -> None:
    """100 real items (seeded ones where there are none) on the functional model against golden."""
    name, bundle, real, *_ = network
    x = items(name, real, 100)[:100]
    graph = map_units(normalise(load(shared(f"mlperf_tiny_{name}_int8.onnx"), {})))
    (source,) = graph.inputs
    with trivet.Bundle.open(bundle) as opened:
        (stage,) = [s for s in opened.manifest.stages if s.kind == "program"]
        program = Program.from_bytes(opened.read(stage.member))
    machine = ReferenceMachine(program)
    compared = sum(
        compare_layers(machine, program, graph, {source: x[k : k + 1]}) for k in range(len(x))
    )
    assert compared == 100 * sum(note.output.nbytes for note in program.layers)


@pytest.mark.rtl
def test_rtl_is_verified_layer_by_layer(network, tmp_path: Path) -> None:
    """3 real and 3 seeded items: every layer boundary read back, cycles, utilisation."""
    name, bundle, real, most, least = network
    x = items(name, real, 3)
    with trivet.Session(bundle, {"fpga0": "cpu"}) as session:
        source = session.get_inputs()[0].name
    vectors = tmp_path / "vectors.npz"
    np.savez(vectors, **{source: x})
    report = json.loads(call("verify", str(bundle), "--rtl", "--vectors", str(vectors), "--json"))
    assert report["bytes_different"] == 0
    assert report["bytes_compared"] > 0
    assert report["cycles"] <= most
    assert report["mac_utilisation"] >= least
    # In a stream an item ends as fast as the engine computes.
    assert report["interval"] == report["interval_predicted"] <= report["cycles"]
    for layer in report["layers"]:
        assert layer["bytes_different"] == 0, layer["node"]
        assert layer["cycles"] == layer["cycles_predicted"], layer["node"]
