"""Small random `Graph` values for the tests of everything behind the front end.

`random_graph(seed, size)` mixes every kind of unit; `single(kind, seed)` has one unit only.
Deterministic: the same arguments give the same graph. Scales are chosen from sample data that
flows along while the graph is built, so most outputs are neither saturated nor constant.
`Graph.model` is None: "view" units mean `np.reshape` in ONNX order.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import golden
import numpy as np

from trivet.compiler.units import (
    AddSpec,
    Array,
    ConcatSpec,
    ConvSpec,
    Graph,
    MulSpec,
    PadSpec,
    PoolSpec,
    Quant,
    ResizeSpec,
    Spec,
    TableSpec,
    Tensor,
    Unit,
)

Kind = Literal[
    "conv",
    "depthwise",
    "matrix",
    "add",
    "sub",
    "max",
    "average",
    "table",
    "concat",
    "pad",
    "resize",
    "mul",
]
KINDS: tuple[Kind, ...] = ("conv", "depthwise", "matrix", "add", "sub", "max", "average", "table")
ALL_KINDS: tuple[Kind, ...] = (
    *KINDS,
    "concat",
    "pad",
    "resize",
    "mul",
)  # KINDS stays: seeds mean the same graphs
Dtype = Literal["int8", "uint8"]


def random_inputs(graph: Graph, seed: int, count: int = 1) -> list[dict[str, Array]]:
    """Full-range inputs of the graph; the first half uniform, the rest mostly at the extremes."""
    rng = np.random.default_rng([seed, 77])
    feeds = []
    for index in range(count):
        feed = {}
        for name in graph.inputs:
            tensor = graph.tensors[name]
            info = np.iinfo(tensor.dtype)
            values = rng.integers(info.min, info.max + 1, tensor.shape)
            if index >= (count + 1) // 2:
                extreme = rng.choice([info.min, info.max], tensor.shape)
                values = np.where(rng.random(tensor.shape) < 0.9, extreme, values)
            feed[name] = values.astype(tensor.dtype)
        feeds.append(feed)
    return feeds


def random_graph(
    seed: int,
    size: int = 6,
    *,
    dtype: Dtype | None = None,
    channels: int = 40,
    side: int = 12,
    kinds: tuple[Kind, ...] = KINDS,
    tables: bool = True,
    any_groups: bool = False,
) -> Graph:
    """A chain with residual branches of about ``size`` units.

    ``channels`` and ``side`` bound the tensors; ``kinds`` the ops (a "matrix" comes after a view at
    the end, or from the start in some seeds); ``tables`` allows fused tables; ``any_groups`` allows
    grouped convolutions other than depthwise.
    """
    return _Builder(seed, dtype, channels, side, tables, any_groups).chain(size, kinds)


def single(
    kind: Kind,
    seed: int,
    *,
    dtype: Dtype | None = None,
    channels: int = 40,
    side: int = 12,
    tables: bool = True,
    any_groups: bool = False,
) -> Graph:
    """A graph of one unit of that kind."""
    builder = _Builder(seed, dtype, channels, side, tables, any_groups)
    if kind == "matrix":
        builder.step(kind, builder.matrix_input())
    elif kind in ("add", "sub", "mul"):
        first = builder.image_input()
        second = builder.new_input(builder.tensors[first].shape)
        builder.join(kind, first, second)
    elif kind == "concat":
        builder.branches(builder.image_input())
    else:
        builder.step(kind, builder.image_input())
    return builder.graph()


class _Builder:
    """Grows a graph unit by unit, with one sample value per tensor."""

    def __init__(
        self,
        seed: int,
        dtype: Dtype | None,
        channels: int,
        side: int,
        tables: bool,
        any_groups: bool,
    ) -> None:
        self.seed = seed
        self.rng = np.random.default_rng([seed, 2026])
        self.dtype: Dtype = dtype or ("int8" if self.rng.random() < 0.6 else "uint8")
        self.channels, self.side = channels, side
        self.tables, self.any_groups = tables, any_groups
        self.word = 16 if channels >= 16 else 4  # bytes of a memory word: where a Concat may join
        self.tensors: dict[str, Tensor] = {}
        self.values: dict[str, Array] = {}
        self.inputs: list[str] = []
        self.units: list[Unit] = []

    # Graphs

    def chain(self, size: int, kinds: tuple[Kind, ...]) -> Graph:
        images = [kind for kind in kinds if kind != "matrix"]
        wants_matrix = "matrix" in kinds
        if not images or (wants_matrix and self.rng.random() < 0.15):
            here = self.matrix_input()
            while len(self.units) < size:
                here = self.step("matrix", here)
            return self.graph()
        here = self.image_input()
        tail = min(size - 1, int(self.rng.integers(1, 3))) if wants_matrix else 0
        while len(self.units) < max(1, size - tail - (1 if tail else 0)):
            kind = images[self.rng.integers(len(images))]
            if kind in ("add", "sub", "mul"):
                here = self.residual(kind, here)
            else:
                here = self.branches(here) if kind == "concat" else self.step(kind, here)
        if tail:
            here = self.flatten(here)
            for _ in range(tail):
                here = self.step("matrix", here)
        return self.graph()

    def graph(self) -> Graph:
        used = {name for unit in self.units for name in unit.inputs}
        outputs = tuple(n for unit in self.units for n in unit.outputs if n not in used)
        digest = hashlib.sha256(f"random graph {self.seed} {len(self.units)}".encode())
        for unit in self.units:
            digest.update(repr((unit.name, unit.inputs, unit.spec)).encode())
        return Graph(
            name=f"random{self.seed}",
            model_sha256=digest.hexdigest(),
            units=tuple(self.units),
            tensors=self.tensors,
            inputs=tuple(self.inputs),
            outputs=outputs,
            model=None,
        )

    def image_input(self) -> str:
        height, width = (int(v) for v in self.rng.integers(1, self.side + 1, 2))
        depth = 1 + int(self.rng.integers(0, self.channels) * self.rng.random())
        return self.new_input((1, depth, height, width))

    def matrix_input(self) -> str:
        rows = 1 if self.rng.random() < 0.6 else int(self.rng.integers(1, 9))
        return self.new_input((rows, int(self.rng.integers(1, 4 * self.channels + 1))))

    def new_input(self, shape: tuple[int, ...]) -> str:
        quant = Quant(self.random_scale(), self.random_zero_point(), self.dtype)
        name = f"x{len(self.inputs)}"
        sample = self.rng.integers(quant.lo, quant.hi + 1, shape).astype(self.dtype)
        self.tensors[name] = Tensor(name, self.dtype, shape, quant)
        self.values[name] = sample
        self.inputs.append(name)
        return name

    def emit(
        self,
        kind: Any,
        inputs: tuple[str, ...],
        quant: Quant,
        value: Array,
        spec: Spec | None,
        macs: int,
    ) -> str:
        index = len(self.units)
        name, out = f"{kind}_{index}", f"t{index}"
        self.tensors[out] = Tensor(out, str(value.dtype), value.shape, quant)
        self.values[out] = value
        self.units.append(Unit(name, kind, (name,), inputs, (out,), spec, macs=macs))
        return out

    # Units

    def step(self, kind: Kind, source: str) -> str:
        """Append a unit with one input."""
        if kind == "table":
            return self.lookup(source)
        if kind in ("max", "average"):
            return self.pool(kind, source)
        if kind == "matrix":
            return self.matrix(source)
        if kind == "pad":
            return self.pad(source)
        if kind == "resize":
            return self.resize(source)
        return self.conv(source, depthwise=kind == "depthwise")

    def residual(self, kind: Kind, source: str) -> str:
        """One or two convolutions that keep the shape, then Add, Sub or Mul with their source."""
        if kind == "mul" and self.rng.random() < 0.4:
            pair = (self.peak(source), source)
            return self.product(*(pair if self.rng.random() < 0.5 else pair[::-1]))
        depth = self.tensors[source].shape[1]
        branch = source
        for _ in range(1 + int(self.rng.random() < 0.5)):
            branch = self.conv(branch, depthwise=False, keep=depth)
        pair = (branch, source) if self.rng.random() < 0.5 else (source, branch)
        return self.join(kind, *pair)

    def branches(self, source: str) -> str:
        """Two to four branches and their Concat; mostly of whole words, but for the last."""
        count = int(self.rng.integers(2, 5))
        ragged = self.rng.random() < 0.3
        parts = []
        for k in range(count):
            pick = self.rng.random()
            before = parts[-1] if parts and pick < 0.3 else source  # as in a dense block
            depth = self.tensors[before].shape[1]
            whole = k < count - 1 and not ragged
            if pick > 0.85 and (depth % self.word == 0 or not whole):
                parts.append(before)  # a tensor as it is, perhaps twice
                continue
            keep = self.word * int(self.rng.integers(1, 3)) if whole else None
            keep = keep or int(self.rng.integers(1, self.channels + 1))
            parts.append(self.conv(before, depthwise=False, keep=keep))
        own = self.quant(parts[int(self.rng.integers(count))])
        wide = Quant(np.float32(own.scale * 1.5), self.random_zero_point(), self.dtype)
        y = own if self.rng.random() < 0.7 else wide
        lo, hi = (y.lo, y.hi) if self.rng.random() < 0.7 else self.clamp(y)
        codes = np.arange(256, dtype=np.uint8)
        tables: list[Array | None] = []
        values = []
        for name in parts:
            x = self.quant(name)
            ends = (float(x.scale), x.zero_point, float(y.scale), y.zero_point, lo, hi)
            entries = golden.rescale(codes.view(self.dtype), *ends).view(np.uint8)
            tables.append(None if np.array_equal(entries, codes) else entries)
            values.append(golden.rescale(self.values[name], *ends))
        spec = ConcatSpec(tuple(self.quant(n) for n in parts), y, tuple(tables))
        return self.emit("concat", tuple(parts), y, golden.concat(values), spec, 0)

    def pad(self, source: str) -> str:
        x = self.quant(source)
        pads = tuple(int(v) for v in self.rng.integers(0, 3, 4))
        level = x.zero_point if self.rng.random() < 0.4 else int(self.rng.integers(x.lo, x.hi + 1))
        value = golden.pad(self.values[source], pads, level)  # type: ignore[arg-type]
        spec = PadSpec(x, x, pads, level)  # type: ignore[arg-type]
        return self.emit("pad", (source,), x, value, spec, 0)

    def resize(self, source: str) -> str:
        x = self.quant(source)
        low = 1 if max(self.values[source].shape[2:]) > 2 * self.side else 2
        factors = (int(self.rng.integers(1, 4)), int(self.rng.integers(1, low + 1)))
        value = golden.nearest(self.values[source], factors)
        return self.emit("resize", (source,), x, value, ResizeSpec(x, x, factors), 0)

    def flatten(self, source: str) -> str:
        value = self.values[source].reshape(1, -1)
        quant = self.tensors[source].quant
        assert quant is not None
        return self.emit("view", (source,), quant, value, None, 0)

    def conv(self, source: str, *, depthwise: bool, keep: int | None = None) -> str:
        rng, x, quant = self.rng, self.values[source], self.quant(source)
        _, depth, height, width = x.shape
        outputs = keep or int(rng.integers(1, self.channels + 1))
        groups = 1
        if depthwise:
            groups, outputs = depth, depth
        elif self.any_groups and keep is None and rng.random() < 0.4:
            groups = int(rng.choice([g for g in range(1, depth + 1) if depth % g == 0]))
            outputs = groups * int(rng.integers(1, max(2, self.channels // groups + 1)))
        kernel, stride, dilation, pads = self.window(height, width, keep is not None)
        if depthwise and rng.random() < 0.5:  # as most networks have them
            pads = tuple(int(v) for v in rng.integers(0, 2, 4))
            if min(height + pads[0] + pads[2], width + pads[1] + pads[3]) < 3:
                pads = (1, 1, 1, 1)
            kernel, dilation = (3, 3), (1, 1)
            stride = (int(rng.integers(1, 3)), int(rng.choice([1, 1, 2])))
        weight = self.weights((outputs, depth // groups, *kernel))
        geometry = (stride, dilation, pads, groups)
        free = np.zeros(outputs, np.int32)
        sums = golden.conv_sums(x, weight, free, quant.zero_point, *geometry)
        columns = sums.transpose(1, 0, 2, 3).reshape(outputs, -1)
        bias = free if rng.random() < 0.2 else self.bias(columns)
        y, w_scale, m = self.rescale(quant, x, weight, columns + bias[:, None])
        lo, hi = self.clamp(y)
        value = golden.conv(x, weight, bias, m, quant.zero_point, y.zero_point, lo, hi, *geometry)
        table, value = self.fuse_table(value)
        spec = ConvSpec(quant, y, weight, bias, w_scale, m, lo, hi, *geometry, False, table)
        return self.emit("conv", (source,), y, value, spec, int(value[0, 0].size * weight.size))

    def matrix(self, source: str) -> str:
        rng, x, quant = self.rng, self.values[source], self.quant(source)
        outputs = int(rng.integers(1, self.channels + 1))
        weight = self.weights((outputs, x.shape[1]))
        free = np.zeros(outputs, np.int32)
        sums = golden.conv_sums(
            x[:, :, None, None], weight[:, :, None, None], free, quant.zero_point
        )
        columns = sums[:, :, 0, 0].T
        bias = free if rng.random() < 0.35 else self.bias(columns)
        y, w_scale, m = self.rescale(quant, x, weight, columns + bias[:, None])
        lo, hi = self.clamp(y)
        value = golden.matmul(x, weight, bias, m, quant.zero_point, y.zero_point, lo, hi)
        table, value = self.fuse_table(value)
        spec = ConvSpec(
            quant, y, weight[:, :, None, None], bias, w_scale, m, lo, hi, matrix=True, table=table
        )
        return self.emit("conv", (source,), y, value, spec, x.shape[0] * weight.size)

    def pool(self, op: Any, source: str) -> str:
        rng, x, quant = self.rng, self.values[source], self.quant(source)
        height, width = x.shape[2:]
        kernel, stride, _, pads = self.window(height, width, False)
        if rng.random() < 0.3:  # a global pool
            kernel, stride, pads = (height, width), (1, 1), (0, 0, 0, 0)
        if op == "max":
            y, m = quant, np.float32(1)
            lo, hi = self.clamp(y)
            value = golden.maxpool(x, kernel, stride, pads, lo, hi)
        else:
            count = kernel[0] * kernel[1]
            y = quant
            if rng.random() < 0.6:
                scale = np.float32(float(quant.scale) * rng.uniform(0.2, 1.5))
                y = Quant(scale, self.random_zero_point(), self.dtype)
            m = np.float32(quant.scale / np.float32(y.scale * np.float32(count)))
            lo, hi = self.clamp(y)
            zeros = (quant.zero_point, y.zero_point)
            value = golden.avgpool(x, kernel, stride, pads, float(m), *zeros, lo, hi)
        table, value = self.fuse_table(value)
        spec = PoolSpec(op, quant, y, kernel, m, lo, hi, stride, pads, table)
        return self.emit("pool", (source,), y, value, spec, 0)

    def join(self, kind: Kind, first: str, second: str) -> str:
        a, b = self.quant(first), self.quant(second)
        if kind == "mul":
            return self.product(first, second)
        spread = float(np.hypot(self.spread(first), self.spread(second)))
        y = Quant(np.float32(max(spread, 1e-6) / 40), self.random_zero_point(), self.dtype)
        lo, hi = self.clamp(y)
        value = golden.add(
            self.values[first],
            self.values[second],
            *(float(q.scale) for q in (a, b, y)),
            *(q.zero_point for q in (a, b, y)),
            lo,
            hi,
            subtract=kind == "sub",
        )
        table, value = self.fuse_table(value)
        spec = AddSpec(a, b, y, lo, hi, kind == "sub", table)
        return self.emit("add", (first, second), y, value, spec, 0)

    def peak(self, source: str) -> str:
        """The maximum of each channel, a single pixel."""
        x, kernel = self.quant(source), self.values[source].shape[2:]
        value = golden.maxpool(self.values[source], kernel, (1, 1), (0, 0, 0, 0), x.lo, x.hi)
        spec = PoolSpec("max", x, x, kernel, np.float32(1), x.lo, x.hi)
        return self.emit("pool", (source,), x, value, spec, 0)

    def product(self, first: str, second: str) -> str:
        a, b = self.quant(first), self.quant(second)
        values = [self.values[name] for name in (first, second)]
        centred = (values[0].astype(np.float64) - a.zero_point) * (values[1] - float(b.zero_point))
        spread = float(np.abs(centred).mean()) * float(a.scale) * float(b.scale)
        scale = np.float32(max(spread, 1e-6) / 40)
        y = Quant(scale, self.random_zero_point(), self.dtype)
        lo, hi = self.clamp(y)
        numbers = [*(float(q.scale) for q in (a, b, y)), *(q.zero_point for q in (a, b, y))]
        value = golden.mul(*values, *numbers, lo, hi)  # type: ignore[arg-type]
        table, value = self.fuse_table(value)
        spec = MulSpec(a, b, y, lo, hi, table)
        return self.emit("mul", (first, second), y, value, spec, 0)

    def lookup(self, source: str) -> str:
        x = self.quant(source)
        table = self.random_table()
        y = Quant(self.random_scale(), self.random_zero_point(), self.dtype)
        value = golden.table(self.values[source], table)
        return self.emit("table", (source,), y, value, TableSpec(x, y, table), 0)

    # Numbers

    def quant(self, name: str) -> Quant:
        quant = self.tensors[name].quant
        assert quant is not None
        return quant

    def spread(self, name: str) -> float:
        return float(self.values[name].astype(np.float64).std()) * float(self.quant(name).scale)

    def random_scale(self) -> np.float32:
        return np.float32(2.0 ** self.rng.uniform(-8, -2))

    def random_zero_point(self) -> int:
        low = -128 if self.dtype == "int8" else 0
        pick = self.rng.random()
        if pick < 0.15:  # after a Relu
            return low
        return low + int(self.rng.integers(0, 256) if pick < 0.35 else self.rng.integers(64, 192))

    def weights(self, shape: tuple[int, ...]) -> Array:
        low = -128 if self.rng.random() < 0.3 else -127
        return self.rng.integers(low, 128, shape).astype(np.int8)

    def bias(self, columns: Array) -> Array:
        """Centres each channel roughly, as training would."""
        noise = self.rng.normal(0, 0.5, len(columns)) * (columns.std(1) + 1)
        return np.round(noise - columns.mean(1)).astype(np.int32)

    def rescale(
        self, x: Quant, sample: Array, weight: Array, columns: Array
    ) -> tuple[Quant, Array, Array]:
        """Output quantisation and weight scales that spread each channel over some 40 steps."""
        norm = np.sqrt((weight.reshape(len(weight), -1).astype(np.float64) ** 2).sum(1))
        # One sample may be close to zero by chance; independent inputs would give this spread.
        wide = np.maximum(np.abs(columns).mean(1), norm * max(float(sample.std()), 10.0)) + 1.0
        w_scale = np.full(len(wide), 2.0**-7)
        if self.rng.random() < 0.6:  # per channel
            w_scale = 2.0**-7 * wide.max() / wide * self.rng.uniform(0.5, 2, len(wide))
        w_scale32 = np.maximum(w_scale, 1e-6).astype(np.float32)
        step = float(np.median(wide * w_scale32)) * float(x.scale) / self.rng.uniform(25, 60)
        y = Quant(np.float32(step), self.random_zero_point(), self.dtype)
        return y, w_scale32, (x.scale * w_scale32 / y.scale).astype(np.float32)

    def clamp(self, y: Quant) -> tuple[int, int]:
        pick = self.rng.random()
        if pick < 0.5:
            return y.lo, y.hi
        if pick < 0.8:
            return y.zero_point, y.hi  # Relu
        return y.zero_point, int(min(y.hi, y.zero_point + self.rng.integers(20, 200)))

    def random_table(self) -> Array:
        """A hard-swish like curve, or any 256 bytes."""
        if self.rng.random() < 0.3:
            return self.rng.integers(0, 256, 256).astype(np.uint8)
        real = np.arange(256).astype(np.uint8).view(self.dtype).astype(np.float64)
        real = (real - real.mean()) / 32
        curve = real * np.clip(real + 3, 0, 6) / 6
        low = 0 if self.dtype == "uint8" else -128
        bytes_ = np.clip(np.round((curve + 0.5) * 55) + low, low, low + 255)
        return bytes_.astype(self.dtype).view(np.uint8)

    def fuse_table(self, value: Array) -> tuple[Array | None, Array]:
        if not self.tables or self.rng.random() < 0.85:
            return None, value
        table = self.random_table()
        return table, golden.table(value, table)

    def window(
        self, height: int, width: int, keep: bool
    ) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int, int, int]]:
        """Kernel, stride, dilation and pads that fit; ``keep`` leaves the size as it is."""
        kernel, stride, dilation, before, after = [], [], [], [], []
        for length in (height, width):
            taps = int(self.rng.choice([1, 2, 3, 3, 3, 4, 5, 7]))
            gap = int(self.rng.choice([1, 1, 1, 2, 3])) if taps > 1 else 1
            span = (taps - 1) * gap + 1
            if keep:
                pad = (span - 1) // 2
                sides = (pad, span - 1 - pad)
                step = 1
            else:
                sides = tuple(int(v) for v in self.rng.integers(0, min(taps, 4), 2))
                if span > length + sum(sides):
                    taps, gap, sides = min(taps, length), 1, (0, 0)
                step = int(self.rng.choice([1, 1, 2, 3]))
            kernel.append(taps)
            dilation.append(gap)
            stride.append(step)
            before.append(sides[0])
            after.append(sides[1])
        return tuple(kernel), tuple(stride), tuple(dilation), (*before, *after)  # type: ignore[return-value]
