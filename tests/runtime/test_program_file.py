"""The runtime reads what the compiler's side writes, and refuses anything else."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from trivet.hdl.config import SMALL
from trivet.hdl.isa import Expand, Instruction, LayerNote, Op, Port, Program
from trivet.runtime.link.frame import Space
from trivet.runtime.program_file import ProgramFile, ProgramFileError

PORT = Port("x", 3, (2, 1, 5), "int8")
PROGRAM = Program(
    SMALL,
    (Instruction(), Instruction(op=Op.END)),
    bytes(range(32)),
    bytes(range(16)),
    bytes(256),
    bytes(2048),
    (PORT,),
    (Port("y", 9, (1, 1, 4), "uint8"),),
    (LayerNote(0, "conv", ("a", "b"), PORT, 100, 40, 2),),
)
IMAGE = PROGRAM.to_bytes()


def test_everything_a_runtime_needs_is_read() -> None:
    found = ProgramFile.from_bytes(IMAGE)
    assert found.config == SMALL.to_dict()
    assert found.config_sha256 == SMALL.sha256
    assert found.instructions == 2
    assert found.memories == {
        Space.INST: b"".join(i.encode() for i in PROGRAM.instructions),
        Space.WGHT: PROGRAM.weights,
        Space.PARM: PROGRAM.params,
        Space.TABL: PROGRAM.tables,
        Space.ADDT: PROGRAM.addends,
    }
    (port,) = found.inputs
    assert (port.tensor, port.offset, port.hwc, port.dtype) == ("x", 3, (2, 1, 5), "int8")
    assert port.nbytes == 10
    (layer,) = found.layers
    assert (layer.unit, layer.nodes, layer.cycles, layer.stalls) == ("conv", ("a", "b"), 40, 2)


EXPAND = Expand((2, 1, 5), 3, 2, 1, 1, 1, 0, 2, 1, -7)


def test_expanded_port_is_read() -> None:
    image = replace(PROGRAM, inputs=(replace(PORT, expand=EXPAND),)).to_bytes()
    assert Program.from_bytes(image).inputs[0].expand == EXPAND
    (port,) = ProgramFile.from_bytes(image).inputs
    assert port.expand is not None
    assert asdict(port.expand) == asdict(EXPAND)
    assert port.expand.stored == EXPAND.stored == (2, 1, 30)


@pytest.mark.parametrize(
    "wrong",
    [
        {"hwc": (2, 1, 4)},
        {"kernel_h": 0},
        {"stride_h": 4},
        {"stride_w": 256},
        {"pad_top": -1},
        {"out_h": 1 << 16},
        {"zp": -129},
        {"hwc": (1 << 16, 1, 5)},
    ],
)
def test_impossible_expanded_ports_are_refused(wrong: dict[str, Any]) -> None:
    port = replace(PORT, expand=replace(EXPAND, **wrong))
    with pytest.raises(ProgramFileError, match="META is not understood"):
        ProgramFile.from_bytes(replace(PROGRAM, inputs=(port,)).to_bytes())


def test_word_sizes_are_those_of_the_hardware() -> None:
    from trivet.hdl.loader import memories

    assert tuple(ProgramFile.from_bytes(IMAGE).word_bytes[Space(k)] for k in range(6)) == tuple(
        memory.word_bytes for memory in memories(SMALL)
    )


@pytest.mark.parametrize(
    ("image", "text"),
    [
        (b"", "no TRVP header"),
        (b"PK" + IMAGE[2:], "no TRVP header"),
        (IMAGE[:4] + b"\x09" + IMAGE[5:], "version 9, this release reads 1"),
        (IMAGE[:50], "truncated section table"),
        (IMAGE[:-1], "section META is truncated or damaged"),
        (IMAGE.replace(b"WGHT", b"WXYZ"), r"\['WGHT'\] are missing"),
    ],
)
def test_damage_is_named(image: bytes, text: str) -> None:
    with pytest.raises(ProgramFileError, match=text):
        ProgramFile.from_bytes(image)


def test_no_prefix_of_a_program_passes() -> None:
    for length in range(0, len(IMAGE), 37):
        with pytest.raises(ProgramFileError):
            ProgramFile.from_bytes(IMAGE[:length])
