"""Far-reaching flip-flops get copies; every reader sees what it saw before."""

from __future__ import annotations

import copy
from typing import Any

from netlists import cell, cells_of, flip_flop, netlist, ram

from trivet.compiler.build.replicate import MANY_BLOCKS, MANY_CELLS, PARTS, replicate

D, Q = 5, 6


def block(bit: int, out: int) -> dict[str, Any]:
    """A block RAM that reads at an address with this bit."""
    return cell("DP16KD", {"ADB0": [bit], "ADB1": ["0"], "DOB0": [out]}, {"DOB0"})


def lut(bit: int, out: int) -> dict[str, Any]:
    return cell("LUT4", {"A": [bit], "Z": [out]}, {"Z"})


def sources(design: dict[str, Any]) -> dict[tuple[str, str], str]:
    """What drives each input, through copies: the flip-flop's data instead of its own name."""
    cells = cells_of(design)
    drives = {
        bit: c["connections"]["DI"][0] if c["type"] == "TRELLIS_FF" else f"{name}.{port}"
        for name, c in cells.items()
        for port, bits in c["connections"].items()
        if c["port_directions"][port] == "output"
        for bit in bits
    }
    return {
        (name, port): drives.get(bits[0], bits[0])
        for name, c in cells.items()
        if "$copy" not in name
        for port, bits in c["connections"].items()
        if c["port_directions"][port] == "input"
    }


def far(blocks: int, luts: int = 0, **changes: Any) -> dict[str, Any]:
    cells = {"where": flip_flop(D, Q, **changes)}
    cells |= {f"core.memory.0.{k}": block(Q, 100 + k) for k in range(blocks)}
    cells |= {f"core.logic.x{k}": lut(Q, 1000 + k) for k in range(luts)}
    return netlist(cells, [100])


def test_blocks_are_divided_among_copies_as_neighbours() -> None:
    design = far(4 * PARTS)
    before = sources(design)
    done = replicate(design, "top")
    assert (done.flip_flops, done.copies) == (1, PARTS - 1)
    assert sources(design) == before
    cells = cells_of(design)
    bits = [cells[f"core.memory.0.{k}"]["connections"]["ADB0"][0] for k in range(4 * PARTS)]
    # Of 16, by number and not by the alphabet: four, four, four and four.
    assert [bits[4 * k : 4 * k + 4] for k in range(PARTS)] == [
        [bits[4 * k]] * 4 for k in range(PARTS)
    ]
    assert len(set(bits)) == PARTS


def test_each_component_has_copies_of_its_own() -> None:
    design = far(2 * MANY_BLOCKS, MANY_CELLS + 1)
    before = sources(design)
    replicate(design, "top")
    assert sources(design) == before
    cells = cells_of(design)
    of_blocks = {c["connections"]["ADB0"][0] for c in cells.values() if c["type"] == "DP16KD"}
    of_luts = {c["connections"]["A"][0] for c in cells.values() if c["type"] == "LUT4"}
    assert not of_blocks & of_luts
    assert (len(of_blocks), len(of_luts)) == (PARTS, PARTS)


def test_what_reaches_few_is_left_alone() -> None:
    for design in (far(MANY_BLOCKS), far(0, MANY_CELLS)):
        before = copy.deepcopy(design)
        assert replicate(design, "top").copies == 0
        assert design == before


def test_copies_have_the_same_enable_reset_and_start() -> None:
    design = far(4 * PARTS, CEMUX="CE", CE=[7], LSR=[8], REGSET="SET")
    replicate(design, "top")
    cells = cells_of(design)
    for part in range(1, PARTS):
        made = cells[f"where$copy{part}"]
        assert made["parameters"] == cells["where"]["parameters"]
        for port in ("CLK", "DI", "CE", "LSR"):
            assert made["connections"][port] == cells["where"]["connections"][port]


def test_a_flip_flop_that_is_kept_gets_none() -> None:
    design = far(4 * PARTS)
    cells_of(design)["where"]["attributes"]["keep"] = "1"
    assert replicate(design, "top").copies == 0


def test_what_no_flip_flop_drives_is_left_alone() -> None:
    cells = {"source": ram([Q])} | {f"m.{k}": block(Q, 100 + k) for k in range(4 * PARTS)}
    assert replicate(netlist(cells, [100]), "top").copies == 0
