"""Reads a program (TRVP) as far as a runtime needs: sections, ports, notes, memory geometry.

The format is INTERFACES' "Program"; the compiler's own reader and writer is ``hdl/isa.py``, which
a machine that only runs inference does not install.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from .link.frame import Space

__all__ = ["ExpandInfo", "Form", "LayerInfo", "PortInfo", "ProgramFile", "ProgramFileError"]

VERSION = 1
INSTRUCTION_BYTES = 64
_HEAD = struct.Struct("<4sHH32s")
_SECTION = struct.Struct("<4sIII")
_MEMORIES = (
    (Space.INST, b"INST"),
    (Space.WGHT, b"WGHT"),
    (Space.PARM, b"PARM"),
    (Space.TABL, b"TABL"),
    (Space.ADDT, b"ADDT"),
)


class ProgramFileError(ValueError):
    """A program that is damaged or of another version."""


@dataclass(frozen=True)
class ExpandInfo:
    """An input that the board spreads over the windows of the convolution that reads it.

    In memory lie ``out_h x out_w`` pixels of ``kernel_h * kernel_w * c`` channels; the byte of
    kernel row ky, column kx and channel k is the input's at row ``oy * stride_h + ky - pad_top``,
    column ``ox * stride_w + kx - pad_left``. Outside the image it is ``zp``, which is written when
    the program is loaded and never again.
    """

    hwc: tuple[int, int, int]
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    pad_top: int
    pad_left: int
    out_h: int
    out_w: int
    zp: int

    @property
    def stored(self) -> tuple[int, int, int]:
        """Height, width and channels of what lies in memory."""
        return self.out_h, self.out_w, self.kernel_h * self.kernel_w * self.hwc[2]


@dataclass(frozen=True)
class PortInfo:
    """A tensor in activation memory: unpadded NHWC bytes of one item on the link."""

    tensor: str
    offset: int  # word address
    hwc: tuple[int, int, int]
    dtype: str  # "int8" | "uint8"
    expand: ExpandInfo | None = None  # None: it lies in memory as it is
    pixel_words: int = 0  # words from pixel to pixel; 0: as many as the channels fill
    channel: int = 0  # first channel within `tensor`, where the port is a run of its channels
    row_words: int = 0  # words from row to row; 0: rows follow one another

    @property
    def nbytes(self) -> int:
        return self.hwc[0] * self.hwc[1] * self.hwc[2]


@dataclass(frozen=True)
class LayerInfo:
    """An instruction's layer: where its output can be read after it, and its predicted cost."""

    instruction: int
    unit: str
    nodes: tuple[str, ...]
    output: PortInfo
    macs: int
    cycles: int
    stalls: int


@dataclass(frozen=True)
class Form:
    """A way to run the program: its first instruction and its ports.

    A program has one, or two with ports of their own for items in turn. The host may touch a form's
    ports only while no run of that form is under way or queued. With ``release``, both have the
    same inputs, which are free once so many instructions were run.
    """

    first: int
    inputs: tuple[PortInfo, ...]
    outputs: tuple[PortInfo, ...]
    release: int = 0


@dataclass(frozen=True)
class ProgramFile:
    """One FPGA stage. ``memories``: what each memory of the engine holds, from word 0 on."""

    config: dict[str, int]
    config_sha256: str
    memories: dict[Space, bytes]
    inputs: tuple[PortInfo, ...]
    outputs: tuple[PortInfo, ...]
    layers: tuple[LayerInfo, ...]
    forms: tuple[Form, ...] = ()

    @property
    def instructions(self) -> int:
        """Instructions, END included."""
        return len(self.memories[Space.INST]) // INSTRUCTION_BYTES

    @property
    def word_bytes(self) -> dict[Space, int]:
        """Bytes of a word of each memory, by the engine's configuration."""
        lanes, simd = self.config["lanes"], self.config["simd"]
        return {
            Space.ACT: max(lanes, simd),
            Space.WGHT: lanes * simd,
            Space.PARM: self.config["requantisers"] * 8,
            Space.TABL: 1,
            Space.ADDT: 8,
            Space.INST: INSTRUCTION_BYTES,
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> ProgramFile:
        """Parse a file image; ProgramFileError says what is wrong with it."""
        if len(data) < _HEAD.size or data[:4] != b"TRVP":
            raise ProgramFileError("program: no TRVP header; the file is not a Trivet program")
        _, version, count, digest = _HEAD.unpack_from(data)
        if version != VERSION:
            raise ProgramFileError(
                f"program: version {version}, this release reads {VERSION}; compile the model again"
            )
        if len(data) < _HEAD.size + _SECTION.size * count:
            raise ProgramFileError("program: truncated section table; compile the model again")
        sections: dict[bytes, bytes] = {}
        for k in range(count):
            tag, offset, length, crc = _SECTION.unpack_from(data, _HEAD.size + _SECTION.size * k)
            body = data[offset : offset + length]
            if len(body) != length or zlib.crc32(body) != crc:
                name = tag.decode("ascii", "replace")
                raise ProgramFileError(
                    f"program: section {name} is truncated or damaged; compile the model again"
                )
            sections[tag] = body
        missing = [
            t.decode() for t in (*(tag for _, tag in _MEMORIES), b"META") if t not in sections
        ]
        if missing:
            raise ProgramFileError(
                f"program: sections {missing} are missing; compile the model again"
            )
        try:
            meta = json.loads(sections[b"META"])
            config = {str(k): int(v) for k, v in meta["config"].items()}
            for name in ("lanes", "simd", "requantisers"):
                if config[name] < 1:
                    raise ValueError(f"{name} is {config[name]}")
            inputs = tuple(_port(p) for p in meta["inputs"])
            outputs = tuple(_port(p) for p in meta["outputs"])
            layers = tuple(_layer(n) for n in meta["layers"])
            forms = [Form(0, inputs, outputs)]
            if (odd := meta.get("odd")) is not None:
                release = int(odd.get("release", 0))
                ports = [tuple(_port(p) for p in odd[side]) for side in ("inputs", "outputs")]
                forms = [
                    Form(0, inputs, outputs, release),
                    Form(int(odd["first"]), ports[0], ports[1], release),
                ]
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise ProgramFileError(f"program: section META is not understood ({e})") from e
        code = sections[b"INST"]
        if not code or len(code) % INSTRUCTION_BYTES:
            raise ProgramFileError(
                f"program: {len(code)} bytes of instructions, "
                f"must be a multiple of {INSTRUCTION_BYTES}; compile the model again"
            )
        memories = {space: sections[tag] for space, tag in _MEMORIES}
        return cls(config, digest.hex(), memories, inputs, outputs, layers, tuple(forms))


def _port(value: dict[str, Any]) -> PortInfo:
    h, w, c = (int(v) for v in value["hwc"])
    if min(h, w, c) < 1 or int(value["offset"]) < 0 or value["dtype"] not in ("int8", "uint8"):
        raise ValueError(f"port {value!r}")
    expand = None if value.get("expand") is None else _expand(value["expand"], (h, w, c))
    return PortInfo(
        str(value["tensor"]),
        int(value["offset"]),
        (h, w, c),
        str(value["dtype"]),
        expand,
        int(value.get("pixel_words", 0)),
        int(value.get("channel", 0)),
        int(value.get("row_words", 0)),
    )


def _expand(value: dict[str, Any], port: tuple[int, int, int]) -> ExpandInfo:
    h, w, c = (int(v) for v in value["hwc"])
    rest = {name: int(v) for name, v in value.items() if name != "hwc"}
    found = ExpandInfo((h, w, c), **rest)
    # What the setup of a request has room for (``link/expand.py``).
    counts = (*found.hwc, found.out_h, found.out_w, w + found.pad_left, h + found.pad_top)
    sizes = (found.kernel_h, found.kernel_w, found.stride_h, found.stride_w, c)
    if (
        h * w * c != port[0] * port[1] * port[2]
        or not all(1 <= v < 1 << 16 for v in counts)
        or not all(1 <= v < 256 for v in sizes)
        or found.stride_h > found.kernel_h
        or found.stride_w > found.kernel_w
        or not all(0 <= v < 256 for v in (found.pad_top, found.pad_left))
        or not -128 <= found.zp < 256
    ):
        raise ValueError(f"expanded port {value!r}")
    return found


def _layer(value: dict[str, Any]) -> LayerInfo:
    return LayerInfo(
        int(value["instruction"]),
        str(value["unit"]),
        tuple(str(n) for n in value["nodes"]),
        _port(value["output"]),
        int(value["macs"]),
        int(value["cycles"]),
        int(value["stalls"]),
    )
