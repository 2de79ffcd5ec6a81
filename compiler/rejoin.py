"""Whether the stages of a plan, put together again, are the model: structure and parameters.

Both sides are read as what each tensor is computed from: a node's hash covers its operator, its
attributes and the hashes of what it reads, down to the model's inputs. Names do not matter: equal
hashes mean isomorphic graphs. What a cut adds is transparent: conversions between int8 and uint8
bytes of the same value, and transposes at edges that travel as NHWC.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, numpy_helper

__all__ = ["Rejoined", "rejoin"]


@dataclass(frozen=True)
class Rejoined:
    """``nodes`` of the model; how many differ in structure, and in the constants below them."""

    nodes: int
    structure: int
    parameters: int


def rejoin(whole: onnx.ModelProto, stages: Sequence[onnx.ModelProto]) -> Rejoined:
    """Compare stage models, in order, with the whole model in contract form."""
    found = []
    for describe in (_shape, _content):
        left, right = _hashes([whole], describe), _hashes(stages, describe)
        found.append(sum(((left - right) + (right - left)).values()))
    return Rejoined(sum(_hashes([whole], _shape).values()), found[0], found[1])


def _shape(tensor: TensorProto) -> bytes:
    return repr((tensor.data_type, tuple(tensor.dims))).encode()


def _content(tensor: TensorProto) -> bytes:
    return _shape(tensor) + numpy_helper.to_array(tensor).tobytes()


def _hashes(
    models: Iterable[onnx.ModelProto], describe: Callable[[TensorProto], bytes]
) -> Counter[bytes]:
    """Hashes of all nodes, constants described by ``describe``; and of the last model's outputs."""
    values: dict[str, bytes] = {}
    found: Counter[bytes] = Counter()
    for model in models:
        # Names inside a stage are its own: what it reads and writes has the same name outside.
        local = {i.name: values.get(i.name, _hash(b"input", i.name.encode()))
                 for i in model.graph.input}  # fmt: skip
        constants = {t.name: t for t in model.graph.initializer}
        local.update({n: _hash(b"constant", describe(t)) for n, t in constants.items()})
        for node in model.graph.node:
            reads = [local.get(n, b"") for n in node.input]
            if _is_conversion(node, constants):
                local[node.output[0]] = reads[0]
                continue
            own = _hash(
                node.domain.encode(),
                node.op_type.encode(),
                *sorted(a.SerializeToString(deterministic=True) for a in node.attribute),
                *reads,
            )
            found[own] += 1
            local.update({n: _hash(own, str(k).encode()) for k, n in enumerate(node.output)})
        values.update({o.name: local[o.name] for o in model.graph.output})
    return found


def _is_conversion(node: onnx.NodeProto, constants: dict[str, TensorProto]) -> bool:
    """Whether a node only changes how the bytes of a value are kept."""
    if node.op_type == "Transpose":
        return node.name.endswith(("/nchw", "/nhwc"))
    if node.op_type not in ("DequantizeLinear", "QuantizeLinear") or len(node.input) != 3:
        return False
    scale, zero = (constants.get(n) for n in node.input[1:])
    if scale is None or zero is None or scale.dims or zero.dims:
        return False
    kind = zero.data_type, int(numpy_helper.to_array(zero))
    unit = float(numpy_helper.to_array(scale)) == 1.0
    return unit and kind in ((TensorProto.INT8, 0), (TensorProto.UINT8, 128))


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
