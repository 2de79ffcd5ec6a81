"""Registers move into block RAMs and multipliers, and only where that changes nothing."""

import copy
from typing import Any

import pytest
from netlists import CLOCK, cell, cells_of, flip_flop, multiplier, netlist, ram

from trivet.compiler.build.netlist import absorb


def test_a_block_rams_register_moves_in() -> None:
    design = netlist(
        {"m": ram([10, 11]), "f0": flip_flop(10, 20), "f1": flip_flop(11, 21)}, [20, 21]
    )
    done = absorb(design, "top")
    cells = cells_of(design)
    assert set(cells) == {"m"}
    assert (done.ram_outputs, done.flip_flops_removed) == (1, 2)
    assert cells["m"]["parameters"]["REGMODE_B"] == "OUTREG"
    assert cells["m"]["parameters"]["REGMODE_A"] == "NOREG"
    assert cells["m"]["connections"]["OCEB"] == ["1"]
    assert [cells["m"]["connections"][f"DOB{k}"] for k in (0, 1)] == [[20], [21]]


def test_bits_that_nobody_reads_do_not_matter() -> None:
    design = netlist({"m": ram([10, 11]), "f0": flip_flop(10, 20)}, [20])
    assert absorb(design, "top").ram_outputs == 1


@pytest.mark.parametrize(
    ("memory", "register", "out", "reason"),
    [
        ({}, {}, [20, 10], "a bit is read elsewhere too"),
        ({"CEB": [5]}, {}, [20], "it is not always enabled"),
        ({"RSTB": [5]}, {}, [20], "it has a reset"),
        ({"CLKBMUX": "INV"}, {}, [20], "its clock is inverted"),
        ({"REGMODE_B": "OUTREG"}, {}, [20], "it has a register already"),
        ({"CLKB": [3]}, {}, [20], "the flip-flops have another clock"),
        ({}, {"CEMUX": "CE", "CE": [6]}, [20], "a flip-flop has an enable"),
        ({}, {"CEMUX": "INV", "CE": ["0"]}, [20], "a flip-flop has an enable"),
        ({}, {"LSR": [6]}, [20], "a flip-flop has a reset"),
        ({}, {"GSR": "ENABLED"}, [20], "a flip-flop has a reset"),
        ({}, {"CLKMUX": "INV"}, [20], "a flip-flop has the other edge"),
        ({}, {"REGSET": "SET"}, [20], "a flip-flop starts as 1"),
        ({}, {"M": [6]}, [20], "a bit meets another cell"),
    ],
)
def test_what_would_change_is_left_alone(
    memory: dict[str, Any], register: dict[str, Any], out: list[int], reason: str
) -> None:
    design = netlist({"m": ram([10], **memory), "f": flip_flop(10, 20, **register)}, out)
    before = copy.deepcopy(design)
    done = absorb(design, "top")
    assert dict(done.left_alone) == {f"block RAM B: {reason}": 1}
    assert design == before


def wide_ram(**changes: Any) -> dict[str, Any]:
    """36 bits on port B: the low half on DOA."""
    made = ram([11], RSTA=["0"], OCEA=["0"], **changes)
    made["parameters"]["DATA_WIDTH_B"] = f"{36:032b}"
    made["connections"]["DOA0"] = [10]
    made["port_directions"]["DOA0"] = "output"
    return made


def test_both_halves_of_a_wide_port_move_together() -> None:
    design = netlist({"m": wide_ram(), "f0": flip_flop(10, 20), "f1": flip_flop(11, 21)}, [20, 21])
    assert absorb(design, "top").ram_outputs == 1
    moved = cells_of(design)["m"]
    assert {moved["parameters"][f"REGMODE_{p}"] for p in "AB"} == {"OUTREG"}
    assert {moved["connections"][f"OCE{p}"][0] for p in "AB"} == {"1"}
    assert [moved["connections"][f"DO{p}0"] for p in "AB"] == [[20], [21]]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        # The low half comes from port A's pins, but its clock and enable are port B's.
        ({"CEB": [5]}, "it is not always enabled"),
        ({"CLKB": [3]}, "the flip-flops have another clock"),
    ],
)
def test_a_wide_port_is_that_of_the_reader(changes: dict[str, Any], reason: str) -> None:
    cells = {"m": wide_ram(**changes), "f0": flip_flop(10, 20), "f1": flip_flop(11, 21)}
    design = netlist(cells, [20, 21])
    before = copy.deepcopy(design)
    assert dict(absorb(design, "top").left_alone) == {f"block RAM B: {reason}": 1}
    assert design == before


def test_one_half_of_a_wide_port_stays_with_the_other() -> None:
    lut = cell("LUT4", {"A": [11], "Z": [21]}, {"Z"})
    design = netlist({"m": wide_ram(), "f0": flip_flop(10, 20), "l": lut}, [20, 21])
    before = copy.deepcopy(design)
    assert absorb(design, "top").left_alone == {"block RAM B: a bit goes to no flip-flop": 1}
    assert design == before


def test_one_register_of_two_is_not_enough() -> None:
    lut = cell("LUT4", {"A": [11], "Z": [21]}, {"Z"})
    design = netlist({"m": ram([10, 11]), "f": flip_flop(10, 20), "l": lut}, [20, 21])
    before = copy.deepcopy(design)
    assert absorb(design, "top").left_alone == {"block RAM B: a bit goes to no flip-flop": 1}
    assert design == before


def test_a_register_marked_keep_stays() -> None:
    register = flip_flop(10, 20)
    register["attributes"]["keep"] = "00000000000000000000000000000001"
    design = netlist({"m": ram([10]), "f": register}, [20])
    assert absorb(design, "top").left_alone == {"block RAM B: a flip-flop is marked keep": 1}


def test_a_multipliers_registers_move_in() -> None:
    design = netlist(
        {
            "a": flip_flop(30, 40), "b": flip_flop(31, 41),
            "x": multiplier([40, 40, "0"], [41, "0"], [50]), "p": flip_flop(50, 60),
        },
        [60],
    )  # fmt: skip
    done = absorb(design, "top")
    cells = cells_of(design)
    assert set(cells) == {"x"}
    assert (done.multiplier_inputs, done.multiplier_outputs) == (2, 1)
    assert done.flip_flops_removed == 3
    found = cells["x"]["connections"]
    # The sign bit that came from the same register follows it.
    assert [found[p] for p in ("A0", "A1", "A2", "B0", "P0")] == [[30], [30], ["0"], [31], [60]]
    assert (found["CLK0"], found["CE0"], found["RST0"]) == ([CLOCK], ["1"], ["0"])
    parameters = cells["x"]["parameters"]
    assert {parameters[f"REG_{r}_CLK"] for r in ("INPUTA", "INPUTB", "OUTPUT")} == {"CLK0"}


def test_a_factors_register_with_another_reader_stays_as_well() -> None:
    design = netlist({"a": flip_flop(30, 40), "x": multiplier([40], ["1"], [50])}, [50, 40])
    done = absorb(design, "top")
    assert "a" in cells_of(design)
    assert (done.multiplier_inputs, done.flip_flops_removed) == (1, 0)
    assert cells_of(design)["x"]["connections"]["A0"] == [30]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"x": multiplier([40, "1"], [], [50])}, "multiplier input A: a bit is constant 1"),
        (
            {"x": multiplier([40, 70], [], [50])},
            "multiplier input A: a bit comes from no flip-flop",
        ),
        (
            {"x": multiplier([40], [], [50], SIGNEDA=[71])},
            "multiplier input A: its signs or sources are not constant",
        ),
        (
            {"x": multiplier([40, 42], [], [50]), "b": flip_flop(32, 42, CLK=[3])},
            "multiplier input A: the flip-flops have several clocks",
        ),
    ],
)
def test_factors_that_would_change_are_left_alone(
    cells: dict[str, dict[str, Any]], reason: str
) -> None:
    design = netlist({"a": flip_flop(30, 40), **cells}, [50])
    before = copy.deepcopy(design)
    assert reason in absorb(design, "top").left_alone
    assert design == before


def test_a_multiplier_has_one_clock() -> None:
    cells = {
        "a": flip_flop(30, 40),
        "x": multiplier([40], ["1"], [50]),
        "p": flip_flop(50, 60, CLK=[3]),
    }
    design = netlist(cells, [60])
    done = absorb(design, "top")
    assert (done.multiplier_outputs, done.multiplier_inputs) == (1, 0)
    assert done.left_alone == {"multiplier input A: its registers have another clock": 1}


def test_a_register_between_two_blocks_goes_into_the_first() -> None:
    design = netlist(
        {"m": ram([10]), "f": flip_flop(10, 40), "x": multiplier([40], ["1"], [50])}, [50]
    )
    done = absorb(design, "top")
    cells = cells_of(design)
    assert (done.ram_outputs, done.multiplier_inputs) == (1, 0)
    assert cells["m"]["connections"]["DOB0"] == [40]
    assert cells["x"]["connections"]["A0"] == [40]


def test_two_registers_in_a_row_between_multipliers_fill_both() -> None:
    design = netlist(
        {
            "x": multiplier(["1"], ["1"], [50]), "p": flip_flop(50, 60), "q": flip_flop(60, 70),
            "y": multiplier([70], ["1"], [80]),
        },
        [80],
    )  # fmt: skip
    done = absorb(design, "top")
    cells = cells_of(design)
    assert set(cells) == {"x", "y"}
    assert (done.multiplier_outputs, done.multiplier_inputs) == (1, 1)
    assert cells["x"]["connections"]["P0"] == cells["y"]["connections"]["A0"] == [60]


def test_an_unknown_module_is_named() -> None:
    with pytest.raises(ValueError, match="has no module 'board', it has top"):
        absorb(netlist({}, []), "board")
