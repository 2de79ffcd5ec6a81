"""Lowers the units of one FPGA stage to a program of the engine.

Named steps, top to bottom: views resolved, units fused into instructions, instructions built,
memory allocated; compiler/assemble.py packs memories and writes addresses and notes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trivet.hdl.config import EngineConfig
from trivet.hdl.isa import Expand, Program

from .addends import InexactAdd, solve
from .allocate import Step, allocate
from .assemble import Assembler, twin
from .contract import edges
from .errors import CompileError
from .fuse import Group, fuse
from .joint import Joints
from .layers import (
    Layer,
    Unfit,
    conv_layer,
    copy_layer,
    expanded_layer,
    expansion,
    mul_layer,
    pad_layer,
    pool_layer,
)
from .layout import hwc_of, is_direct, nhwc_index, view_index, words_of
from .products import InexactMul, factor
from .spread import is_spread, spread, spread_concats
from .units import (
    AddSpec,
    Array,
    ConcatSpec,
    ConvSpec,
    Graph,
    MulSpec,
    PadSpec,
    PoolSpec,
    ResizeSpec,
    Unit,
)

__all__ = ["lower", "refusal"]

# Cycles of a run, at the least, during which the host has another one queued behind it. Given, not
# measured on a board: 10 us at 100 MHz; a RUN and its answer alone are about 130 cycles of a link
# of a byte a cycle.
_ROUND_TRIP = 1000


@dataclass(frozen=True)
class _Value:
    """A tensor as stored: ``root`` is the tensor in memory, ``index`` (ONNX shape) where each
    element lies in its NHWC order; None when the tensor lies just like its root."""

    root: str
    index: Array | None = None


def lower(
    graph: Graph,
    unit_names: Iterable[str],
    config: EngineConfig,
    *,
    expand: bool = True,
    overlap: bool = False,
) -> Program:
    """The program that computes ``unit_names``; CompileError names the layer that does not fit.

    Inputs and outputs are the tensors that cross the set's border (NHWC, unpadded on the link).
    ``expand``: inputs of few channels may be stored spread over their convolution's windows
    (:class:`trivet.hdl.isa.Expand`); they are where memory allows.
    ``overlap``: the program gets a second form (:class:`trivet.hdl.isa.Odd`) where memory for
    twice the outputs, and for twice the instructions, allows; with inputs of its own where they fit
    twice, else with the first form's, if the layers after their last reader take long enough.
    Expansion comes before that.
    """
    chosen = set(unit_names)
    inputs, outputs = edges(graph, chosen)  # refuses unknown names
    units = [u for u in graph.units if u.name in chosen]
    for unit in units:
        if unit.spec is None and unit.kind != "view":
            raise CompileError(f"node '{unit.name}': {_not_for_engine(unit)}")
    _check_convex(graph, chosen)
    values = _resolve_views(graph, units, inputs)
    for name in outputs:
        if values[name].index is not None:
            raise CompileError(
                f"tensor '{name}': it leaves the FPGA stage through a view that moves bytes; "
                "place that view's node on a CPU or GPU"
            )
    _check_joints(graph, units, config)
    graph, spreads = spread_concats(graph, chosen, config)
    units = [u for u in graph.units if u.name in chosen]
    values.update((name, _Value(name)) for name in spreads)
    roots = {name: value.root for name, value in values.items()}
    joints = Joints(graph, roots, {*inputs, *outputs}, config.word_bytes, spreads)
    groups = fuse(graph, units, joints)
    if not groups:
        raise CompileError(
            f"graph '{graph.name}': the FPGA stage computes nothing; add a layer to it or drop it"
        )
    _adopt_views(units, groups)
    layers = [_build(graph, group, values, config) for group in groups]
    forms = _expansions(graph, groups, values, inputs, outputs, config) if expand else {}
    # A compact engine queues no run: a second form would only take memory.
    overlap = overlap and not config.compact and 2 * (len(groups) + 1) <= config.instructions
    release = _release(groups, layers, values, inputs)
    # Expanded buffers are shared with nothing, nor are those of two forms; others are smaller.
    sides = [(inputs, outputs), *([(outputs,)] if release else [])] if overlap else []
    ways = [(f, twice) for f in ((forms, {}) if forms else ({},)) for twice in (*sides, ())]
    while True:
        (forms, twice), *ways = ways
        ports = {joints.locate(name)[0] for side in twice for name in side}
        kept = {*forms, *(joints.locate(name)[0] for name in inputs if len(twice) == 1)}
        try:
            places = _allocate(graph, groups, joints, inputs, outputs, config, kept, forms, ports)
            break
        except CompileError:
            if not ways:
                raise
    for k, group in enumerate(groups):
        if (form := forms.get(values[group.source].root)) is not None:
            assert group.head is not None
            assert isinstance(group.head.spec, ConvSpec)
            out = hwc_of(graph.tensors[group.head.outputs[0]].shape)
            layers[k] = expanded_layer(group.head.spec, form, out, config)
    free = release if len(twice) == 1 else 0
    assembler = Assembler(graph, config, joints, places, forms, bool(twice), free)
    return assembler.assemble(groups, layers, inputs, outputs)


def refusal(graph: Graph, unit: Unit, config: EngineConfig) -> str | None:
    """Why this unit cannot go on an engine of ``config``; None when nothing forbids it.

    What several units need together (memory, instructions, tables) only :func:`lower` can tell.
    """
    if "fpga" in unit.refusals:
        return unit.refusals["fpga"]
    if unit.spec is None and unit.kind != "view":
        return _not_for_engine(unit)
    try:
        _check_tensors(graph, unit, config)
        if unit.kind == "view":
            _check_view(graph, unit, config)
        elif isinstance(unit.spec, AddSpec | MulSpec):
            _check_pair(graph, unit, unit.spec, config)
        elif isinstance(unit.spec, ConcatSpec):
            _check_concat(graph, unit, config)
        else:
            source = unit.inputs[0]
            if getattr(unit.spec, "table", None) is not None:
                _check_table(config)
            _head_layer(graph, unit, source, _Value(source), config)
    except (Unfit, InexactAdd, InexactMul) as e:
        return str(e)
    return None


def _check_convex(graph: Graph, chosen: set[str]) -> None:
    """A program runs in one go: it cannot wait for what others make from its own results."""
    late: dict[str, str] = {}  # what units outside make from the stage's results -> that unit
    own: set[str] = set()
    for unit in graph.units:
        if unit.name in chosen:
            own.update(unit.outputs)
            for name in unit.inputs:
                if name in late:
                    raise CompileError(
                        f"node '{unit.name}': it reads '{name}', which '{late[name]}' outside the "
                        "FPGA stage makes from the stage's own results; cut the stage between them"
                    )
        elif any(name in own or name in late for name in unit.inputs):
            late.update((name, unit.name) for name in unit.outputs)


def _not_for_engine(unit: Unit) -> str:
    return unit.refusals.get(
        "fpga", "the engine has no instruction for it; place it on a CPU or GPU"
    )


# Views


def _resolve_views(graph: Graph, units: list[Unit], inputs: tuple[str, ...]) -> dict[str, _Value]:
    values = {name: _Value(name) for name in inputs}
    for unit in units:
        try:
            for name in (*unit.inputs, *unit.outputs):
                _check_tensor(graph, name)
            if unit.kind == "view":
                values[unit.outputs[0]] = _through_view(graph, unit, values[unit.inputs[0]])
            else:
                values.update((name, _Value(name)) for name in unit.outputs)
        except Unfit as e:
            raise CompileError(f"node '{unit.name}': {e}") from e
    return values


def _through_view(graph: Graph, unit: Unit, before: _Value) -> _Value:
    shape, root_shape = graph.tensors[unit.inputs[0]].shape, graph.tensors[before.root].shape
    places = nhwc_index(shape) if before.index is None else before.index
    try:
        index = view_index(graph, unit, places)
    except ValueError as e:
        raise Unfit(f"{e}; place it on a CPU or GPU") from e
    return _Value(before.root, None if is_direct(index, hwc_of(root_shape)) else index)


def _check_view(graph: Graph, unit: Unit, config: EngineConfig) -> None:
    """A view must move no byte, or be undone by the weights of every Gemm that reads it."""
    source = unit.inputs[0]
    chain = {unit.outputs[0]: _through_view(graph, unit, _Value(source))}
    for user in graph.units:
        for name in user.inputs:
            value = chain.get(name)
            if value is None or value.index is None:
                continue
            if user.kind == "view":
                chain[user.outputs[0]] = _through_view(graph, user, value)
            elif user.kind != "conv":
                raise Unfit(
                    f"it moves bytes in NHWC and feeds '{user.name}', whose weights cannot undo "
                    "that; place it on a CPU or GPU"
                )
            else:
                _head_layer(graph, user, name, value, config)
    if any(chain[n].index is not None for n in chain if n in graph.outputs):
        raise Unfit(
            "it moves bytes in NHWC and is an output of the model; place it on a CPU or GPU"
        )


def _adopt_views(units: list[Unit], groups: list[Group]) -> None:
    """Note each view with the layer that reads it, or else with the one that it follows."""
    for unit in units:
        if unit.kind != "view":
            continue
        (source,), (out,) = unit.inputs, unit.outputs
        reader = next((g for g in groups if out in (g.source, g.skip)), None)
        maker = next((g for g in groups if g.output == source), None)
        (reader or maker or groups[0]).views.append(unit)


# One unit, one instruction


def _check_tensor(graph: Graph, name: str) -> None:
    tensor = graph.tensors[name]
    if tensor.quant is None or tensor.dtype not in ("int8", "uint8"):
        raise Unfit(
            f"tensor '{name}' is {tensor.dtype}, the engine takes quantised int8 or uint8; "
            "quantise the model or place it on a CPU or GPU"
        )
    try:
        hwc_of(tensor.shape)
    except ValueError as e:
        raise Unfit(f"tensor '{name}' {e}") from e


def _check_tensors(graph: Graph, unit: Unit, config: EngineConfig) -> None:
    """Dtypes, shapes and the least activation memory: one input beside the output."""
    for name in (*unit.inputs, *unit.outputs):
        _check_tensor(graph, name)
    sizes = {
        n: words_of(hwc_of(graph.tensors[n].shape), config) for n in (*unit.inputs, *unit.outputs)
    }
    own = 0 if unit.kind == "view" else sizes[unit.outputs[0]]
    need = own + max(sizes[n] for n in unit.inputs)
    if need > config.act_words:
        raise Unfit(
            f"its input and output need {need} words of activation memory, the engine has "
            f"{config.act_words}; choose an engine with more or keep it on a CPU or GPU"
        )


def _check_concat(graph: Graph, unit: Unit, config: EngineConfig) -> None:
    if isinstance(unit.spec, ConcatSpec) and any(t is not None for t in unit.spec.tables):
        _check_table(config)
    shapes = [graph.tensors[n].shape for n in unit.inputs]
    if len({len(s) for s in shapes}) > 1 or len({hwc_of(s)[:2] for s in shapes}) > 1:
        raise Unfit(f"it joins tensors of shapes {shapes}; place it on a CPU or GPU")
    if is_spread(graph, unit, config):
        wide, (join, close) = spread(graph, unit, config)
        _check_tensors(wide, join, config)
        _check_tensors(wide, close, config)
        _head_layer(wide, close, close.inputs[0], _Value(close.inputs[0]), config)


def _check_joints(graph: Graph, units: list[Unit], config: EngineConfig) -> None:
    for unit in units:
        if isinstance(unit.spec, ConcatSpec):
            try:
                _check_concat(graph, unit, config)
            except Unfit as e:
                raise CompileError(f"node '{unit.name}': {e}") from e


def _check_pair(graph: Graph, unit: Unit, spec: AddSpec | MulSpec, config: EngineConfig) -> None:
    does = "adds" if isinstance(spec, AddSpec) else "multiplies"
    shapes = {graph.tensors[n].shape for n in (*unit.inputs, *unit.outputs)}
    gate = {(*s[:2], 1, 1) for s in shapes if len(s) == 4}
    single = isinstance(spec, MulSpec) and len(gate) == 1 and len(shapes - gate) == 1
    if len(shapes) > 1 and not single:
        raise Unfit(
            f"it broadcasts shapes {sorted(shapes)}, the engine {does} equal shapes; "
            "place it on a CPU or GPU"
        )
    if unit.inputs[0] == unit.inputs[1]:
        _check_table(config)
        return
    if isinstance(spec, AddSpec) and not config.addends:
        raise Unfit(
            "it adds two tensors, the engine has no addend tables; choose one with some, "
            "or keep it on a CPU or GPU"
        )
    if isinstance(spec, MulSpec) and not config.has_product:
        raise Unfit(
            "it multiplies two tensors, which only engines with addend tables and without a "
            "serial requantiser do; choose such a one, or keep it on a CPU or GPU"
        )
    if config.act_banks < 2:
        raise Unfit(
            "it reads two tensors at once, the engine has 1 activation bank; choose one with 2"
        )
    if isinstance(spec, AddSpec):
        solve(spec)
    else:
        factor(spec)


def _check_table(config: EngineConfig) -> None:
    if not config.tables:
        raise Unfit(
            "it maps bytes through a table, the engine has none; choose one with tables, "
            "or keep it on a CPU or GPU"
        )


def _head_layer(
    graph: Graph, unit: Unit, source: str, value: _Value, config: EngineConfig
) -> Layer:
    """The instruction of a Conv or pool that reads ``source``, stored as ``value`` says."""
    spec = unit.spec
    shape, out = graph.tensors[source].shape, hwc_of(graph.tensors[unit.outputs[0]].shape)
    if isinstance(spec, ConvSpec) and spec.matrix and len(shape) > 3:
        raise Unfit(
            f"a matrix product of {len(shape)} axes, the engine takes up to 3; "
            "place it on a CPU or GPU"
        )
    if isinstance(spec, ConvSpec | PoolSpec | PadSpec | ResizeSpec) and not (
        (isinstance(spec, ConvSpec) and spec.matrix) or len(shape) == 4
    ):
        raise Unfit(
            f"its input has {len(shape)} axes, the engine takes images of 4; "
            "place it on a CPU or GPU"
        )
    if value.index is None and isinstance(spec, ConvSpec):
        return conv_layer(spec, hwc_of(shape), out, config)
    if value.index is None and isinstance(spec, PoolSpec):
        return pool_layer(spec, hwc_of(shape), out, config)
    if value.index is not None and isinstance(spec, ConvSpec) and spec.matrix and out[:2] == (1, 1):
        root = hwc_of(graph.tensors[value.root].shape)
        return conv_layer(spec, root, out, config, value.index.reshape(-1))
    if value.index is not None:
        raise Unfit(
            f"it reads '{source}' through a view that moves bytes in NHWC; "
            "place that view on a CPU or GPU"
        )
    if isinstance(spec, PadSpec):
        return pad_layer(spec, hwc_of(shape), out, config)
    quant = graph.tensors[source].quant
    assert quant is not None
    return copy_layer(quant, hwc_of(shape), config)


def _build(graph: Graph, group: Group, values: dict[str, _Value], config: EngineConfig) -> Layer:
    unit = group.add or group.units[0]
    try:
        if group.skip is not None and values[group.skip].index is not None:
            raise Unfit(
                f"it reads '{group.skip}' through a view that moves bytes; "
                "place that view on a CPU or GPU"
            )
        if group.add is not None and group.add_spec is not None:
            _check_pair(graph, group.add, group.add_spec, config)
        unit = group.head or group.units[0]
        layer = _head_layer(graph, unit, group.source, values[group.source], config)
        if group.skip is not None and isinstance(unit.spec, MulSpec):
            _check_pair(graph, unit, unit.spec, config)
            spec = unit.spec
            if group.swapped:
                spec = replace(spec, a=spec.b, b=spec.a)
            hwc, out = (hwc_of(graph.tensors[n].shape) for n in (group.source, group.skip))
            layer = mul_layer(spec, factor(spec), hwc, out, config)
        return layer
    except (Unfit, InexactAdd, InexactMul) as e:
        raise CompileError(f"node '{unit.name}': {e}") from e


# The whole stage


def _expansions(
    graph: Graph,
    groups: list[Group],
    values: dict[str, _Value],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    config: EngineConfig,
) -> dict[str, Expand]:
    """Inputs that one convolution alone reads, and that it would rather have expanded."""
    found: dict[str, Expand] = {}
    kept = {values[name].root for name in outputs}
    for name in inputs:
        readers = [
            (g, n) for g in groups for n in (g.source, g.skip) if n and values[n].root == name
        ]
        if name in kept or len(readers) != 1:
            continue
        group, source = readers[0]
        head = group.head
        if head is None or source != group.source or not isinstance(head.spec, ConvSpec):
            continue
        if values[source].index is None:
            hwc, out = (hwc_of(graph.tensors[n].shape) for n in (source, head.outputs[0]))
            form = expansion(head.spec, hwc, out, config)
            if form is not None:
                found[name] = form
    return found


def _allocate(
    graph: Graph,
    groups: list[Group],
    joints: Joints,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    config: EngineConfig,
    kept: set[str],
    forms: dict[str, Expand],
    ports: set[str],
) -> dict[str, int]:
    steps = [
        Step(
            g.name,
            tuple(joints.locate(n)[0] for n in (g.source, g.skip) if n is not None),
            joints.locate(g.output)[0],
        )
        for g in groups
    ]
    stored = dict.fromkeys((*inputs, *(step.writes for step in steps)))
    shapes = {name: hwc_of(graph.tensors[name].shape) for name in stored}
    shapes.update((name, form.stored) for name, form in forms.items())
    sizes = {name: words_of(shape, config) for name, shape in shapes.items()}
    ends = [joints.locate(name)[0] for name in outputs]
    twins = {name: twin(name) for name in sorted(ports)}
    sizes.update((twin, sizes[name]) for name, twin in twins.items())
    return allocate(steps, sizes, inputs, ends, config, sorted(kept), twins)


def _release(
    groups: list[Group], layers: list[Layer], values: dict[str, _Value], inputs: tuple[str, ...]
) -> int:
    """Instructions after which no input is read; 0 where it is not worth while to say so.

    An item is two runs then. The second must reach the board while the first runs, and the next
    inputs while the second does.
    """
    fed = {values[name].root for name in inputs}
    last = max(
        k for k, g in enumerate(groups)
        if fed.intersection(values[n].root for n in (g.source, g.skip) if n is not None)
    )  # fmt: skip
    work = [layer.instruction.work for layer in layers]
    return last + 1 if min(sum(work[: last + 1]), sum(work[last + 1 :])) >= _ROUND_TRIP else 0
