"""Stage models in onnxruntime give the bytes of golden, unit by unit and whole models."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden_graph
import numpy as np
import onnx
import onnxruntime
import pytest
import random_graphs
from random_graphs import ALL_KINDS, KINDS, Kind, random_graph, random_inputs, single

from trivet.compiler import contract
from trivet.compiler.contract import edges, stage_model
from trivet.compiler.errors import CompileError
from trivet.compiler.units import ConvSpec, Graph, Quant, Tensor, Unit

SHARED = Path(os.environ.get("TRIVET_SHARED", Path(__file__).parents[2] / "../shared"))
LEVELS = onnxruntime.GraphOptimizationLevel


def session(model: onnx.ModelProto, level: str = contract.SESSION_LEVEL) -> Any:
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(LEVELS, level)
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def names(graph: Graph) -> list[str]:
    return [unit.name for unit in graph.units]


def run(model: onnx.ModelProto, feeds: dict[str, Any], **options: Any) -> dict[str, Any]:
    opened = session(model, **options)
    outputs = [value.name for value in opened.get_outputs()]
    return dict(zip(outputs, opened.run(outputs, feeds), strict=True))


def assert_equals_golden(graph: Graph, feeds: list[dict[str, Any]], level: str) -> None:
    """Every tensor between units, and every output."""
    opened = session(stage_model(graph, names(graph), taps=True), level)
    outputs = [value.name for value in opened.get_outputs()]
    quantised = {n for u in graph.units for n in u.outputs if graph.tensors[n].quant}
    assert set(outputs) == quantised | set(graph.outputs)
    for feed in feeds:
        expected = golden_graph.run(graph, feed)
        for name, value in zip(outputs, opened.run(outputs, feed), strict=True):
            np.testing.assert_array_equal(value, expected[name], strict=True, err_msg=name)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_kind_of_unit_equals_golden(kind: Kind, dtype: Any) -> None:
    for seed in range(60):
        graph = single(kind, seed, dtype=dtype, any_groups=True)
        assert_equals_golden(graph, random_inputs(graph, seed, 4), contract.SESSION_LEVEL)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_whole_graphs_equal_golden_at_every_tensor(dtype: Any) -> None:
    for seed in range(60):
        graph = random_graph(seed, 1 + seed % 10, dtype=dtype, any_groups=True)
        assert_equals_golden(graph, random_inputs(graph, seed, 2), contract.SESSION_LEVEL)


@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_optimisation_keeps_the_bytes(level: str) -> None:
    for seed in range(30):
        graph = random_graph(seed, 7)
        assert_equals_golden(graph, random_inputs(graph, seed, 2), level)


def test_any_scale_goes_in_as_it_is() -> None:
    """Scales m that are no product of three float32 scales, and results far beyond the bytes."""
    rng = np.random.default_rng(11)
    for seed in range(40):
        graph = single("conv" if seed % 2 else "matrix", seed, tables=False)
        (unit,) = graph.units
        assert isinstance(unit.spec, ConvSpec)
        m = (unit.spec.m * 2.0 ** rng.uniform(-6, 6, len(unit.spec.m))).astype(np.float32)
        graph = replace(graph, units=(replace(unit, spec=replace(unit.spec, m=m)),))
        assert_equals_golden(graph, random_inputs(graph, seed, 2), contract.SESSION_LEVEL)


def test_large_sums_are_exact() -> None:
    """Sums near int32's ends, where float32 itself would lose bits."""
    depth, outputs = 60000, 5
    rng = np.random.default_rng(12)
    for dtype, zero in (("int8", -128), ("uint8", 255)):
        x, y = (Quant(np.float32(0.1), zero, dtype) for _ in range(2))  # type: ignore[arg-type]
        weight = rng.choice(np.array([-128, 127], np.int8), (outputs, depth, 1, 1))
        weight[0], weight[1] = 127, -128
        m = np.float32(100 / 2.0**31) * np.ones(outputs, np.float32)
        bias = rng.integers(-(2**20), 2**20, outputs).astype(np.int32)
        wide = ConvSpec(x, y, weight, bias, m, m, y.lo, y.hi, matrix=True)
        tensors = {
            "x": Tensor("x", dtype, (1, depth), x),
            "y": Tensor("y", dtype, (1, outputs), y),
        }
        unit = Unit("wide", "conv", ("wide",), ("x",), ("y",), wide)
        graph = Graph("wide", "", (unit,), tensors, ("x",), ("y",), None)
        assert_equals_golden(graph, random_inputs(graph, 1, 4), contract.SESSION_LEVEL)


def test_matrix_of_rank_three_with_bias() -> None:
    graph = single("matrix", 3, tables=False)
    (unit,) = graph.units
    assert isinstance(unit.spec, ConvSpec)
    bias = np.arange(len(unit.spec.m), dtype=np.int32) * 100
    (x,), (y,) = graph.inputs, graph.outputs
    tensors = {
        name: replace(tensor, shape=(2, 3, tensor.shape[-1]))
        for name, tensor in graph.tensors.items()
    }
    graph = replace(
        graph, tensors=tensors, units=(replace(unit, spec=replace(unit.spec, bias=bias)),)
    )
    assert graph.tensors[x].shape[:2] == graph.tensors[y].shape[:2] == (2, 3)
    assert_equals_golden(graph, random_inputs(graph, 1, 3), contract.SESSION_LEVEL)


def test_signedness_may_change_between_tensors() -> None:
    for seed in range(30):
        graph = single("conv", seed, dtype="int8")
        (unit,) = graph.units
        assert isinstance(unit.spec, ConvSpec)
        y = Quant(unit.spec.y.scale, unit.spec.y.zero_point + 128, "uint8")
        spec = replace(unit.spec, y=y, lo=unit.spec.lo + 128, hi=unit.spec.hi + 128)
        out = replace(graph.tensors[unit.outputs[0]], dtype="uint8", quant=y)
        graph = replace(
            graph,
            units=(replace(unit, spec=spec),),
            tensors={**graph.tensors, out.name: out},
        )
        assert_equals_golden(graph, random_inputs(graph, seed, 2), contract.SESSION_LEVEL)


def test_stages_in_a_row_equal_the_whole_and_nhwc_edges_are_transposed() -> None:
    rng = np.random.default_rng(13)
    transposed = 0
    for seed in range(40):
        graph = random_graph(seed, 9)
        cuts = sorted({0, len(graph.units), *rng.integers(0, len(graph.units) + 1, 2).tolist()})
        (feed,) = random_inputs(graph, seed)
        expected = golden_graph.run(graph, feed)
        known = dict(feed)  # ONNX order
        for first, last in itertools.pairwise(cuts):
            part = [unit.name for unit in graph.units[first:last]]
            inputs, outputs = edges(graph, part)
            images = [n for n in (*inputs, *outputs) if len(graph.tensors[n].shape) == 4]
            nhwc = frozenset(n for n in images if rng.random() < 0.5)
            transposed += len(nhwc)
            given = {
                n: np.ascontiguousarray(known[n].transpose(0, 2, 3, 1)) if n in nhwc else known[n]
                for n in inputs
            }
            got = run(stage_model(graph, part, nhwc=nhwc), given)
            assert tuple(got) == outputs
            known |= {n: v.transpose(0, 3, 1, 2) if n in nhwc else v for n, v in got.items()}
        for name in graph.outputs:
            np.testing.assert_array_equal(known[name], expected[name], strict=True)
    assert transposed > 20


def test_edges_of_a_residual_branch() -> None:
    x = Tensor("x", "int8", (1, 1, 1, 1))
    units = tuple(
        Unit(name, "other", (name,), inputs, (f"{name}_out",), None)
        for name, inputs in (("a", ("x",)), ("b", ("a_out",)), ("c", ("a_out", "b_out")))
    )
    tensors = dict.fromkeys(("x", "a_out", "b_out", "c_out"), x)
    graph = Graph("g", "", units, tensors, ("x",), ("c_out", "a_out"), None)
    assert edges(graph, ["a"]) == (("x",), ("a_out",))
    assert edges(graph, ["b"]) == (("a_out",), ("b_out",))
    assert edges(graph, ["c", "b"]) == (("a_out",), ("c_out",))
    assert edges(graph, ["a", "b", "c"]) == (("x",), ("c_out", "a_out"))


def test_same_graph_same_bytes_and_the_level_is_noted() -> None:
    first, second = (
        stage_model(g, names(g), taps=True) for g in (random_graph(4, 8), random_graph(4, 8))
    )
    texts = [m.SerializeToString(deterministic=True) for m in (first, second)]
    assert texts[0] == texts[1]
    assert {p.key: p.value for p in first.metadata_props} == {
        contract.LEVEL_KEY: contract.SESSION_LEVEL
    }


def test_no_signed_kernel_is_used() -> None:
    """u8 x s8 saturates without VNNI, s8 x s8 is slow: weights are uint8 with zero point 128."""
    for dtype in ("int8", "uint8"):
        graph = random_graph(4, 10, dtype=dtype)  # type: ignore[arg-type]
        model = stage_model(graph, names(graph))
        kinds = {t.name: t.data_type for t in model.graph.initializer}
        dots = [n for n in model.graph.node if n.op_type in ("QLinearConv", "QGemm")]
        assert dots
        assert {kinds[n.input[i]] for n in dots for i in (2, 3, 5)} == {onnx.TensorProto.UINT8}


def test_errors_name_the_unit_and_the_way_out() -> None:
    graph = random_graph(4, 4)
    with pytest.raises(CompileError, match="unit 'nobody' is not in the graph"):
        stage_model(graph, ["nobody"])
    with pytest.raises(CompileError, match="no unit given"):
        edges(graph, [])
    with pytest.raises(CompileError, match="not a 4-D edge of the stage"):
        stage_model(graph, names(graph), nhwc=frozenset({"elsewhere"}))
    unit = Unit("soft", "other", ("soft",), graph.outputs, ("p",), None)
    with pytest.raises(CompileError, match="unit 'soft': a graph without a model"):
        stage_model(replace(graph, units=(*graph.units, unit), outputs=("p",)), ["soft"])


# Real models


def mlperf(name: str) -> Graph:
    from trivet.compiler.load import load
    from trivet.compiler.map import map_units
    from trivet.compiler.normalise import normalise

    path = SHARED / "models" / f"mlperf_tiny_{name}_int8.onnx"
    if not path.exists():
        pytest.skip(f"{path.name} not found; set TRIVET_SHARED to the folder that holds models/")
    return map_units(normalise(load(path, {})))


def real_inputs(name: str, graph: Graph, count: int) -> list[dict[str, Any]]:
    """Images or utterances where the data set is at hand, then as many full-range vectors."""
    (x,) = graph.inputs
    items: Any = []
    if name == "ic_resnet8":
        images = np.load(SHARED / "models/cifar10_500_uint8.npz")["input"][:count]
        items = (images.astype(np.int16) - 128).astype(np.int8)
    elif name == "kws_dscnn":
        items = np.load(SHARED / "models/kws_1000_int8.npz")["input"][:count]
    rng = np.random.default_rng(2026)
    drawn = rng.integers(-128, 128, (count, *graph.tensors[x].shape)).astype(np.int8)
    return [{x: item[None]} for item in items] + [{x: item} for item in drawn]


@pytest.mark.parametrize("name", ["ic_resnet8", "ad_autoencoder", "kws_dscnn"])
def test_real_models_equal_golden_at_every_quantised_tensor(name: str) -> None:
    graph = mlperf(name)
    assert_equals_golden(graph, real_inputs(name, graph, 20), contract.SESSION_LEVEL)


@pytest.mark.parametrize("name", ["ic_resnet8", "ad_autoencoder", "kws_dscnn"])
def test_real_models_may_be_cut_anywhere(name: str) -> None:
    """Images cross the cut in NHWC, as an FPGA stage wants them."""
    graph = mlperf(name)
    feed = real_inputs(name, graph, 1)[-1]
    expected = golden_graph.run(graph, feed)
    for cut in range(1, len(graph.units)):
        known = {n: v for n, v in expected.items() if n in graph.inputs}
        for part in (names(graph)[:cut], names(graph)[cut:]):
            inputs, outputs = edges(graph, part)
            own = {*graph.inputs, *graph.outputs}
            images = {n for n in (*inputs, *outputs) if len(graph.tensors[n].shape) == 4}
            nhwc = frozenset(images - own)
            known |= run(stage_model(graph, part, nhwc=nhwc), {n: known[n] for n in inputs})
            for n in outputs:
                onnx_order = known[n].transpose(0, 3, 1, 2) if n in nhwc else known[n]
                np.testing.assert_array_equal(onnx_order, expected[n], strict=True)


@pytest.mark.parametrize("name", ["ic_resnet8", "ad_autoencoder", "kws_dscnn"])
def test_plain_sessions_differ_in_float_ties_only(name: str) -> None:
    """The figures of docs/contract.md: bytes of an unoptimised session of the file itself."""
    graph = mlperf(name)
    path = SHARED / "models" / f"mlperf_tiny_{name}_int8.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVELS.ORT_DISABLE_ALL
    plain = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    ours = session(stage_model(graph, names(graph)))
    different = total = 0
    for feed in real_inputs(name, graph, 20):
        theirs, own = (s.run(list(graph.outputs), feed)[0].astype(int) for s in (plain, ours))
        different += int((theirs != own).sum())
        total += own.size
    assert total >= 400
    assert different <= total * 0.05


def test_random_graphs_are_repeatable_and_alive() -> None:
    """The builders themselves: same seed, same graph; most outputs are not saturated."""
    edge_share = []
    for seed in range(40):
        first, second = random_graph(seed, 6), random_graph(seed, 6)
        assert first.model_sha256 == second.model_sha256
        (feed,) = random_inputs(first, seed)
        values = golden_graph.run(first, feed)
        assert set(values) == set(first.tensors)
        for name, value in values.items():
            assert (value.shape, str(value.dtype)) == (
                first.tensors[name].shape,
                first.tensors[name].dtype,
            )
        (out,) = (values[name] for name in first.outputs)
        info = np.iinfo(out.dtype)
        edge_share.append(((out == info.min) | (out == info.max)).mean())
    assert np.mean(edge_share) < 0.35
    assert {u.kind for s in range(40) for u in random_graph(s, 6).units} >= {"conv", "add", "pool"}
    assert random_graphs.KINDS == KINDS
