"""The bundle's manifest: its structs, and what must hold between its parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

__all__ = [
    "DTYPES",
    "FORMAT",
    "BitstreamInfo",
    "BundleError",
    "EngineInfo",
    "Manifest",
    "MemberInfo",
    "ModelInfo",
    "Part",
    "PlanInfo",
    "PlanStage",
    "PortInfo",
    "Rig",
    "RigDevice",
    "StageInfo",
    "TensorInfo",
    "check_manifest",
    "check_name",
    "onnx_shape",
]

FORMAT: Final = 1
"""Raised when an older reader would misread a bundle; new optional fields do not raise it."""

DTYPES: Final = frozenset({"bool", "float16", "float32", "float64"}) | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
DEFAULT_ATTACH: Final = {"cpu": "cpu", "gpu": "gpu", "fpga": "virtual", "null": "null"}


class BundleError(Exception):
    """A bundle that cannot be read or written: file, what is wrong, the bound, the way out.

    One printable line, whatever names a damaged or hostile file has.
    """

    def __init__(self, text: str) -> None:
        super().__init__(
            "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
        )


class PortInfo(msgspec.Struct, frozen=True):
    """A model's input or output. A string at axis 0 of ``shape`` names the batch axis."""

    name: str
    dtype: str
    shape: list[int | str]

    def item_shape(self) -> tuple[int, ...]:
        """Shape of one item: a batch axis is 1."""
        return tuple(1 if isinstance(dim, str) else dim for dim in self.shape)

    @property
    def batch_axis(self) -> str | None:
        """Name of the batch axis; None when the shape is fixed."""
        return self.shape[0] if self.shape and isinstance(self.shape[0], str) else None


class ModelInfo(msgspec.Struct, frozen=True):
    """The ONNX model that was compiled, as its user knows it."""

    sha256: str
    inputs: list[PortInfo]
    outputs: list[PortInfo]
    name: str = ""


class MemberInfo(msgspec.Struct, frozen=True):
    """Hash and length of a member."""

    sha256: str
    bytes: int


class TensorInfo(msgspec.Struct, frozen=True):
    """A tensor at a stage's edge; ``shape`` is that of the bytes as they travel (``layout``)."""

    dtype: str
    shape: list[int]
    layout: Literal["ONNX", "NHWC"] = "ONNX"
    scale: float | None = None
    zero_point: int | None = None


def _none() -> str | None:
    """A default that ``omit_defaults`` does not leave out: earlier bundles hold it as null."""
    return None


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one device computes of a stage that is split: all its inputs, a piece of each output.

    Part ``k`` writes ``TENSOR/k`` for each output ``TENSOR`` of the stage, in the same order.
    """

    kind: Literal["onnx", "program"]
    member: str
    inputs: list[str]
    outputs: list[str]
    fallback: str | None = None
    engine: str | None = None


class StageInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stage: which member runs, between which tensors.

    ``members`` are the rig's devices that run it: ``shards`` of them together hold it once, one for
    each of ``parts``, and there may be several such groups (replicas), one after the other. Empty:
    the one device of the plan. ``shard_axis`` is the axis of the stage's outputs, as they travel,
    along which the parts are put together. ``member`` of a split stage is the whole of it as ONNX.
    """

    index: int
    kind: Literal["onnx", "program"]
    member: str
    inputs: list[str]
    outputs: list[str]
    fallback: str | None = msgspec.field(default_factory=_none)
    engine: str | None = msgspec.field(default_factory=_none)
    members: list[str] = []
    shards: int = 1
    shard_axis: int | None = None
    parts: list[Part] = []


class BitstreamInfo(msgspec.Struct, frozen=True):
    """A board's bitstream, and the hash of what it was built from (HELLO carries it)."""

    member: str
    build_sha256: str


class EngineInfo(msgspec.Struct, frozen=True):
    """An engine configuration (fields of `hdl.config.EngineConfig`) and its bitstreams by board."""

    config: dict[str, int | float | str | bool | None]
    bitstreams: dict[str, BitstreamInfo] = {}


class Manifest(msgspec.Struct, frozen=True):
    """`manifest.json`."""

    format: int
    trivet: str
    model: ModelInfo
    members: dict[str, MemberInfo]
    tensors: dict[str, TensorInfo]
    stages: list[StageInfo]
    tools: dict[str, str] = {}
    engines: dict[str, EngineInfo] = {}
    vectors: str | None = None


class PlanStage(msgspec.Struct, frozen=True):
    """What the runtime reads of a stage in plan.json; ``compute`` is seconds per item."""

    index: int
    device: str
    compute: float | None = None


class PlanInfo(msgspec.Struct, frozen=True):
    """What the runtime reads of plan.json."""

    version: int
    stages: list[PlanStage]


class RigDevice(msgspec.Struct, frozen=True):
    """A device of the rig; ``attach`` says what stands behind it, by default of its kind."""

    kind: Literal["cpu", "gpu", "fpga", "null"]
    attach: str | None = None
    board: str | None = None
    clock_hz: float | None = None
    threads: int | None = None

    @property
    def attached(self) -> str:
        """The name of the runtime's device: cpu, gpu, virtual, model, ..."""
        return self.attach or DEFAULT_ATTACH[self.kind]


class Rig(msgspec.Struct, frozen=True):
    """`rig.json`: the devices that the plan names. No addresses: those belong to a machine."""

    devices: dict[str, RigDevice]
    version: int = 1


_NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*(/[A-Za-z0-9_+-][A-Za-z0-9._+-]*)*")


def check_name(name: str) -> str | None:
    """Why ``name`` cannot be a member's, in words; None when it can.

    Members are never extracted, but a bundle must be harmless to people who unzip it too.
    """
    if name.startswith("/") or re.match(r"[A-Za-z]:", name):
        return "is an absolute path, outside the bundle"
    if "\\" in name:
        return "has a backslash in its path"
    if ".." in name.split("/"):
        return "is a path outside the bundle"
    if len(name) > 200 or not _NAME.fullmatch(name):
        return "has a name of other than up to 200 letters, digits and ._+-/"
    return None


def check_manifest(path: Path, manifest: Manifest, sizes: Mapping[str, int]) -> None:
    """Raise :class:`BundleError` unless zip (``sizes``: member -> bytes) and manifest agree."""
    for problem in (
        _members(manifest, sizes),
        _tensors(manifest),
        _engines(manifest),
        _stages(manifest),
        _parts(manifest),
        _ports(manifest),
    ):
        if problem is not None:
            raise BundleError(f"{path}: {problem}; compile the model again")


def _members(manifest: Manifest, sizes: Mapping[str, int]) -> str | None:
    listed = manifest.members
    for name in sizes:
        if name not in listed and name != "manifest.json":
            return f"member '{name}' is not in the manifest"
    for name, info in listed.items():
        if name not in sizes:
            return f"member '{name}' of the manifest is missing"
        if sizes[name] != info.bytes:
            return f"member '{name}' has {sizes[name]} bytes, the manifest says {info.bytes}"
    needed = ["plan.json", "rig.json", *([manifest.vectors] if manifest.vectors else [])]
    for _, run in _runs(manifest):
        needed += [run.member, *([run.fallback] if run.fallback else [])]
    for engine in manifest.engines.values():
        needed += [b.member for b in engine.bitstreams.values()]
    missing = [name for name in needed if name not in listed]
    return f"member '{missing[0]}' is used, but not in the manifest" if missing else None


def _tensors(manifest: Manifest) -> str | None:
    for name, tensor in manifest.tensors.items():
        if tensor.dtype not in DTYPES:
            return f"tensor '{name}' has dtype '{tensor.dtype}', not one of {sorted(DTYPES)}"
        if any(dim < 1 for dim in tensor.shape):
            return f"tensor '{name}' has shape {tensor.shape}, a dimension below 1"
        if tensor.layout == "NHWC" and len(tensor.shape) != 4:
            return f"tensor '{name}' is NHWC, but of {len(tensor.shape)} axes, not 4"
    return None


def _engines(manifest: Manifest) -> str | None:
    for index, run in _runs(manifest):
        if run.kind == "program" and run.engine not in manifest.engines:
            return f"stage {index} is for engine '{run.engine}', which is not in it"
    return None


def _runs(manifest: Manifest) -> Iterator[tuple[int, StageInfo | Part]]:
    """Stages and their parts, each with its stage's index."""
    for stage in manifest.stages:
        yield stage.index, stage
        yield from ((stage.index, part) for part in stage.parts)


def _parts(manifest: Manifest) -> str | None:
    """Devices stand once in a stage; parts, put together, are the stage's outputs."""
    for stage in manifest.stages:
        where = f"stage {stage.index}"
        if len(set(stage.members)) != len(stage.members):
            return f"{where} has a device twice among {stage.members}"
        if stage.shards < 1 or len(stage.parts) != (stage.shards if stage.shards > 1 else 0):
            return f"{where} has {stage.shards} shards and {len(stage.parts)} parts"
        if len(stage.members) % stage.shards or (stage.shards > 1 and not stage.members):
            return f"{where} has {len(stage.members)} devices for {stage.shards} shards"
        if stage.shards == 1:
            continue
        if stage.kind != "onnx":
            return f"{where} is split, and as a whole a {stage.kind}, not an ONNX model"
        for k, part in enumerate(stage.parts):
            if part.inputs != stage.inputs or part.outputs != [f"{n}/{k}" for n in stage.outputs]:
                return f"{where}'s part {k} reads {part.inputs} and writes {part.outputs}"
        for name in stage.outputs:
            reason = _put_together(manifest.tensors, name, stage)
            if reason is not None:
                return f"{where}: {reason}"
    return None


def _put_together(tensors: Mapping[str, TensorInfo], name: str, stage: StageInfo) -> str | None:
    """Why a tensor is not its parts, one behind the other along the stage's axis."""
    whole, axis = tensors[name], stage.shard_axis
    if axis is None or not 0 <= axis < len(whole.shape):
        return f"tensor '{name}' of {len(whole.shape)} axes cannot be put together along {axis}"
    along = 0
    for k in range(stage.shards):
        piece = tensors.get(f"{name}/{k}")
        if piece is None:
            return f"tensor '{name}/{k}' is not described"
        wanted = whole.shape.copy()
        wanted[axis : axis + 1] = piece.shape[axis : axis + 1]
        if (piece.dtype, piece.layout, piece.shape) != (whole.dtype, whole.layout, wanted):
            return f"tensor '{name}/{k}' is no piece of '{name}' along axis {axis}"
        along += piece.shape[axis]
    if along != whole.shape[axis]:
        return f"tensor '{name}' is {whole.shape[axis]} along axis {axis}, its parts {along}"
    return None


def _stages(manifest: Manifest) -> str | None:
    """Every stage's inputs exist before it runs; no tensor is written twice."""
    if not manifest.stages:
        return "has no stages"
    ready = {port.name for port in manifest.model.inputs}
    for position, stage in enumerate(manifest.stages):
        if stage.index != position:
            return f"stage {position} is numbered {stage.index}"
        for name in (*stage.inputs, *stage.outputs):
            if name not in manifest.tensors:
                return f"stage {position} uses tensor '{name}', which is not described"
        for name in stage.inputs:
            if name not in ready:
                return f"stage {position} reads tensor '{name}' before anything writes it"
        for name in stage.outputs:
            if name in ready:
                return f"stage {position} writes tensor '{name}' a second time"
            ready.add(name)
        if not stage.outputs:
            return f"stage {position} has no outputs"
    for port in manifest.model.outputs:
        if port.name not in ready:
            return f"no stage writes the model's output '{port.name}'"
    return None


def _ports(manifest: Manifest) -> str | None:
    """A port has its tensor's dtype and shape; the batch axis is the same one everywhere."""
    ports = (*manifest.model.inputs, *manifest.model.outputs)
    names = [port.name for port in manifest.model.inputs]
    if len(set(names)) != len(names):
        return "the model has two inputs of one name"
    if not manifest.model.outputs:
        return "the model has no outputs"
    if len({port.batch_axis for port in ports}) > 1:
        return "only some of the model's inputs and outputs have the batch axis"
    for port in ports:
        if any(isinstance(dim, str) or dim < 0 for dim in port.shape[1:]):
            return f"the model's '{port.name}' has shape {port.shape}, not fixed behind axis 0"
        if port.dtype not in DTYPES:
            return f"the model's '{port.name}' has dtype '{port.dtype}', not one we run"
        tensor = manifest.tensors.get(port.name)
        if tensor is None:
            continue  # an input that no stage reads
        shape = onnx_shape(tensor)
        if (tensor.dtype, shape) != (port.dtype, port.item_shape()):
            return (
                f"the model's '{port.name}' is {port.dtype} {list(port.item_shape())}, its tensor "
                f"{tensor.dtype} {list(shape)}"
            )
    return None


def onnx_shape(tensor: TensorInfo) -> tuple[int, ...]:
    """The tensor's shape in ONNX's order of axes (NCHW for images)."""
    if tensor.layout == "NHWC":
        n, h, w, c = tensor.shape
        return n, c, h, w
    return tuple(tensor.shape)
