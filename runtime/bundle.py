"""The `.trivet` bundle: one zip that holds plan, stage models, programs, bitstreams and vectors.

Members are stored sorted, uncompressed and with a fixed date, so the same inputs give the same
bytes on every machine (deflate's output differs between zlib builds). Nothing in a bundle is ever
run as code or unpickled, nothing is extracted to disk, and every size is bounded before it is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec
import numpy.typing as npt

from .archive import (
    check_archive,
    check_sizes,
    open_archive,
    read_member,
    umask,
    write_archive,
)
from .device import Stage, TensorSpec
from .manifest import (
    FORMAT,
    BitstreamInfo,
    BundleError,
    EngineInfo,
    Manifest,
    MemberInfo,
    ModelInfo,
    Part,
    PlanInfo,
    PortInfo,
    Rig,
    RigDevice,
    StageInfo,
    TensorInfo,
    check_manifest,
    check_name,
)
from .vectors import pack_vectors, unpack_vectors

__all__ = [
    "FORMAT",
    "BitstreamInfo",
    "Bundle",
    "BundleError",
    "BundleWriter",
    "EngineInfo",
    "Manifest",
    "MemberInfo",
    "ModelInfo",
    "Part",
    "PlanInfo",
    "PortInfo",
    "Rig",
    "RigDevice",
    "StageInfo",
    "TensorInfo",
]

MANIFEST: Final = "manifest.json"
PLAN: Final = "plan.json"
RIG: Final = "rig.json"
VECTORS: Final = "vectors.npz"

_T = TypeVar("_T")


class Bundle:
    """An opened bundle; a context manager.

    Opening checks names, sizes, the manifest and that zip and manifest list the same members; a
    member's hash is checked each time it is read. Every fault is a :class:`BundleError`.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._archive = archive

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Bundle:
        """Open and check ``path``; :class:`BundleError` for anything that is not a sound bundle."""
        path = Path(path)
        archive = open_archive(path)
        try:
            infos = check_archive(path, archive)
            if MANIFEST not in infos:
                raise BundleError(
                    f"{path}: has no {MANIFEST}, so it is not a Trivet bundle; "
                    "make one with `trivet compile`"
                )
            raw = read_member(path, archive, infos[MANIFEST])
            _check_format(path, raw)
            manifest = _decode(path, MANIFEST, raw, Manifest)
            check_manifest(path, manifest, {n: i.file_size for n, i in infos.items()})
        except BaseException:
            archive.close()
            raise
        return cls(path, archive, manifest)

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; idempotent."""
        self._archive.close()

    def read(self, member: str) -> bytes:
        """The bytes of ``member``, checked against the length and hash in the manifest."""
        listed = self.manifest.members.get(member)
        if listed is None:
            raise BundleError(
                f"{self.path}: has no member '{member}' among its {len(self.manifest.members)}; "
                "compile the model again"
            )
        try:
            data = read_member(self.path, self._archive, self._archive.getinfo(member))
        except ValueError as error:  # zipfile's answer once it is closed
            raise BundleError(f"{self.path}: the bundle is closed; open it again") from error
        found = hashlib.sha256(data).hexdigest()
        if found != listed.sha256:
            raise BundleError(
                f"{self.path}: member '{member}' has sha256 {found[:12]}.., the manifest says "
                f"{listed.sha256[:12]}..; the file was changed or damaged, compile or copy it again"
            )
        return data

    def plan(self) -> PlanInfo:
        """What the runtime needs of plan.json: the device and predicted seconds of every stage."""
        plan = self._json(PLAN, PlanInfo)
        if [s.index for s in plan.stages] != [s.index for s in self.manifest.stages]:
            raise BundleError(
                f"{self.path}: {PLAN} has stages {[s.index for s in plan.stages]}, the manifest "
                f"{[s.index for s in self.manifest.stages]}; compile the model again"
            )
        return plan

    def plan_json(self) -> dict[str, Any]:
        """The whole of plan.json."""
        return self._json(PLAN, dict[str, Any])

    def rig(self) -> Rig:
        """The devices that the plan was made for."""
        return self._json(RIG, Rig)

    def vectors(self) -> dict[str, npt.NDArray[Any]]:
        """The stored test vectors by name; empty when the bundle has none. Never unpickles."""
        if self.manifest.vectors is None:
            return {}
        data = self.read(self.manifest.vectors)
        return unpack_vectors(f"{self.path}: member '{self.manifest.vectors}'", data)

    def stages(self) -> tuple[Stage, ...]:
        """The stages in order, with their payloads read and checked.

        A stage that is split has its :attr:`~trivet.runtime.device.Stage.parts` read, too.
        """
        seconds = {s.index: s.compute for s in self.plan().stages}
        return tuple(self._stage(s, s, seconds[s.index]) for s in self.manifest.stages)

    def _stage(self, stage: StageInfo, info: StageInfo | Part, seconds: float | None) -> Stage:
        """A stage, or a part of one."""
        engine = None if info.engine is None else self.manifest.engines[info.engine]
        parts = info.parts if isinstance(info, StageInfo) else []
        return Stage(
            index=stage.index,
            kind=info.kind,
            payload=self.read(info.member),
            sha256=self.manifest.members[info.member].sha256,
            inputs=self._specs(info.inputs),
            outputs=self._specs(info.outputs),
            fallback=None if info.fallback is None else self.read(info.fallback),
            engine=info.engine,
            engine_config=None if engine is None else dict(engine.config),
            builds={}
            if engine is None
            else {board: b.build_sha256 for board, b in engine.bitstreams.items()},
            predicted_seconds=seconds,
            parts=tuple(self._stage(stage, part, seconds) for part in parts),
            shard_axis=stage.shard_axis if parts else None,
        )

    def _specs(self, names: Iterable[str]) -> tuple[TensorSpec, ...]:
        tensors = self.manifest.tensors
        return tuple(
            TensorSpec(n, tensors[n].dtype, tuple(tensors[n].shape), tensors[n].layout)
            for n in names
        )

    def _json(self, member: str, kind: type[_T]) -> _T:
        return _decode(self.path, member, self.read(member), kind)


class BundleWriter:
    """Collects a bundle's parts and writes them at once.

    Parameters
    ----------
    model
        Hash, inputs and outputs of the ONNX model; a string at axis 0 of a shape is its batch axis.
    plan, rig
        plan.json as bytes, and the rig it was made for.
    tools
        Tool name -> version, for people; no paths, no dates.
    """

    def __init__(
        self,
        *,
        trivet: str,
        model: ModelInfo,
        plan: bytes,
        rig: Rig,
        tools: Mapping[str, str] | None = None,
    ) -> None:
        self._trivet = trivet
        self._model = model
        self._tools = dict(tools or {})
        self._members: dict[str, bytes] = {}
        self._tensors: dict[str, TensorInfo] = {}
        self._stages: list[StageInfo] = []
        self._engines: dict[str, EngineInfo] = {}
        self._vectors: str | None = None
        self.add(PLAN, plan)
        self.add(RIG, msgspec.json.encode(rig, order="sorted"))

    def add(self, member: str, data: bytes) -> str:
        """Add a member; ``ValueError`` when its name is bad or taken by other bytes."""
        reason = check_name(member)
        if reason is not None or member == MANIFEST:
            raise ValueError(f"bundle member '{member}': {reason or 'the writer makes it'}")
        if self._members.setdefault(member, data) != data:
            raise ValueError(f"bundle member '{member}' was added before, with other bytes")
        return member

    def add_tensor(self, name: str, info: TensorInfo) -> None:
        """Describe a tensor at a stage's edge; shape and layout are those of its bytes."""
        if self._tensors.setdefault(name, info) != info:
            raise ValueError(f"tensor '{name}' was described before, otherwise")

    def add_onnx_stage(
        self,
        inputs: Iterable[str],
        outputs: Iterable[str],
        model: bytes,
        *,
        members: Sequence[str] = (),
    ) -> int:
        """Append a stage that runs an ONNX model; its index.

        ``members``: the rig's devices that each run it (replicas); none: the plan's.
        """
        index = len(self._stages)
        member = self.add(f"stages/{index}.onnx", model)
        self._stages.append(
            StageInfo(index, "onnx", member, list(inputs), list(outputs), members=list(members))
        )
        return index

    def add_program_stage(
        self,
        inputs: Iterable[str],
        outputs: Iterable[str],
        program: bytes,
        *,
        engine: str,
        fallback: bytes,
        members: Sequence[str] = (),
    ) -> int:
        """Append a stage that an engine runs; ``fallback`` gives the same bytes on a CPU."""
        index = len(self._stages)
        member = self.add(f"stages/{index}.trvp", program)
        second = self.add(f"stages/{index}.onnx", fallback)
        self._stages.append(
            StageInfo(
                index,
                "program",
                member,
                list(inputs),
                list(outputs),
                second,
                engine,
                members=list(members),
            )
        )
        return index

    def add_split_stage(
        self,
        inputs: Iterable[str],
        outputs: Iterable[str],
        model: bytes,
        parts: Sequence[tuple[bytes, str | None, bytes | None]],
        *,
        axis: int,
        members: Sequence[str],
    ) -> int:
        """Append a stage whose output channels are split over devices; its index.

        Parameters
        ----------
        model
            The whole stage as ONNX in contract form.
        parts
            Of each: payload, engine and fallback; an ONNX part has neither of the last two. The
            tensors ``OUTPUT/k`` of part ``k`` are described with :meth:`add_tensor`.
        axis
            Of the outputs, as they travel, along which the parts are put together.
        members
            A device for each part; replicas follow one another.
        """
        index = len(self._stages)
        names, written = list(inputs), list(outputs)
        found = []
        for k, (payload, engine, fallback) in enumerate(parts):
            kind: Literal["onnx", "program"] = "onnx" if engine is None else "program"
            suffix = "onnx" if engine is None else "trvp"
            member = self.add(f"stages/{index}.{k}.{suffix}", payload)
            second = None
            if fallback is not None:
                second = self.add(f"stages/{index}.{k}.onnx", fallback)
            found.append(Part(kind, member, names, [f"{n}/{k}" for n in written], second, engine))
        self._stages.append(
            StageInfo(
                index,
                "onnx",
                self.add(f"stages/{index}.onnx", model),
                names,
                written,
                members=list(members),
                shards=len(found),
                shard_axis=axis,
                parts=found,
            )
        )
        return index

    def add_engine(self, config_sha256: str, info: EngineInfo) -> None:
        """Describe an engine configuration; its bitstreams' members are added with :meth:`add`."""
        self._engines[config_sha256] = info

    def add_bitstream(self, config_sha256: str, board: str, info: BitstreamInfo) -> None:
        """List a bitstream of an engine that was described before; its member is added too."""
        engine = self._engines[config_sha256]
        self._engines[config_sha256] = msgspec.structs.replace(
            engine, bitstreams={**engine.bitstreams, board: info}
        )

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the members added so far."""
        return tuple(self._members)

    @classmethod
    def copy_of(cls, bundle: Bundle, *, without: tuple[str, str] | None = None) -> BundleWriter:
        """A writer that holds everything of a bundle.

        ``without`` is the engine and board of a bitstream that is left out, with its report.
        """
        manifest = bundle.manifest
        writer = cls(
            trivet=manifest.trivet,
            model=manifest.model,
            plan=bundle.read(PLAN),
            rig=bundle.rig(),
            tools=manifest.tools,
        )
        writer._tensors = dict(manifest.tensors)
        writer._stages = list(manifest.stages)
        writer._engines = dict(manifest.engines)
        writer._vectors = manifest.vectors
        left_out: set[str] = set()
        if without is not None and without[0] in writer._engines:
            engine = writer._engines[without[0]]
            old = engine.bitstreams.get(without[1])
            if old is not None:
                left_out = {old.member, f"{old.member.rpartition('.')[0]}.report.json"}
                rest = {b: i for b, i in engine.bitstreams.items() if b != without[1]}
                writer._engines[without[0]] = msgspec.structs.replace(engine, bitstreams=rest)
        for name in manifest.members:
            if name not in left_out:
                writer._members[name] = bundle.read(name)
        return writer

    def place(self, plan: bytes, homes: Sequence[Sequence[str]]) -> None:
        """Another plan for the same stages: plan.json, and the devices of each stage.

        ``ValueError`` for a stage that is split, whose devices each hold a part.
        """
        for k, (stage, members) in enumerate(zip(self._stages, homes, strict=True)):
            if stage.shards > 1:
                raise ValueError(f"stage {stage.index} is split and keeps its devices")
            kept = list(members) if len(members) > 1 else []
            self._stages[k] = msgspec.structs.replace(stage, members=kept)
        self._members[PLAN] = plan

    def add_vectors(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Store test vectors (``vectors.npz``); no object arrays."""
        self._vectors = self.add(VECTORS, pack_vectors(arrays))

    def manifest(self) -> Manifest:
        """The manifest of what was added so far."""
        return Manifest(
            format=FORMAT,
            trivet=self._trivet,
            tools=self._tools,
            model=self._model,
            members={
                name: MemberInfo(hashlib.sha256(data).hexdigest(), len(data))
                for name, data in self._members.items()
            },
            tensors=self._tensors,
            stages=self._stages,
            engines=self._engines,
            vectors=self._vectors,
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the bundle to ``path``: to a temporary file beside it, synced, then renamed.

        When anything fails, a file that was there before stays as it was.
        """
        path = Path(os.path.realpath(path))  # a symbolic link stays one
        if path.exists() and not path.is_file():
            raise BundleError(f"{path}: exists and is no regular file; choose another name")
        manifest = self.manifest()
        raw = msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=1)
        members = {**self._members, MANIFEST: raw}
        check_manifest(path, manifest, {n: len(d) for n, d in members.items()})
        check_sizes(path, {n: (len(d), len(d)) for n, d in members.items()})
        try:
            handle, temporary = tempfile.mkstemp(
                dir=path.parent, prefix=f".{path.name}.", suffix=".part"
            )
        except OSError as error:
            raise BundleError(
                f"{path}: cannot be written ({error.strerror}); choose a folder that is writable"
            ) from error
        try:
            with os.fdopen(handle, "wb") as file:
                write_archive(file, members)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes files private; a bundle gets what open() would have given.
            os.chmod(temporary, 0o666 & ~umask())
            os.replace(temporary, path)
        except OSError as error:
            raise BundleError(
                f"{path}: cannot be written ({error.strerror}); nothing was changed"
            ) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


class _FormatOnly(msgspec.Struct):
    format: int


def _check_format(path: Path, raw: bytes) -> None:
    """Before the full decode: a newer manifest may have another shape altogether."""
    found = _decode(path, MANIFEST, raw, _FormatOnly).format
    if found > FORMAT:
        raise BundleError(
            f"{path}: has bundle format {found}, this Trivet reads up to {FORMAT}; "
            "install a newer Trivet, or compile the model again with this one"
        )
    if found < 1:
        raise BundleError(f"{path}: has bundle format {found}, below 1; compile the model again")


def _decode(path: Path, member: str, raw: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except RecursionError as error:
        raise BundleError(
            f"{path}: member '{member}' nests deeper than JSON of ours ever does; "
            "do not trust this file, compile the model again"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # ValidationError is a DecodeError
        raise BundleError(
            f"{path}: member '{member}' is not valid: {error}; compile the model again"
        ) from error
