"""A layer split over devices by its output channels: each part is a graph of one unit."""

from __future__ import annotations

from dataclasses import replace

from .units import ConvSpec, Graph, Unit

__all__ = ["part_name", "shard_axis", "split_refusal", "split_unit"]


def part_name(tensor: str, index: int) -> str:
    """The tensor that part ``index`` writes, as bundles name it."""
    return f"{tensor}/{index}"


def split_refusal(unit: Unit, parts: int) -> str | None:
    """Why a unit cannot be split into that many parts; None when it can."""
    if unit.kind != "conv" or not isinstance(unit.spec, ConvSpec):
        return "only Conv, Gemm and MatMul are split"
    if unit.spec.groups != 1:
        return f"it has {unit.spec.groups} groups, each of which reads other channels"
    channels = unit.spec.weight.shape[0]
    if channels < parts:
        return f"it has {channels} output channels, fewer than {parts}"
    return None


def shard_axis(graph: Graph, unit: Unit, nhwc: bool) -> int:
    """The axis of the unit's output, as it travels, that the channels lie along."""
    rank = len(graph.tensors[unit.outputs[0]].shape)
    return 1 if rank == 4 and not nhwc else rank - 1


def split_unit(graph: Graph, name: str, parts: int) -> tuple[Graph, ...]:
    """Graphs that hold the unit alone with a run of its output channels each, in order.

    The runs differ by one channel at most. Inputs are the unit's; part k writes ``OUTPUT/k``.
    ValueError for a unit that :func:`split_refusal` refuses.
    """
    unit = graph.unit(name)
    reason = split_refusal(unit, parts)
    if reason is not None:
        raise ValueError(f"unit {name!r} cannot be split into {parts}: {reason}")
    spec = unit.spec
    assert isinstance(spec, ConvSpec)
    channels = spec.weight.shape[0]
    (output,) = unit.outputs
    axis = shard_axis(graph, unit, nhwc=False)
    found = []
    for k in range(parts):
        own = slice(channels * k // parts, channels * (k + 1) // parts)
        count = own.stop - own.start
        shape = list(graph.tensors[output].shape)
        shape[axis] = count
        made = part_name(output, k)
        sliced = replace(
            spec,
            weight=spec.weight[own],
            bias=spec.bias[own],
            w_scale=spec.w_scale[own],
            m=spec.m[own],
        )
        piece = replace(unit, outputs=(made,), spec=sliced, macs=unit.macs * count // channels)
        tensors = {n: graph.tensors[n] for n in unit.inputs}
        tensors[made] = replace(graph.tensors[output], name=made, shape=tuple(shape))
        found.append(
            replace(graph, units=(piece,), tensors=tensors, inputs=unit.inputs, outputs=(made,))
        )
    return tuple(found)
