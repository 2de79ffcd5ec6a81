"""Early starts are as early as every read allows, judged cycle by cycle."""

from dataclasses import replace

import pytest

from trivet.hdl.config import DEFAULT, EngineConfig
from trivet.hdl.isa import Instruction, Op, drain_cycles, predicted_total
from trivet.hdl.overlap import early_start, with_early_starts

DENSE = Instruction(src=0, dst=100, c_slices=16, blocks=8, pixel_words=8, out_pixel_words=8)
NEXT = replace(DENSE, src=100, dst=0)
WINDOW = {"op": Op.LANE, "c_slices": 1, "window": 1, "kernel_h": 3, "kernel_w": 3, "in_h": 3,
          "in_w": 4, "pixel_words": 1}
NARROW = EngineConfig(lanes=2, simd=8, requantisers=1)


def test_dense_layers_of_the_default_engine_overlap_by_fifteen_cycles():
    """The last of 8 words is read by slices 14 and 15, and written last."""
    assert early_start(DEFAULT, DENSE, NEXT) == 15
    program = with_early_starts(DEFAULT, [DENSE, NEXT, DENSE, Instruction(op=Op.END)])
    assert [i.early for i in program] == [0, 15, 15, 0]
    alone = predicted_total(DEFAULT, [DENSE])
    assert predicted_total(DEFAULT, program[:2]) == alone + 128 + drain_cycles(DEFAULT, NEXT) - 15


@pytest.mark.parametrize(("before", "after", "early"), [
    # Nothing in common: all slices of the first pixel.
    ({}, {"src": 300}, 16),
    # The next instruction has its way, too: 3 cycles of the drain.
    ({}, {"src": 300, "c_slices": 40}, 28),
    ({"has_add": 0, "has_table": 1}, {"src": 300, "c_slices": 40}, 30),
    ({}, {"src": 300, "c_slices": 4}, 4),
    ({}, {"src": 300, "c_slices": 1}, 1),
    # A single word, and it is the last written.
    ({"blocks": 1}, {}, 1),
    # Two blocks of 16 cycles: the first word is long done.
    ({"blocks": 2}, {}, 3),
    # Two blocks of 3 cycles: the first word is written 3 cycles before the last.
    ({"blocks": 2, "c_slices": 1, "idle": 2}, {}, 3),
    ({"blocks": 2, "c_slices": 1, "idle": 0}, {}, 2),
    # Padding reads nothing.
    ({"blocks": 1}, {"kernel_h": 2, "pad_top": 1, "c_slices": 8}, 9),
    ({"has_add": 1}, {"src": 300}, 11),
    # A window: its first results come after 2 or 3 columns of 3 words; column 1 is read last.
    ({}, {"src": 300, **WINDOW}, 9),
    ({}, {"src": 300, **WINDOW, "pad_left": 1}, 6),
    ({"blocks": 1, "dst": 1}, {"src": 0, **WINDOW}, 4),
    ({"blocks": 1, "dst": 4}, {"src": 0, **WINDOW}, 2),
    # Results of a window: every third cycle in a row, the ninth from row to row.
    ({**WINDOW, "blocks": 1, "out_w": 2, "out_pixel_words": 1}, {"pixel_words": 1}, 3),
    ({**WINDOW, "blocks": 1, "out_h": 2, "out_pixel_words": 1}, {"c_slices": 12}, 3),
    ({**WINDOW, "blocks": 1, "out_w": 2, "out_pixel_words": 1}, {"src": 99, "c_slices": 12}, 5),
    # Lanes read one word a slice.
    ({"blocks": 8}, {"op": Op.LANE, "c_slices": 1, "kernel_w": 8, "in_w": 8, "pixel_words": 1}, 8),
], ids=str)
def test_bound(before, after, early):
    assert early_start(DEFAULT, replace(DENSE, **before), replace(NEXT, **after)) == early


def test_blocks_share_a_word_when_lanes_are_fewer_than_its_bytes():
    """Four blocks to a word: the last block's write hits the first word again."""
    before = replace(DENSE, blocks=4, c_slices=2, out_pixel_words=1)
    assert early_start(NARROW, before, NEXT) == 1
    assert early_start(NARROW, replace(before, blocks=5, out_pixel_words=2), NEXT) == 2


@pytest.mark.parametrize("beside", [Op.END, Op.DOT])
def test_end_and_first_instruction_are_left_alone(beside):
    program = with_early_starts(DEFAULT, [replace(DENSE, op=beside), Instruction(op=Op.END)])
    assert [i.early for i in program] == [0, 0]
    assert with_early_starts(DEFAULT, []) == ()
