"""Walks a `Graph` with the functions of `golden`: every tensor's bytes, in ONNX order.

Units outside the contract ("other", and "view" where the model is at hand) run in onnxruntime on
the model's own nodes with optimisation disabled.
"""

from __future__ import annotations

from typing import Any

import golden
import numpy as np
import onnx_ir
import onnxruntime

from trivet.compiler.units import (
    AddSpec,
    Array,
    ConcatSpec,
    ConvSpec,
    Graph,
    MulSpec,
    PadSpec,
    PoolSpec,
    ResizeSpec,
    TableSpec,
    Unit,
)


def run(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    """All tensors of the graph for one item: the inputs and every unit's outputs."""
    values = {name: np.asarray(inputs[name]) for name in graph.inputs}
    for unit in graph.units:
        values.update(run_unit(graph, unit, values))
    return values


def run_unit(graph: Graph, unit: Unit, values: dict[str, Array]) -> dict[str, Array]:
    """One unit's outputs from its inputs in ``values``."""
    spec = unit.spec
    if spec is None:
        return _run_nodes(graph, unit, values)
    x = values[unit.inputs[0]]
    y = spec.y
    zero = y.zero_point
    if isinstance(spec, ConcatSpec):
        parts = [
            values[n] if entries is None else golden.table(values[n], entries, y.dtype)
            for n, entries in zip(unit.inputs, spec.tables, strict=True)
        ]
        return {unit.outputs[0]: golden.concat(parts)}
    if isinstance(spec, ResizeSpec):
        return {unit.outputs[0]: golden.nearest(x, spec.factors)}
    if isinstance(spec, PadSpec):
        return {unit.outputs[0]: golden.pad(x, spec.pads, spec.value)}
    if isinstance(spec, ConvSpec) and spec.matrix:
        weight = spec.weight[:, :, 0, 0]
        value = golden.matmul(
            x, weight, spec.bias, spec.m, spec.x.zero_point, zero, spec.lo, spec.hi, y.dtype
        )
    elif isinstance(spec, ConvSpec):
        value = golden.conv(
            x,
            spec.weight,
            spec.bias,
            spec.m,
            spec.x.zero_point,
            zero,
            spec.lo,
            spec.hi,
            spec.stride,
            spec.dilation,
            spec.pads,
            spec.groups,
            y.dtype,
        )
    elif isinstance(spec, AddSpec):
        quants = (spec.a, spec.b, y)
        value = golden.add(
            x,
            values[unit.inputs[1]],
            *(float(q.scale) for q in quants),
            *(q.zero_point for q in quants),
            spec.lo,
            spec.hi,
            spec.subtract,
            y.dtype,
        )
    elif isinstance(spec, MulSpec):
        quants = (spec.a, spec.b, y)
        value = golden.mul(
            x,
            values[unit.inputs[1]],
            *(float(q.scale) for q in quants),
            *(q.zero_point for q in quants),
            spec.lo,
            spec.hi,
            y.dtype,
        )
    elif isinstance(spec, PoolSpec) and spec.op == "max":
        value = golden.maxpool(x, spec.kernel, spec.stride, spec.pads, spec.lo, spec.hi)
    elif isinstance(spec, PoolSpec):
        window = (spec.kernel, spec.stride, spec.pads)
        points = (spec.x.zero_point, zero, spec.lo, spec.hi)
        value = golden.avgpool(x, *window, float(spec.m), *points, y.dtype)
    else:
        assert isinstance(spec, TableSpec)
        return {unit.outputs[0]: golden.table(x, spec.table, y.dtype)}
    if spec.table is not None:
        value = golden.table(value, spec.table)
    return {unit.outputs[0]: value}


_sessions: dict[tuple[str, str], Any] = {}


def _run_nodes(graph: Graph, unit: Unit, values: dict[str, Array]) -> dict[str, Array]:
    if graph.model is None:
        assert unit.kind == "view", f"unit {unit.name!r} needs the model's nodes"
        (source,), (out,) = unit.inputs, unit.outputs
        return {out: values[source].reshape(graph.tensors[out].shape)}
    key = (graph.model_sha256, unit.name)
    if key not in _sessions:
        _sessions[key] = _session(graph, unit)
    found = _sessions[key].run(list(unit.outputs), {n: values[n] for n in unit.inputs})
    return dict(zip(unit.outputs, found, strict=True))


def _session(graph: Graph, unit: Unit) -> Any:
    ends = (list(unit.inputs), list(unit.outputs))
    part = onnx_ir.Model(
        onnx_ir.convenience.extract(graph.model.graph, *ends),
        ir_version=min(graph.model.ir_version, 10),
        functions=list(graph.model.functions.values()),
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        onnx_ir.to_proto(part).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
