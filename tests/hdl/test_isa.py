"""Instructions and programs survive their file form, damage is named, cycles are as stated."""

import struct
from dataclasses import fields, replace

import numpy as np
import pytest

from trivet.hdl.config import DEFAULT, SMALL, EngineConfig
from trivet.hdl.isa import (
    FIELDS,
    INSTRUCTION_BYTES,
    START_CYCLES,
    Instruction,
    LayerNote,
    Op,
    Port,
    Program,
    ProgramError,
    drain_cycles,
    predicted_cycles,
    predicted_stalls,
    predicted_total,
)

DERIVED = {"row_words", "step_x", "step_y", "step_kx", "step_ky", "origin", "prime", "columns"}


def program():
    port = Port("x", 3, (2, 3, 4), "int8")
    note = LayerNote(0, "Conv_1", ("Conv_1", "Relu_2"), port, 99, 40, 2)
    code = (Instruction(zp_x=-5), Instruction(op=Op.END))
    return Program(SMALL, code, b"w" * 16, b"p" * 16, b"", b"", (port,), (port,), (note,))


def test_fields_of_definition_and_dataclass_agree():
    assert {f.name for f in FIELDS} - DERIVED == {f.name for f in fields(Instruction)}


def test_random_instructions_survive_encoding():
    rng = np.random.default_rng(5)
    for _ in range(100):
        values = {}
        for f in FIELDS:
            if f.name in DERIVED:
                continue
            low = -(1 << f.bits - 1) if f.signed else 0
            values[f.name] = int(rng.integers(low, low + (1 << f.bits)))
        # Products must fit their derived fields.
        values.update(in_w=int(rng.integers(1, 60)), pixel_words=int(rng.integers(1, 4)),
                      dilation_h=int(rng.integers(1, 9)), out_w=int(rng.integers(1, 4000)))
        if values["window"]:
            values["pad_left"] = int(rng.integers(0, 2))
        instruction = Instruction(**values)
        data = instruction.encode()
        assert len(data) == INSTRUCTION_BYTES
        assert Instruction.decode(data) == instruction


@pytest.mark.parametrize(("change", "text"), [
    ({"blocks": 65536}, "blocks is 65536, must be 0..65535"),
    ({"zp_x": 256}, "zp_x is 256, must be -256..255"),
    ({"in_w": 65535, "pixel_words": 2}, "row_words is 131070"),
    ({"window": 1, "pad_left": 3}, "prime is -1"),
])
def test_values_beyond_their_field_are_refused(change, text):
    with pytest.raises(ValueError, match=text):
        replace(Instruction(), **change).encode()


def test_program_survives_its_file_form():
    image = program().to_bytes()
    assert Program.from_bytes(image) == program()
    assert image == program().to_bytes()


def damage(image, offset):
    return image[:offset] + bytes([image[offset] ^ 1]) + image[offset + 1 :]


def resealed(**changes):
    """A file whose sections are intact but wrong."""
    return replace(program(), **changes).to_bytes()


@pytest.mark.parametrize(("make", "text"), [
    (lambda b: b"", "no TRVP header"),
    (lambda b: b"ELF!" + b[4:], "no TRVP header"),
    (lambda b: b[:4] + struct.pack("<H", 9) + b[6:], "version 9, this release reads 1"),
    (lambda b: b[:60], "truncated section table"),
    (lambda b: b[:-1], "section META is truncated"),
    (lambda b: damage(b, 40 + 6 * 16 + 3), "section INST is truncated or damaged"),
    (lambda b: damage(b, 10), "configuration hash of header and META differ"),
    (lambda b: resealed(instructions=(Instruction(),)), "the last instruction is not END"),
    (lambda b: resealed(instructions=()), "0 bytes of instructions"),
], ids=str)
def test_damage_is_named(make, text):
    with pytest.raises(ProgramError, match=text):
        Program.from_bytes(make(program().to_bytes()))


def test_wrong_derived_field_is_named():
    data = Instruction().encode()
    word = int.from_bytes(data, "little")
    shift = 0
    for f in FIELDS:
        if f.name == "step_x":
            word ^= 2 << shift
        shift += f.bits
    with pytest.raises(ProgramError, match="field step_x is 3, must be 1"):
        Instruction.decode(word.to_bytes(INSTRUCTION_BYTES, "little"))


def test_overhead_of_a_layer_at_the_default_size():
    """What ten dense layers cost beside their slices decides small networks."""
    assert drain_cycles(DEFAULT, Instruction()) == 31
    assert drain_cycles(DEFAULT, Instruction(has_table=1)) == 33
    assert drain_cycles(DEFAULT, Instruction(has_add=1)) == 36
    assert drain_cycles(EngineConfig(lanes=1, simd=1, requantisers=1), Instruction()) == 25


def test_cycles_are_the_closed_form():
    layer = Instruction(blocks=2, out_h=3, out_w=4, kernel_h=3, kernel_w=3, c_slices=2, idle=1)
    assert predicted_stalls(DEFAULT, layer) == 23
    assert predicted_cycles(DEFAULT, layer) == 24 * 18 + 23 + 31
    window = replace(layer, op=Op.LANE, c_slices=1, window=1, pad_left=1)
    assert predicted_stalls(DEFAULT, window) == 2 * 3 * 3
    assert predicted_cycles(DEFAULT, window) == 2 * 3 * (1 + 4) * 3 + 18 + 31
    strided = replace(window, stride_w=2, pad_left=0)
    assert predicted_cycles(DEFAULT, strided) == 2 * 3 * (2 + 7) * 3 + 18 + 31
    run = [layer, layer, Instruction(op=Op.END), layer]
    assert predicted_total(DEFAULT, run) == START_CYCLES + 2 * predicted_cycles(DEFAULT, layer)
