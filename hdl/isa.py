"""The engine's instruction set: one definition for compiler, reference machine, RTL and docs.

Pure data, without Amaranth. :data:`FIELDS` is the bit layout of an instruction (least significant
field first); the RTL builds its layout from it and ``docs/isa.md`` is rendered from it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from .config import EngineConfig
from .latency import operand_latency, post_latency

__all__ = [
    "FIELDS",
    "INSTRUCTION_BYTES",
    "LAYER_CYCLES_LIMIT",
    "SETUP_CYCLES",
    "START_CYCLES",
    "Expand",
    "Field",
    "Instruction",
    "LayerNote",
    "Odd",
    "Op",
    "Port",
    "Program",
    "ProgramError",
    "drain_cycles",
    "predicted_cycles",
    "predicted_interval",
    "predicted_stalls",
    "predicted_total",
]

VERSION = 1
INSTRUCTION_BYTES = 64


class ProgramError(ValueError):
    """A program file that is damaged or of another version."""


class Op:
    """Operations. ``DOT``: lanes share the activations, each has its weights (Conv, Gemm, MatMul).
    ``LANE``: lane l takes byte l of the word times its first weight (depthwise, pools, copies);
    with ``window`` also the bytes of the two columns before, times its second and third weight."""

    END = 0
    DOT = 1
    LANE = 2


class Field(NamedTuple):
    name: str
    bits: int
    signed: bool
    doc: str


FIELDS: tuple[Field, ...] = (
    Field("op", 4, False, "0 END, 1 DOT, 2 LANE"),
    Field("acc_max", 1, False, "keep the maximum of the products instead of their sum (MaxPool)"),
    Field("weight_hold", 1, False, "use one weight word for all slices and blocks (pools, copies)"),
    Field("x_unsigned", 1, False, "source bytes are uint8"),
    Field("has_add", 1, False, "add the skip tensor through addend tables after requantising"),
    Field("has_table", 1, False, "map the result through a 256-entry table, last of all"),
    Field("early", 5, False, "start so many cycles before the layer before has written its last"),
    Field("window", 1, False, "LANE takes the three taps of a kernel row at once (3 x 3 kernels)"),
    Field("prime", 2, False, "columns that begin a row without a result: window: 2 - pad_left"),
    Field("src", 16, False, "word address of the source tensor"),
    Field("src2", 16, False, "word address of the skip tensor; in another bank than the source"),
    Field("dst", 16, False, "word address of the result"),
    Field("weights", 16, False, "word address of the first weight word"),
    Field("params", 16, False, "word address of the first parameter word"),
    Field("table", 8, False, "index of the unary table"),
    Field("addend", 8, False, "index of the pair of addend tables"),
    Field("blocks", 16, False, "blocks of `lanes` output channels"),
    Field("out_h", 16, False, "output rows"),
    Field("out_w", 16, False, "output columns"),
    Field("kernel_h", 8, False, "kernel rows"),
    Field("kernel_w", 8, False, "kernel columns"),
    Field("c_slices", 16, False, "`simd`-wide slices of a pixel's channels (1 for LANE)"),
    Field("in_h", 16, False, "input rows, without padding"),
    Field("in_w", 16, False, "input columns, without padding"),
    Field("pixel_words", 16, False, "words of an input pixel; 0: all are the same pixel"),
    Field("row_words", 16, False, "words of an input row: in_w * pixel_words"),
    Field("out_pixel_words", 16, False, "words of an output pixel (and of a skip pixel)"),
    Field("stride_h", 4, False, "output stride in input rows"),
    Field("stride_w", 4, False, "output stride in input columns"),
    Field("dilation_h", 8, False, "kernel dilation in rows"),
    Field("dilation_w", 8, False, "kernel dilation in columns"),
    Field("pad_top", 8, False, "rows of padding above"),
    Field("pad_left", 8, False, "columns of padding on the left"),
    Field("idle", 8, False, "idle cycles between pixels, so that the requantisers keep up"),
    Field("step_x", 16, False, "words from column to column: stride_w * pixel_words (window: 1 *)"),
    Field("step_y", 16, False, "words from one output row to the next: stride_h * row_words"),
    Field("step_kx", 16, False, "words from kernel column to column: dilation_w * pixel_words"),
    Field("step_ky", 16, False, "words from kernel row to row: dilation_h * row_words"),
    Field("origin", 16, False, "src - pad_top * row_words - pad_left * pixel_words (window: 0 *), "
                               "mod 2^16"),
    Field("zp_x", 9, True, "byte that padding feeds"),
    Field("zp_y", 9, True, "zero point of the requantised result"),
    Field("lo", 9, True, "lower clamp of the requantised result"),
    Field("hi", 9, True, "upper clamp of the requantised result"),
    Field("zp_a", 9, True, "zero point of the sum with the skip tensor (has_mul: of that tensor)"),
    Field("lo_a", 9, True, "lower clamp of the sum (has_mul: negative if skip bytes are int8)"),
    Field("hi_a", 9, True, "upper clamp of the sum with the skip tensor"),
    Field("out_row_gap", 16, False, "words between output rows: 0 but in a Resize"),
    Field("columns", 16, False, "out_w; window: columns read, prime + (out_w - 1) * stride_w + 1"),
    Field("has_mul", 1, False, "with has_add: multiply by the skip tensor before requantising"),
)
_BITS = sum(f.bits for f in FIELDS)
assert _BITS <= INSTRUCTION_BYTES * 8, _BITS
_DERIVED = ("row_words", "step_x", "step_y", "step_kx", "step_ky", "origin", "prime", "columns")


@dataclass(frozen=True)
class Instruction:
    """One layer. Fields mean what :data:`FIELDS` says; derived ones are not kept.

    Tensors lie in activation memory as NHWC words: pixel (y, x) of a tensor at ``base`` starts at
    word ``base + (y * w + x) * pixel_words``; channel c is byte c of that run. Bytes of a last word
    beyond the tensor's channels are undefined and meet zero weights. Weights lie as
    ``[block][slice][lane][simd]`` bytes, slices in order kernel row, kernel column, channel slice;
    LANE reads ``simd`` index 0 only, the compiler leaves the others 0.

    ``window`` is LANE for kernels of 3 x 3 (``dilation_w`` 1, ``pad_left`` 0 or 1, sums only), on
    engines whose ``simd`` is at least 3: each row of results reads its columns once, from the
    image's first on, three words a column, top to bottom; a lane's multipliers 0, 1 and 2 take
    byte l of this column, of the one before and of the one before that. So its weights lie as
    ``[block][kernel row][lane][simd]``, ``simd`` index 2 - kx. The column left of the image is
    never read. A column that completes no result (``prime`` ones at a row's start, those between
    strides) is followed by no idle cycles, nor is a row's last, which ``prime`` columns follow.

    ``has_mul`` (with ``has_add``, on engines with ``has_product``): the sum of a channel, bias
    included and within -256..255, times ``skip - zp_a`` is what is requantised; addend tables have
    no part in it. All channels have one multiplier: a word of parameters behind the layer's last
    must hold it too, as the product meets its multiplier four cycles after the sum met its bias.
    """

    op: int = Op.DOT
    src: int = 0
    dst: int = 0
    weights: int = 0
    params: int = 0
    blocks: int = 1
    out_h: int = 1
    out_w: int = 1
    kernel_h: int = 1
    kernel_w: int = 1
    c_slices: int = 1
    in_h: int = 1
    in_w: int = 1
    pixel_words: int = 1
    out_pixel_words: int = 1
    out_row_gap: int = 0
    stride_h: int = 1
    stride_w: int = 1
    dilation_h: int = 1
    dilation_w: int = 1
    pad_top: int = 0
    pad_left: int = 0
    idle: int = 0
    zp_x: int = 0
    zp_y: int = 0
    lo: int = -128
    hi: int = 127
    acc_max: int = 0
    weight_hold: int = 0
    x_unsigned: int = 0
    has_add: int = 0
    src2: int = 0
    addend: int = 0
    zp_a: int = 0
    lo_a: int = -128
    hi_a: int = 127
    has_table: int = 0
    table: int = 0
    early: int = 0
    window: int = 0
    has_mul: int = 0

    def derived(self) -> dict[str, int]:
        """Products that the address generator would otherwise need multipliers for."""
        row = self.in_w * self.pixel_words
        # A window begins at the image's first column.
        left = 0 if self.window else self.pad_left
        prime = 2 - self.pad_left if self.window else 0
        origin = self.src - self.pad_top * row - left * self.pixel_words
        return {
            "row_words": row,
            "step_x": (1 if self.window else self.stride_w) * self.pixel_words,
            "step_y": self.stride_h * row,
            "step_kx": self.dilation_w * self.pixel_words,
            "step_ky": self.dilation_h * row,
            "origin": origin & 0xFFFF,
            "prime": prime,
            "columns": prime + (self.out_w - 1) * self.stride_w + 1 if self.window else self.out_w,
        }

    @property
    def slices(self) -> int:
        """Slices of one output pixel and block (``window``: of one column), each a weight word."""
        return self.kernel_h * (1 if self.window else self.kernel_w) * self.c_slices

    @property
    def pitch(self) -> int:
        """Slices from one pixel to the next in its row."""
        return self.slices * (self.stride_w if self.window else 1)

    @property
    def work(self) -> int:
        """Slices (cycles of useful work) of the layer."""
        return self.blocks * self.out_h * self.derived()["columns"] * self.slices

    @property
    def pixels(self) -> int:
        return self.out_h * self.out_w

    def encode(self) -> bytes:
        """64 bytes, little-endian; ValueError names a field that does not fit its width."""
        values = {**asdict(self), **self.derived()}
        word = shift = 0
        for f in FIELDS:
            value = values[f.name]
            low = -(1 << f.bits - 1) if f.signed else 0
            high = low + (1 << f.bits) - 1
            if not low <= value <= high:
                raise ValueError(f"instruction: {f.name} is {value}, must be {low}..{high}")
            word |= (value & ((1 << f.bits) - 1)) << shift
            shift += f.bits
        return word.to_bytes(INSTRUCTION_BYTES, "little")

    @classmethod
    def decode(cls, data: bytes) -> Instruction:
        """Inverse of :meth:`encode`; ProgramError when a derived field disagrees."""
        word = int.from_bytes(data, "little")
        values: dict[str, int] = {}
        for f in FIELDS:
            value = word & ((1 << f.bits) - 1)
            if f.signed and value >> (f.bits - 1):
                value -= 1 << f.bits
            values[f.name] = value
            word >>= f.bits
        found = {name: values.pop(name) for name in _DERIVED}
        instruction = cls(**values)
        for name, value in instruction.derived().items():
            if value != found[name]:
                raise ProgramError(f"instruction: field {name} is {found[name]}, must be {value}")
        return instruction


# A layer that is not done after so many cycles (2.7 s at 100 MHz) is reported as stuck.
LAYER_CYCLES_LIMIT = 1 << 28

# Cycles from the start pulse to the first slice: fetch of the first instruction (7, at 16 bytes a
# cycle), a look at it, its way into the address generator (2).
START_CYCLES = 10

# Cycles from the end of one layer to the first slice of the next. The next instruction is fetched
# and its loops are set while the pipeline drains; its first slice is issued in the cycle that
# writes the last bytes of the layer before, and reads in the cycle after; or `early` cycles sooner.
SETUP_CYCLES = 0


def predicted_stalls(config: EngineConfig, instruction: Instruction) -> int:
    """Issue cycles in which the multipliers wait for the requantisers: closed form.

    ``idle`` cycles between pixels; none after the last, where the pipeline drains, nor, with
    ``window``, after a row's last.
    """
    pauses = instruction.blocks * instruction.pixels - 1
    if instruction.window:
        pauses = instruction.blocks * instruction.out_h * (instruction.out_w - 1)
    return pauses * instruction.idle


def drain_cycles(config: EngineConfig, instruction: Instruction) -> int:
    """Cycles from the last slice (not counted) to the last byte written: the pipeline's depth.

    Address (2), activation memory (3), operands (2), multipliers (2), adder tree, accumulator (1),
    then the capture beat by beat, and Post; the write itself.
    """
    tree = (config.simd - 1).bit_length()
    post = post_latency(config, instruction.has_add, instruction.has_table)
    return 9 + operand_latency(config) + tree + (config.beats - 1) * config.beat_cycles + post


def predicted_cycles(config: EngineConfig, instruction: Instruction) -> int:
    """Cycles of one layer, exact closed form: from the last byte of the layer before to its own.

    work + stalls + drain - early; SETUP_CYCLES are hidden. Work is a cycle for each slice: blocks *
    out_h * columns * slices. Stalls are the ``idle`` cycles between pixels.
    The first layer of a run has none before it and takes its `early` cycles, too.
    """
    drain = drain_cycles(config, instruction)
    stalls = predicted_stalls(config, instruction)
    return SETUP_CYCLES + instruction.work + stalls + drain - instruction.early


def predicted_total(config: EngineConfig, instructions: Iterable[Instruction]) -> int:
    """Cycles of a run, exact: from the start pulse to the last byte written; stops at an END."""
    total = START_CYCLES + INSTRUCTION_BYTES // config.fetch_bytes - INSTRUCTION_BYTES // 16
    for k, instruction in enumerate(instructions):
        if instruction.op == Op.END:
            break
        total += predicted_cycles(config, instruction) + (instruction.early if k == 0 else 0)
    return total


def predicted_interval(config: EngineConfig, instructions: Iterable[Instruction]) -> int:
    """Cycles from the last byte of a run to that of a run queued behind it in time, exact.

    The first layer follows the other run's last one as any layer does its predecessor, so this is
    the sum of :func:`predicted_cycles`; stops at an END.
    """
    total = 0
    for instruction in instructions:
        if instruction.op == Op.END:
            break
        total += predicted_cycles(config, instruction)
    return total


@dataclass(frozen=True)
class Expand:
    """How the board spreads an input over the windows of the convolution that reads it.

    A first layer of few channels wastes the engine's ``simd`` width at every tap. So the loader
    writes each arriving byte to every window that uses it, and the layer becomes a 1 x 1
    convolution: in memory lies a tensor of ``out_h x out_w`` pixels whose channel
    ``(ky * kernel_w + kx) * c + channel`` is the input at row ``oy * stride_h + ky - pad_top``,
    column ``ox * stride_w + kx - pad_left``. A stride is at most its kernel. Bytes outside the
    image are ``zp``: the host writes them once, when it loads the program, so nothing else may ever
    lie there.
    """

    hwc: tuple[int, int, int]  # the input as the convolution sees it, without padding
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
class Port:
    """A tensor that the host writes or reads: unpadded NHWC bytes of one item on the link."""

    tensor: str
    offset: int  # word address
    hwc: tuple[int, int, int]
    dtype: str  # "int8" | "uint8"
    expand: Expand | None = None  # of inputs only; None: it lies in memory as it is
    # A layer's output may be a part of a joint tensor (Concat): words from pixel to pixel, 0 for as
    # many as `hwc` fills; and its first channel within `tensor`, of which it then is a run.
    pixel_words: int = 0
    channel: int = 0
    # Or every so many rows and columns of `tensor` (Resize), from this pixel on; words from row to
    # row, 0 for rows without gaps.
    spread: tuple[int, int] = (1, 1)
    pixel: tuple[int, int] = (0, 0)
    row_words: int = 0

    def words(self, word_bytes: int) -> int:
        """Words of memory from its first byte to its last."""
        h, w, c = self.stored
        own = -(-c // word_bytes)
        step = self.pixel_words or own
        return (h - 1) * (self.row_words or w * step) + (w - 1) * step + own

    def part_of(self, values: Any) -> Any:
        """What it holds of its tensor, an NHWC array of any shape: array ``hwc``."""
        (h, w, c), (y, x), (first_y, first_x) = self.hwc, self.spread, self.pixel
        whole = values.reshape(h * y, w * x, -1)
        return whole[first_y::y, first_x::x, self.channel : self.channel + c]

    @property
    def nbytes(self) -> int:
        return self.hwc[0] * self.hwc[1] * self.hwc[2]

    @property
    def stored(self) -> tuple[int, int, int]:
        """Height, width and channels of what lies in memory."""
        return self.hwc if self.expand is None else self.expand.stored


@dataclass(frozen=True)
class LayerNote:
    """What an instruction stands for, and what it is predicted to cost before anything is run."""

    instruction: int
    unit: str  # anchor node
    nodes: tuple[str, ...]  # ONNX nodes
    output: Port  # readable after this instruction
    macs: int  # useful multiplications
    cycles: int  # predicted
    stalls: int  # predicted


@dataclass(frozen=True)
class Odd:
    """A program's second form, for every other item of a stream.

    It computes the same with inputs and outputs of its own, so that the host can write the next
    item's inputs and read the last one's outputs while the other form runs: nothing of this form's
    ports is touched then, and the other way round. So the rule for the host is: write a form's
    inputs and read its outputs only while no run of that form is under way or queued.

    Where memory holds the inputs but once, both forms have the same, and ``release`` is the number
    of a form's first instructions after which nothing reads them. So an item is two runs there, one
    up to that point and one from there on, and the host writes the next inputs when the first is
    done.
    """

    first: int  # its first instruction, behind the first form's END
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    release: int = 0  # 0: inputs of its own


@dataclass(frozen=True)
class Program:
    """One FPGA stage: instructions (the last is END), packed memories, ports and notes.

    ``weights``: words of ``lanes * simd`` int8. ``params``: 8 bytes an output channel, int32 bias
    (zero points folded: ``bias - zp_x * sum(w)``), then the bits of float32 ``m``; in order of
    channels, padded to whole blocks of ``lanes`` (bias 0, m 1.0). The exponent of ``m`` is clamped
    at compile time so that frexp's lies in -33..9, which loses nothing (DESIGN section 5).
    ``tables``: 256 bytes each. ``addends``: 256 pairs of int32 (Ta[i], Tb[i]) each, index = byte's
    bit pattern, values within 28 bits signed: Ta of the requantised result, Tb of the skip tensor.
    """

    config: EngineConfig
    instructions: tuple[Instruction, ...]
    weights: bytes
    params: bytes
    tables: bytes
    addends: bytes
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    layers: tuple[LayerNote, ...]
    version: int = VERSION
    odd: Odd | None = None

    @property
    def forms(self) -> tuple[tuple[Instruction, ...], ...]:
        """Instructions of the one form, or of both, without END."""
        if self.odd is None:
            return (self.instructions[:-1],)
        return self.instructions[: self.odd.first - 1], self.instructions[self.odd.first : -1]

    @property
    def interval(self) -> int | None:
        """Cycles from item to item in a stream if the link keeps up; None without a second form.

        The closed form of :func:`predicted_interval`; the mean of the two forms', rounded up.
        """
        if self.odd is None:
            return None
        both = sum(predicted_interval(self.config, form) for form in self.forms)
        return (both + 1) // 2

    @property
    def config_sha256(self) -> str:
        return self.config.sha256

    def to_bytes(self) -> bytes:
        """File image: header, section table, sections (INTERFACES, "Program")."""
        meta: dict[str, Any] = {
            "config": self.config.to_dict(),
            "inputs": [asdict(p) for p in self.inputs],
            "outputs": [asdict(p) for p in self.outputs],
            "layers": [asdict(n) for n in self.layers],
        }
        if self.odd is not None:
            meta["odd"] = asdict(self.odd)
            meta["interval"] = self.interval
        sections = (
            (b"INST", b"".join(i.encode() for i in self.instructions)),
            (b"WGHT", self.weights),
            (b"PARM", self.params),
            (b"TABL", self.tables),
            (b"ADDT", self.addends),
            (b"META", json.dumps(meta, sort_keys=True, separators=(",", ":")).encode()),
        )
        digest = bytes.fromhex(self.config.sha256)
        head = struct.pack("<4sHH32s", b"TRVP", self.version, len(sections), digest)
        offset = len(head) + 16 * len(sections)
        table = b""
        for tag, body in sections:
            table += struct.pack("<4sIII", tag, offset, len(body), zlib.crc32(body))
            offset += len(body)
        return head + table + b"".join(body for _, body in sections)

    @classmethod
    def from_bytes(cls, data: bytes) -> Program:
        """Parse a file image; ProgramError says what is wrong with it."""
        if len(data) < 40 or data[:4] != b"TRVP":
            raise ProgramError("program: no TRVP header; the file is not a Trivet program")
        _, version, count, digest = struct.unpack_from("<4sHH32s", data)
        if version != VERSION:
            raise ProgramError(
                f"program: version {version}, this release reads {VERSION}; compile the model again"
            )
        if len(data) < 40 + 16 * count:
            raise ProgramError("program: truncated section table")
        sections: dict[bytes, bytes] = {}
        for k in range(count):
            tag, offset, length, crc = struct.unpack_from("<4sIII", data, 40 + 16 * k)
            body = data[offset : offset + length]
            if len(body) != length or zlib.crc32(body) != crc:
                name = tag.decode("ascii", "replace")
                raise ProgramError(f"program: section {name} is truncated or damaged")
            sections[tag] = body
        needed = ("INST", "WGHT", "PARM", "TABL", "ADDT", "META")
        missing = [tag for tag in needed if tag.encode() not in sections]
        if missing:
            raise ProgramError(f"program: sections {missing} are missing")
        try:
            meta = json.loads(sections[b"META"])
            config = EngineConfig.from_dict(meta["config"])
            inputs = tuple(_port(p) for p in meta["inputs"])
            outputs = tuple(_port(p) for p in meta["outputs"])
            layers = tuple(
                LayerNote(n["instruction"], n["unit"], tuple(n["nodes"]), _port(n["output"]),
                          n["macs"], n["cycles"], n["stalls"])
                for n in meta["layers"]
            )
            odd = None
            if (second := meta.get("odd")) is not None:
                odd = Odd(int(second["first"]), tuple(_port(p) for p in second["inputs"]),
                          tuple(_port(p) for p in second["outputs"]),
                          int(second.get("release", 0)))
        except (KeyError, TypeError, ValueError) as e:
            raise ProgramError(f"program: section META is not understood ({e})") from e
        if config.sha256 != digest.hex():
            raise ProgramError("program: configuration hash of header and META differ")
        code = sections[b"INST"]
        if len(code) % INSTRUCTION_BYTES or not code:
            raise ProgramError(
                f"program: {len(code)} bytes of instructions, "
                f"must be a multiple of {INSTRUCTION_BYTES}"
            )
        instructions = tuple(
            Instruction.decode(code[k : k + INSTRUCTION_BYTES])
            for k in range(0, len(code), INSTRUCTION_BYTES)
        )
        if instructions[-1].op != Op.END:
            raise ProgramError("program: the last instruction is not END")
        if odd is not None and not (0 < odd.first < len(instructions)
                                    and instructions[odd.first - 1].op == Op.END):
            raise ProgramError(f"program: no END before its second form, instruction {odd.first}")
        return cls(config, instructions, sections[b"WGHT"], sections[b"PARM"], sections[b"TABL"],
                   sections[b"ADDT"], inputs, outputs, layers, version, odd)


def _port(p: dict[str, Any]) -> Port:
    h, w, c = (int(v) for v in p["hwc"])
    expand = p.get("expand")
    if expand is not None:
        values = {k: tuple(v) if k == "hwc" else int(v) for k, v in expand.items()}
        expand = Expand(**values)
    return Port(str(p["tensor"]), int(p["offset"]), (h, w, c), str(p["dtype"]), expand,
                int(p.get("pixel_words", 0)), int(p.get("channel", 0)),
                _pair(p.get("spread", (1, 1))), _pair(p.get("pixel", (0, 0))),
                int(p.get("row_words", 0)))


def _pair(values: Any) -> tuple[int, int]:
    first, second = (int(v) for v in values)
    return first, second
