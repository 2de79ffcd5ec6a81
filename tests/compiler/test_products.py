"""The multiplier of a Mul reproduces float32 for all pairs of bytes, or the compiler refuses."""

from __future__ import annotations

from dataclasses import replace

import golden
import golden_graph
import numpy as np
import pytest
from random_graphs import Kind, random_graph, random_inputs, single

from trivet.compiler.errors import CompileError
from trivet.compiler.lower import lower
from trivet.compiler.products import InexactMul, factor, mul_semantic
from trivet.compiler.units import Graph, MulSpec, Quant
from trivet.hdl.config import DEFAULT, SMALL, EngineConfig
from trivet.sim.reference import ReferenceMachine

KINDS: tuple[Kind, ...] = ("mul", "conv", "add", "mul", "table", "max", "concat")


def golden_pairs(spec: MulSpec) -> np.ndarray:
    bits = np.arange(256, dtype=np.uint8)
    a, b = bits.view(spec.a.dtype)[:, None], bits.view(spec.b.dtype)[None, :]
    numbers = (float(q.scale) for q in (spec.a, spec.b, spec.y))
    zeros = (q.zero_point for q in (spec.a, spec.b, spec.y))
    return golden.mul(a, b, *numbers, *zeros, spec.lo, spec.hi, np.int64)


def engine_pairs(spec: MulSpec) -> np.ndarray:
    bits = np.arange(256, dtype=np.uint8)
    a = bits.view(spec.a.dtype).astype(np.int64) - spec.a.zero_point
    b = bits.view(spec.b.dtype).astype(np.int64) - spec.b.zero_point
    y = spec.y
    return golden.requant(a[:, None] * b[None, :], factor(spec), y.zero_point, spec.lo, spec.hi)


def random_spec(rng: np.random.Generator) -> MulSpec:
    scales = np.exp(rng.uniform(-5, 0, 2))
    quants = []
    for scale in (*scales, scales.prod() * np.exp(rng.uniform(2, 6))):
        dtype = "uint8" if rng.random() < 0.4 else "int8"
        low = 0 if dtype == "uint8" else -128
        quants.append(Quant(np.float32(scale), low + int(rng.integers(0, 256)), dtype))
    y = quants[2]
    lo = y.zero_point if rng.random() < 0.4 else y.lo
    return MulSpec(*quants, lo, y.hi)


def test_random_products_are_exact() -> None:
    """All 65,536 pairs, of scales as calibration finds them; where not, the compiler refuses."""
    rng = np.random.default_rng(5)
    refused = 0
    for _ in range(150):
        spec = random_spec(rng)
        assert np.array_equal(mul_semantic(spec), golden_pairs(spec))
        try:
            assert np.array_equal(engine_pairs(spec), golden_pairs(spec)), spec
        except InexactMul:
            refused += 1
    assert refused <= 4


def test_products_without_an_exact_multiplier_are_refused() -> None:
    """p / 2 with factors that float32 does not hold: ties fall to either side."""
    a, b = Quant(np.float32(0.1), 3, "int8"), Quant(np.float32(0.05), 0, "int8")
    spec = MulSpec(a, b, Quant(np.float32(0.01), 0, "int8"), -128, 127)
    with pytest.raises(InexactMul, match=r"the best differs in [\d,]+ of 65,536 pairs"):
        factor(spec)
    with pytest.raises(InexactMul, match="must be positive and finite"):
        factor(replace(spec, y=replace(a, scale=np.float32(0))))


def run(graph: Graph, config: EngineConfig, seed: int) -> bool:
    """Whether a layer multiplied; every output of every feed equals golden's."""
    program = lower(graph, [u.name for u in graph.units], config)
    machine = ReferenceMachine(program)
    for feed in random_inputs(graph, seed, 3):
        wanted = golden_graph.run(graph, feed)
        nhwc = {n: v.transpose(0, 2, 3, 1)[0] if v.ndim == 4 else v for n, v in feed.items()}
        for name, found in machine.run(nhwc).items():
            whole = wanted[name]
            whole = (
                whole.transpose(0, 2, 3, 1)[0] if whole.ndim == 4 else whole.reshape(found.shape)
            )
            assert np.array_equal(found, whole), name
    return any(i.has_mul for i in program.instructions)


@pytest.mark.parametrize("config", [DEFAULT, SMALL], ids=["16x8", "4x4"])
def test_random_graphs(config: EngineConfig) -> None:
    config = replace(config, weight_words=16384, param_words=16384, tables=64)
    multiplied = 0
    for seed in range(60):
        graph = single("mul", seed) if seed < 15 else random_graph(seed, 6, kinds=KINDS)
        try:
            multiplied += run(graph, config, seed)
        except CompileError:  # inexact, or too large
            continue
    assert multiplied >= 35
