"""Hard blocks of a large engine get sites of the die, each its own, in the order of the lanes."""

from __future__ import annotations

import re
from typing import Any

from netlists import cells_of, multiplier, netlist, ram

from trivet.compiler.build.floorplan import floorplan


def engine(lanes: int, simd: int, weights: int) -> dict[str, Any]:
    cells = {
        f"core.engine.lanes.product_{lane}_{k}_P": multiplier([1], [1], [10_000 + lane * simd + k])
        for lane in range(lanes)
        for k in range(simd)
    }
    cells |= {f"core.engine.weight_memory.chunk0_0.0.{k}": ram([100 + k]) for k in range(weights)}
    cells["core.engine.post.requantiser0.o"] = multiplier([1], [1], [99])
    cells["core.engine.param_memory.chunk0_0.0.0"] = ram([98])
    return netlist(cells, [98])


def sites(design: dict[str, Any], part: str) -> list[str]:
    found = {n: c["attributes"]["BEL"] for n, c in cells_of(design).items() if part in n}
    return [found[n] for n in sorted(found, key=lambda n: [int(x) for x in re.findall(r"\d+", n)])]


def test_the_default_engine_is_laid_out() -> None:
    design = engine(16, 8, 114)
    assert floorplan(design, "top") == 128 + 114
    products, weights = sites(design, "product_"), sites(design, "weight_memory")
    assert len(set(products)) == 128
    assert len(set(weights)) == 114
    for places in (products, weights):
        columns = [int(re.fullmatch(r"X(\d+)/Y\d+/\w+", site)[1]) for site in places]  # type: ignore[index]
        assert columns == sorted(columns)  # lane after lane from left to right
    # Sites that nextpnr named in a placement of this die (LFE5U-85F).
    assert products[0] == "X4/Y10/MULT18_0"
    assert weights[0] == "X4/Y22/EBR0"
    assert {re.sub(r"X\d+/", "", s) for s in weights} <= {
        f"Y{y}/EBR{k}" for y in (22, 46, 70, 82) for k in range(4)
    }


def test_the_middle_and_what_is_shared_stay_free() -> None:
    design = engine(16, 8, 114)
    floorplan(design, "top")
    free = [n for n, c in cells_of(design).items() if "BEL" not in c["attributes"]]
    assert free == ["core.engine.post.requantiser0.o", "core.engine.param_memory.chunk0_0.0.0"]
    columns = {int(s.split("/")[0][1:]) for s in sites(design, "product_")}
    assert not columns & set(range(53, 74))


def test_small_and_other_engines_are_left_to_the_placer() -> None:
    for design in (engine(4, 4, 48), engine(16, 16, 114), engine(16, 8, 200)):
        assert floorplan(design, "top") == 0
        assert not any("BEL" in c["attributes"] for c in cells_of(design).values())
