"""The allocator keeps the engine's rules, deterministically, and explains what does not fit."""

from __future__ import annotations

import re

import numpy as np
import pytest

from trivet.compiler.allocate import Step, allocate
from trivet.compiler.errors import CompileError
from trivet.hdl.config import EngineConfig

CONFIG = EngineConfig(act_banks=3, act_bank_words=64)


def check(
    steps: list[Step],
    sizes: dict[str, int],
    inputs: list[str],
    outputs: list[str],
    places: dict[str, int],
    config: EngineConfig,
) -> None:
    """The rules, stated by simulation: a word belongs to one living tensor at a time."""
    assert set(places) == set(sizes)
    last = {name: k for k, step in enumerate(steps) for name in (*step.reads, step.writes)}
    last |= dict.fromkeys(outputs, len(steps))
    owner: dict[int, str] = {}

    def claim(name: str) -> None:
        for word in range(places[name], places[name] + sizes[name]):
            assert 0 <= word < config.act_words
            assert word not in owner, f"{name} overwrites {owner[word]}"
            owner[word] = name

    def banks(name: str) -> set[int]:
        words = range(places[name], places[name] + sizes[name])
        return {word // config.act_bank_words for word in words}

    for name in inputs:
        claim(name)
    # An input that nobody reads may be overwritten at once.
    owner = {word: name for word, name in owner.items() if name in last}
    for k, step in enumerate(steps):
        claim(step.writes)
        if len(step.reads) == 2:
            assert not banks(step.reads[0]) & banks(step.reads[1])
        for word in [w for w, name in owner.items() if last.get(name, -1) <= k]:
            del owner[word]
    assert set(owner.values()) >= set(outputs)


def random_network(seed: int) -> tuple[list[Step], dict[str, int], list[str], list[str]]:
    rng = np.random.default_rng(seed)
    sizes = {"x": int(rng.integers(1, 30))}
    steps = []
    for k in range(int(rng.integers(1, 12))):
        names = list(sizes)
        reads = [names[-1 - int(rng.integers(0, min(3, len(names))))]]
        if len(names) > 1 and rng.random() < 0.4:
            other = names[-1 - int(rng.integers(0, min(4, len(names))))]
            reads += [other] if other != reads[0] else []
        sizes[f"t{k}"] = int(rng.integers(1, 30))
        steps.append(Step(f"layer{k}", tuple(reads), f"t{k}"))
    return steps, sizes, ["x"], [f"t{len(steps) - 1}"]


def test_random_networks_keep_the_rules() -> None:
    fitted = 0
    for seed in range(200):
        network = random_network(seed)
        try:
            places = allocate(*network, CONFIG)
        except CompileError:
            continue
        fitted += 1
        check(*network, places, CONFIG)
        assert places == allocate(*network, CONFIG)
    assert fitted > 190


def test_unused_input_and_long_lived_output() -> None:
    steps = [Step("a", ("x",), "t0"), Step("b", ("t0",), "t1"), Step("c", ("t1",), "t2")]
    sizes = {"x": 10, "spare": 5, "t0": 60, "t1": 60, "t2": 60}
    places = allocate(steps, sizes, ["x", "spare"], ["t0", "t2"], CONFIG)
    check(steps, sizes, ["x", "spare"], ["t0", "t2"], places, CONFIG)


def test_kept_input_shares_its_place_with_nothing() -> None:
    steps = [Step("a", ("x",), "t0"), Step("b", ("t0",), "t1"), Step("c", ("t1",), "t2")]
    sizes = {"x": 60, "t0": 60, "t1": 60, "t2": 60}
    with pytest.raises(CompileError, match="need 240 words"):
        allocate(steps, sizes | {"t0": 90, "t1": 90}, ["x"], ["t2"], CONFIG, kept=["x"])
    places = allocate(steps, sizes, ["x"], ["t2"], CONFIG, kept=["x"])
    assert all(abs(places["x"] - places[name]) >= 60 for name in ("t0", "t1", "t2"))
    check(steps, sizes, ["x"], ["t2"], places, CONFIG)


def test_skip_tensor_may_straddle_banks_away_from_the_source() -> None:
    steps = [Step("a", ("x",), "t0"), Step("b", ("t0", "x"), "t1")]
    sizes = {"x": 100, "t0": 40, "t1": 20}
    check(steps, sizes, ["x"], ["t1"], allocate(steps, sizes, ["x"], ["t1"], CONFIG), CONFIG)


def test_too_much_alive_names_the_layer() -> None:
    steps = [Step("small", ("x",), "t0"), Step("large", ("t0",), "t1")]
    with pytest.raises(
        CompileError, match=r"layer 'large': .* need 250 words .* the engine has 192; end the FPGA"
    ):
        allocate(steps, {"x": 10, "t0": 100, "t1": 150}, ["x"], ["t1"], CONFIG)


def test_banks_that_cannot_be_kept_apart() -> None:
    steps = [Step("add", ("a", "b"), "y")]
    with pytest.raises(CompileError, match=re.escape("layer 'add': no arrangement")):
        allocate(steps, {"a": 70, "b": 70, "y": 1}, ["a", "b"], ["y"], CONFIG)
