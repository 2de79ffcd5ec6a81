"""Puts a program together: instructions with their addresses, packed memories, notes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trivet.hdl.config import EngineConfig
from trivet.hdl.isa import (
    Expand,
    Instruction,
    LayerNote,
    Odd,
    Op,
    Port,
    Program,
    predicted_cycles,
    predicted_stalls,
)
from trivet.hdl.overlap import with_early_starts, with_restarts

from .addends import solve
from .errors import CompileError
from .fuse import Group
from .joint import Joints
from .layers import Layer
from .layout import hwc_of
from .pack import Pool
from .units import Graph, ResizeSpec

__all__ = ["Assembler", "twin"]


def twin(name: str) -> str:
    """Key of a tensor's place in the second form; no ONNX name has a NUL."""
    return f"{name}\0odd"


class Assembler:
    """Fills the memories and addresses of a program."""

    def __init__(
        self,
        graph: Graph,
        config: EngineConfig,
        joints: Joints,
        places: dict[str, int],
        forms: dict[str, Expand],
        overlap: bool,
        release: int,
    ) -> None:
        self.graph, self.config, self.joints, self.places = graph, config, joints, places
        self.forms, self.overlap = forms, overlap
        self.release = release  # of the form's instructions, 0: it has inputs of its own
        self.odd = False  # whose addresses are wanted
        self.weights = Pool(config.weight_word_bytes)
        self.params = Pool(8 * config.requantisers)
        self.tables = Pool(256)
        self.addends = Pool(256 * 8)

    def assemble(
        self,
        groups: list[Group],
        layers: list[Layer],
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
    ) -> Program:
        config = self.config
        if len(groups) >= config.instructions:
            raise CompileError(
                f"layer '{groups[config.instructions - 1].name}': the stage has {len(groups)} "
                f"layers and an END, the engine holds {config.instructions} instructions; "
                "end the FPGA stage before it"
            )
        code = self.form(groups, layers)
        instructions = (*code, Instruction(op=Op.END))
        odd = None
        if self.overlap:
            self.odd = True
            code, second = with_restarts(config, [code, self.form(groups, layers)])
            end = Instruction(op=Op.END)
            instructions = (*code, end, *second, end)
            ports = [tuple(map(self.port, names)) for names in (inputs, outputs)]
            odd = Odd(len(code) + 1, ports[0], ports[1], self.release)
            self.odd = False
        notes = tuple(self.note(k, g, i) for k, (g, i) in enumerate(zip(groups, code, strict=True)))
        return Program(
            config=config,
            instructions=instructions,
            weights=self.weights.to_bytes(),
            params=self.params.to_bytes(),
            tables=self.tables.to_bytes(),
            addends=self.addends.to_bytes(),
            inputs=tuple(self.port(name) for name in inputs),
            outputs=tuple(self.port(name) for name in outputs),
            layers=notes,
            odd=odd,
        )

    def form(self, groups: list[Group], layers: list[Layer]) -> tuple[Instruction, ...]:
        """The instructions, with the addresses of the form that is wanted."""
        placed = [self.place(group, layer) for group, layer in zip(groups, layers, strict=True)]
        return with_early_starts(self.config, placed, self.release)

    def place(self, group: Group, layer: Layer) -> Instruction:
        """The layer's instruction with every address in it."""
        config = self.config
        instruction = replace(
            layer.instruction,
            src=self.address(group.source),
            dst=self.result(group).offset,
            weights=self.store(group, "weight", self.weights, layer.weights, config.weight_words),
            params=self.store(group, "parameter", self.params, layer.params, config.param_words),
        )
        # A part of a joint tensor has the joint's words from pixel to pixel.
        if words := self.pixel_words(group.source):
            instruction = replace(instruction, pixel_words=words)
        if words := self.pixel_words(group.output, group.part is not None):
            instruction = replace(instruction, out_pixel_words=words)
        if group.phase is not None:  # the other rows and columns lie between its own
            lies = self.result(group)
            instruction = replace(
                instruction, out_pixel_words=lies.pixel_words,
                out_row_gap=lies.row_words - instruction.out_w * lies.pixel_words,
            )  # fmt: skip
        if group.skip is not None and (spec := group.add_spec) is not None:
            instruction = replace(
                instruction, has_add=1, src2=self.address(group.skip),
                addend=self.store(group, "addend", self.addends, _pairs(group), config.addends),
                zp_a=spec.y.zero_point, lo_a=spec.lo, hi_a=spec.hi,
            )  # fmt: skip
        elif group.skip is not None:
            instruction = replace(instruction, src2=self.address(group.skip))
        if group.table is not None:
            data = np.asarray(group.table, np.uint8).tobytes()
            index = self.store(group, "table", self.tables, data, config.tables)
            instruction = replace(instruction, has_table=1, table=index)
        return instruction

    def store(self, group: Group, kind: str, pool: Pool, data: bytes, limit: int) -> int:
        at = pool.add(data)
        if pool.words > limit:
            raise CompileError(
                f"layer '{group.name}': the stage needs {pool.words} words of {kind} memory up to "
                f"here, the engine has {limit}; end the FPGA stage before it, "
                "or choose an engine with more"
            )
        return at

    def address(self, name: str, channel: int = 0) -> int:
        at, first = self.joints.locate(name)
        place = self.places.get(twin(at), self.places[at]) if self.odd else self.places[at]
        return place + (first + channel) // self.config.word_bytes

    def pixel_words(self, name: str, part: bool = False) -> int:
        """Words of the joint tensor's pixels; 0 for a tensor of its own."""
        at = self.joints.locate(name)[0]
        if at == self.joints.root[name] and not part:
            return 0
        return -(-hwc_of(self.graph.tensors[at].shape)[2] // self.config.word_bytes)

    def port(self, name: str) -> Port:
        tensor = self.graph.tensors[name]
        at, form, words = self.address(name), self.forms.get(name), self.pixel_words(name)
        return Port(name, at, hwc_of(tensor.shape), tensor.dtype, form, words)

    def result(self, group: Group) -> Port:
        """Where a layer's result lies: all of its tensor, a run of channels or a phase."""
        found = self.port(group.output)
        if group.part is not None:
            first, count = group.part
            found = replace(
                found, offset=self.address(group.output, first), hwc=(*found.hwc[:2], count),
                pixel_words=self.pixel_words(group.output, part=True), channel=first,
            )  # fmt: skip
        if group.phase is not None:
            (h, w, c), (y, x), factors = found.hwc, group.phase, _factors(group)
            step = found.pixel_words or -(-c // self.config.word_bytes)
            found = replace(
                found, offset=found.offset + (y * w + x) * step,
                hwc=(h // factors[0], w // factors[1], c), pixel_words=factors[1] * step,
                spread=factors, pixel=group.phase, row_words=factors[0] * w * step,
            )  # fmt: skip
        if group.shown is not None:
            found = replace(found, tensor=group.shown[0], channel=group.shown[1])
        return found

    def note(self, index: int, group: Group, instruction: Instruction) -> LayerNote:
        return LayerNote(
            instruction=index,
            unit=group.name,
            nodes=tuple(node for unit in (*group.views, *group.units) for node in unit.nodes),
            output=self.result(group),
            macs=sum(unit.macs for unit in group.units),
            # A run on its own has nothing for its first layer to overlap with.
            cycles=predicted_cycles(
                self.config, instruction if index else replace(instruction, early=0)
            ),
            stalls=predicted_stalls(self.config, instruction),
        )


def _factors(group: Group) -> tuple[int, int]:
    assert group.head is not None
    assert isinstance(group.head.spec, ResizeSpec)
    return group.head.spec.factors


def _pairs(group: Group) -> bytes:
    """256 pairs of int32: for the instruction's own result, for the skip tensor."""
    assert group.add_spec is not None
    found = solve(group.add_spec)
    own, skip = (found.b, found.a) if group.swapped else (found.a, found.b)
    return np.stack([own, skip], axis=1).astype("<i4").tobytes()
