"""A convolution pads its input itself: rows and columns of zeros in front of one disappear."""

from __future__ import annotations

import onnx_ir as ir

from .graph import attribute, constant, is_op, only_consumer, same_parameters

__all__ = ["PadIntoConv", "zero_pads"]


class PadIntoConv(ir.passes.InPlacePass):
    """Turn ``Conv(Pad(x))`` into ``Conv(x, pads=...)``, also over a quantise and dequantise.

    Requires: constants folded, QDQ form. Ensures: the same bytes; the Conv keeps its name. Left
    alone: pads of channels, of other numbers than 0 or below 0, other modes, ``auto_pad`` SAME_*, a
    padded tensor that others read or that is a graph output, one that is quantised otherwise than
    before the Pad.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in list(model.graph):
            if is_op(node, "Pad"):
                modified |= self._fuse(model.graph, node)
        return ir.passes.PassResult(model, modified)

    def _fuse(self, graph: ir.Graph, pad: ir.Node) -> bool:
        pads, source = zero_pads(pad), pad.inputs[0]
        chain = [pad]
        reader = only_consumer(pad.outputs[0])
        if reader is not None and is_op(reader, "QuantizeLinear"):
            before = source.producer() if source is not None else None
            after = only_consumer(reader.outputs[0])
            if before is None or not is_op(before, "DequantizeLinear"):
                return False
            if after is None or not is_op(after, "DequantizeLinear"):
                return False
            if not same_parameters(before, reader) or not same_parameters(reader, after):
                return False
            chain += [reader, after]
            reader = only_consumer(after.outputs[0])
        if pads is None or source is None or reader is None or not is_op(reader, "Conv"):
            return False
        if reader.inputs[0] is not chain[-1].outputs[0]:
            return False
        if attribute(reader, "auto_pad", "NOTSET") not in ("NOTSET", "VALID", ""):
            return False
        own = [int(p) for p in attribute(reader, "pads", (0, 0, 0, 0))]
        if len(own) != 4:
            return False
        reader.attributes["pads"] = ir.AttrInt64s(
            "pads", [a + b for a, b in zip(own, pads, strict=True)]
        )
        reader.attributes.pop("auto_pad", None)
        reader.replace_input_with(0, source)
        graph.remove(chain[::-1], safe=True)
        return True


def zero_pads(pad: ir.Node) -> tuple[int, int, int, int] | None:
    """Rows and columns of zeros that a Pad adds to an image: top, left, bottom, right."""
    source = pad.inputs[0]
    if source is None or source.shape is None or len(source.shape) != 4:
        return None
    if attribute(pad, "mode", "constant") != "constant":
        return None
    operands = [*pad.inputs[1:], None, None, None][:3]
    found = [None if value is None else constant(value) for value in operands]
    if any(v is not None and f is None for v, f in zip(operands, found, strict=True)):
        return None
    pads, value, axes = found
    if pads is None or (value is not None and value.reshape(-1)[0] != 0):
        return None
    along = list(range(4)) if axes is None else [int(a) % 4 for a in axes.reshape(-1)]
    ends = [[0] * 4, [0] * 4]
    for k, number in enumerate(pads.reshape(-1)):
        ends[k // len(along)][along[k % len(along)]] = int(number)
    if any(ends[0][:2]) or any(ends[1][:2]) or min(*ends[0], *ends[1]) < 0:
        return None
    return ends[0][2], ends[0][3], ends[1][2], ends[1][3]
