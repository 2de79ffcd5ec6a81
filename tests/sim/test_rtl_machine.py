"""The RTL as a verifying machine: every layer's bytes and every counter, on the small engine."""

import numpy as np
import pytest
from random_graphs import random_graph, random_inputs

from trivet.compiler.errors import CompileError
from trivet.compiler.lower import lower
from trivet.hdl.config import SMALL
from trivet.hdl.isa import predicted_total
from trivet.sim.reference import ReferenceMachine
from trivet.sim.rtl_machine import rtl_machines

pytestmark = pytest.mark.rtl


def test_every_layer_and_counter_of_the_rtl_is_what_was_predicted() -> None:
    ran = 0
    with rtl_machines() as machine_for:
        for seed in range(40):
            graph = random_graph(seed, 4, channels=10, side=6)
            try:
                program = lower(graph, [u.name for u in graph.units], SMALL)
            except CompileError:
                continue  # does not fit the small engine
            reference = ReferenceMachine(program)
            machine = machine_for(program.to_bytes(), "fpga0")
            with pytest.raises(ValueError, match="no item was run yet"):
                machine.counted()
            for feed in random_inputs(graph, seed, 2):
                inputs = {}
                for port in program.inputs:
                    value = feed[port.tensor]
                    image = value.transpose(0, 2, 3, 1) if value.ndim == 4 else value
                    inputs[port.tensor] = np.ascontiguousarray(image).reshape(port.hwc)
                for (note, right), (_, found) in zip(
                    reference.layers(inputs), machine.layers(inputs), strict=True
                ):
                    assert found.tobytes() == right.tobytes(), (seed, note.unit)
            counted = machine.counted()
            assert counted.cycles == predicted_total(SMALL, program.instructions)
            for note in program.layers:
                assert counted.layers[note.instruction] == (note.cycles, note.stalls), note.unit
            ran += 1
            if ran == 6:
                break
    assert ran == 6
