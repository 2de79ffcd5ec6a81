"""Load: an ONNX file as a checked :class:`onnx_ir.Model` with static shapes and named nodes.

External data stays on disk and must lie inside the model's folder. What cannot be loaded is a
:class:`CompileError` that names the file and the way out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import onnx
import onnx.checker
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx.external_data_helper import _get_all_tensors, uses_external_data
from onnx_ir.passes.common import RemoveInitializersFromInputsPass

from .errors import CompileError
from .passes.names import NameNodes
from .passes.shapes import InferShapes

__all__ = ["Loaded", "load"]

_DEFAULT_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class Loaded:
    """A model on its way through the compiler; steps return a new one and change none.

    ``sha256`` identifies the user's file (with its external data), whatever steps came after.
    ``batch_axis`` is the symbol of the leading axis that was fixed to 1, None if there was none.
    ``notes`` are sentences for the user about what was decided on the way.
    """

    model: ir.Model
    sha256: str
    name: str
    batch_axis: str | None = None
    notes: tuple[str, ...] = ()


def load(path: str | Path, shapes: dict[str, int]) -> Loaded:
    """Read, check and fix the shapes of a model; ``shapes`` maps dimension symbols to values.

    A symbolic leading axis shared by all inputs is the batch and becomes 1 unless ``shapes`` says
    otherwise. Raises CompileError for anything that is not a valid ONNX model with static shapes.
    """
    path = Path(path)
    proto, digest = _read(path)
    _check(path, proto)
    try:
        model = ir.load(path)
    except ir.serde.SerdeError as e:
        reason = str(e.__cause__ or e).strip().splitlines()[0]
        raise CompileError(f"{path}: not a valid ONNX model ({reason}); export it again") from e
    if not len(model.graph):
        raise CompileError(f"{path}: the graph has no nodes, there is nothing to compile")
    RemoveInitializersFromInputsPass()(model)
    # Up to IR version 3 every initializer had to be an input as well.
    model.ir_version = max(model.ir_version, 4)
    NameNodes()(model)
    batch_axis, notes = _fix_shapes(path, model, shapes)
    InferShapes()(model)
    if batch_axis and not all(_leads_with_one(v) for v in model.graph.outputs):
        notes.append(f"an output has no leading axis of 1, so '{batch_axis}' is no batch axis")
        batch_axis = None
    return Loaded(model, digest, path.stem, batch_axis, tuple(notes))


def _read(path: Path) -> tuple[onnx.ModelProto, str]:
    if path.is_dir():
        raise CompileError(f"{path}: is a folder; give the path of an ONNX model")
    if not path.is_file():
        raise CompileError(f"{path}: no such file; give the path of an ONNX model")
    try:
        data = path.read_bytes()
        proto = onnx.load_model_from_string(data)
    except (DecodeError, ValueError) as e:
        raise CompileError(f"{path}: not an ONNX file; export the model as .onnx first") from e
    except OSError as e:
        raise CompileError(f"{path}: cannot be read ({e.strerror}); check its permissions") from e
    if not proto.graph.output or not proto.opset_import:
        raise CompileError(
            f"{path}: not an ONNX model (no graph, outputs or opset); export it as .onnx"
        )
    digest = hashlib.sha256(data)
    for file in sorted(set(_external_files(path, proto))):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return proto, digest.hexdigest()


def _external_files(path: Path, proto: onnx.ModelProto) -> Iterator[Path]:
    """Files of external tensors; CompileError for one that is not inside the model's folder."""
    folder = path.parent.resolve()
    for tensor in _get_all_tensors(proto):
        if not uses_external_data(tensor):
            continue
        location = next((e.value for e in tensor.external_data if e.key == "location"), "")
        where = f"{path}: external data of tensor '{tensor.name}' at '{location}'"
        relative = Path(location)
        # A drive or backslash is a path on Windows only, and must not become a file name elsewhere.
        foreign = any(c in location for c in "\\:\0")
        if not location or relative.is_absolute() or foreign or ".." in relative.parts:
            raise CompileError(
                f"{where} is not a path inside the model's folder; "
                "save the model again with its data beside it"
            )
        file = folder / relative
        if not file.resolve().is_relative_to(folder):
            raise CompileError(
                f"{where} leads outside the model's folder by a link; "
                "copy the data beside the model"
            )
        if not file.is_file():
            raise CompileError(f"{where} is missing; put the file beside the model")
        _check_extent(where, tensor, file)
        yield file


def _check_extent(where: str, tensor: onnx.TensorProto, file: Path) -> None:
    """The tensor's bytes lie inside its file."""
    entries = {e.key: e.value for e in tensor.external_data}
    bits = ir.DataType(tensor.data_type).bitwidth
    needed = (prod(tensor.dims) * bits + 7) // 8
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", needed))
    except ValueError as e:
        raise CompileError(
            f"{where}: offset or length is not a number; save the model again"
        ) from e
    size = file.stat().st_size
    if offset < 0 or length < needed or offset + length > size:
        raise CompileError(
            f"{where}: bytes {offset} to {offset + length} of a file of {size}, "
            f"the tensor has {needed}; save the model again"
        )


def _check(path: Path, proto: onnx.ModelProto) -> None:
    newest = onnx.defs.onnx_opset_version()
    for opset in proto.opset_import:
        if opset.domain in _DEFAULT_DOMAINS and opset.version > newest:
            raise CompileError(
                f"{path}: opset {opset.version} is above {newest}, the newest that the installed "
                "onnx knows; export with an older opset or upgrade onnx and onnxruntime"
            )
    if proto.ir_version > onnx.IR_VERSION:
        raise CompileError(
            f"{path}: IR version {proto.ir_version} is above {onnx.IR_VERSION}, the newest "
            "that the installed onnx knows; save it with an older onnx or upgrade onnx"
        )
    try:
        onnx.checker.check_model(str(path))
    except (onnx.checker.ValidationError, ValueError) as e:
        first = str(e).strip().splitlines()[0]
        raise CompileError(f"{path}: not a valid ONNX model ({first}); export it again") from e


def _symbols(value: ir.Value) -> list[tuple[int, str]]:
    """Axis and symbol of each dimension that is not a number; nameless ones get a name."""
    assert value.shape is not None
    return [
        (axis, str(dim.value) if dim.value else f"{value.name}_dim{axis}")
        for axis, dim in enumerate(value.shape)
        if isinstance(dim, ir.SymbolicDim)
    ]


def _fix_shapes(
    path: Path, model: ir.Model, shapes: dict[str, int]
) -> tuple[str | None, list[str]]:
    inputs = list(model.graph.inputs)
    for value in inputs:
        if value.dtype is None or not isinstance(value.type, ir.TensorType):
            raise CompileError(f"{path}: input '{value.name}' is not a tensor; export tensors only")
        if value.shape is None:
            raise CompileError(f"{path}: input '{value.name}' has no shape; export it with a shape")
    found = {value: _symbols(value) for value in inputs}
    names = list(dict.fromkeys(name for dims in found.values() for _, name in dims))
    for name, size in shapes.items():
        if name not in names:
            known = ", ".join(f"'{n}'" for n in names) or "none"
            raise CompileError(
                f"{path}: --shape {name}={size}: the inputs have no dimension '{name}'; "
                f"symbolic dimensions: {known}"
            )
        if not 1 <= size < 1 << 31:
            raise CompileError(f"{path}: --shape {name}={size}: must be at least 1 and below 2^31")
    notes: list[str] = []
    batch_axis: str | None = None
    values = dict(shapes)
    open_names = [n for n in names if n not in values]
    if (
        len(open_names) == 1
        and len(names) == 1
        and all([axis for axis, _ in dims] == [0] for dims in found.values())
    ):
        batch_axis = open_names.pop()
        values[batch_axis] = 1
        notes.append(f"the leading axis '{batch_axis}' is the batch and was fixed to 1")
    if open_names:
        first = open_names[0]
        where = next(v.name for v, dims in found.items() if any(n == first for _, n in dims))
        raise CompileError(
            f"{path}: input '{where}' has the dynamic dimension '{first}'; every dimension must be "
            "a number: add " + " ".join(f"--shape {n}=SIZE" for n in open_names)
        )
    for value, dims in found.items():
        assert value.shape is not None
        fixed = list(value.shape)
        for axis, name in dims:
            fixed[axis] = values[name]
        value.shape = ir.Shape(fixed)
    return batch_axis, notes


def _leads_with_one(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.rank() > 0 and value.shape[0] == 1
