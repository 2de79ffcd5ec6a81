"""The reference machine: executes a program on numpy arrays, byte for byte what the engine does.

It knows only the program (instructions, packed memories, ports) and the instruction set's meaning
in ``hdl/isa.py``; how the compiler came to it is no concern here, so that a wrong lowering shows
as wrong bytes. Memory that nobody wrote holds arbitrary bytes, as on a board.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from trivet.hdl.isa import Expand, Instruction, LayerNote, Op, Port, Program, ProgramError

__all__ = ["ReferenceMachine"]

Array = npt.NDArray[Any]

_PARAM = np.dtype([("bias", "<i4"), ("m", "<f4")])
_EXACT32 = 1 << 24  # integers below are exact in float32, whatever the order of a sum
_INT32 = 1 << 31
# Least cycles from the skip read of a word to its write (hdl/latency.py, hdl/memories.py): the
# bytes are 4 on their way from memory and 5 in Post.
_SKIP_AHEAD = 10
# numpy's OpenBLAS computes products of at most this many multiplications on the calling thread.
# Its threads wake one another through the scheduler: on a busy machine a 16 ms wait for 0.06 ms.
_SERIAL_PRODUCTS = 1 << 18


class ReferenceMachine:
    """Runs one program, item after item.

    Parameters
    ----------
    program : Program
        ProgramError when an address leaves its memory or an instruction breaks the engine's rules.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        config = program.config
        words = config.act_words * config.word_bytes
        # Fixed arbitrary bytes: whoever reads what was never written gets a wrong result.
        garbage = np.random.default_rng(2026).integers(0, 256, words, dtype=np.uint8)
        self._blank = garbage.reshape(config.act_words, config.word_bytes)
        self._memory = self._blank.copy()
        if not program.instructions or program.instructions[-1].op != Op.END:
            raise ProgramError("program: the last instruction is not END")
        _check_sections(program)
        starts = (0,) if program.odd is None else (0, program.odd.first)
        self._forms = [
            [_Layer(program, k, Instruction.decode(i.encode())) for k, i in enumerate(form, start)]
            for start, form in zip(starts, program.forms, strict=True)
        ]
        self._layers = self._forms[0]
        for form in self._forms:
            for before, after in pairwise(form):
                _check_early(before, after)
            if program.odd is not None:
                # Any form may follow any form, as if they were one run.
                for other in self._forms:
                    _check_early(other[-1], form[0])
        self._notes = {note.instruction: note for note in program.layers}
        self._ports = [(program.inputs, program.outputs)]
        if program.odd is not None:
            self._ports.append((program.odd.inputs, program.odd.outputs))
            self._check_apart()
        ports = [port for both in self._ports for side in both for port in side]
        for port in (*ports, *(n.output for n in program.layers)):
            end = port.offset + self._words(port)
            if port.offset < 0 or end > config.act_words:
                raise ProgramError(
                    f"program: tensor '{port.tensor}' ends at word {end} of {config.act_words}"
                )
        self._windows: dict[str, Array] = {}  # of each expanded input: indices into its bytes
        for port in (port for inputs, _ in self._ports for port in inputs):
            if port.expand is not None:
                self._check_kept(port)
                self._windows[port.tensor] = _window_index(port.expand)

    def run(self, inputs: dict[str, Array], form: int = 0) -> dict[str, Array]:
        """Outputs ``[h, w, c]`` of one item; inputs are NHWC bytes, each of its port's dtype.

        ``form`` 1: by the program's second form.
        """
        self._load(inputs, form)
        for layer in self._forms[form]:
            layer.execute(self._memory)
        return {port.tensor: self.read(port) for port in self._ports[form][1]}

    def layers(self, inputs: dict[str, Array]) -> Iterator[tuple[LayerNote, Array]]:
        """After each instruction: its note and its output ``[h, w, c]``."""
        self._load(inputs)
        for k, layer in enumerate(self._layers):
            layer.execute(self._memory)
            if k in self._notes:
                yield self._notes[k], self.read(self._notes[k].output)

    def read(self, port: Port) -> Array:
        """A tensor out of activation memory, ``[h, w, c]``, copied."""
        if port.expand is not None:
            raise ValueError(f"input '{port.tensor}' lies expanded and cannot be read back")
        h, w, c = port.hwc
        width = self.program.config.word_bytes
        step = port.pixel_words or -(-c // width)
        steps = ((port.row_words or w * step) * width, step * width)
        packed = _pixels(self._memory, port.offset, (h, w, c), steps).copy()
        return packed.view(port.dtype).reshape(h, w, c)

    def _words(self, port: Port) -> int:
        """Words of memory in which the port's tensor lies."""
        return port.words(self.program.config.word_bytes)

    def _check_apart(self) -> None:
        """The host uses a form's ports while the other form runs: they are its own alone."""
        host: list[tuple[str, int, int]] = []
        for side in (port for both in self._ports for port in both):
            host += [(port.tensor, port.offset, port.offset + self._words(port)) for port in side]
        for k, (name, start, end) in enumerate(sorted(host, key=lambda span: span[1])[1:]):
            before = sorted(host, key=lambda span: span[1])[k]
            if start < before[2] and (name, start, end) != before:
                raise ProgramError(f"program: '{name}' and '{before[0]}' share memory")
        assert self.program.odd is not None
        if release := self.program.odd.release:
            for layer in (layer for form in self._forms for layer in form[release:]):
                for port in self.program.inputs:
                    end = port.offset + self._words(port)
                    spans = [(layer.i.src, layer.source_words), (layer.i.dst, layer.result_words)]
                    if layer.i.has_add:
                        spans.append((layer.i.src2, layer.result_words))
                    if any(at < end and port.offset < at + words for at, words in spans):
                        raise layer.wrong(f"uses '{port.tensor}' after its release")
        for form, others in zip(self._forms, reversed(self._ports), strict=True):
            for layer in form:
                for port in (*others[0], *others[1]):
                    end = port.offset + self._words(port)
                    if layer.i.dst < end and port.offset < layer.i.dst + layer.result_words:
                        raise layer.wrong(f"writes '{port.tensor}' of the other form")

    def _check_kept(self, port: Port) -> None:
        """The padding among an expanded input is written once: nothing else may lie there."""
        assert port.expand is not None
        start, end = port.offset, port.offset + self._words(port)
        if port.nbytes != int(np.prod(port.expand.hwc)):
            raise ProgramError(
                f"program: input '{port.tensor}' of {port.nbytes} bytes is expanded as "
                f"{port.expand.hwc}"
            )
        expand = port.expand
        if expand.stride_h > expand.kernel_h or expand.stride_w > expand.kernel_w:
            raise ProgramError(f"program: input '{port.tensor}' is expanded with a stride too far")
        others = [
            (p.tensor, p.offset, self._words(p))
            for inputs, _ in self._ports for p in inputs if p != port
        ]  # fmt: skip
        layers = [layer for form in self._forms for layer in form]
        others += [(f"instruction {y.index}", y.i.dst, y.result_words) for y in layers]
        for name, at, words in others:
            if at < end and start < at + words:
                raise ProgramError(
                    f"program: {name} is written where the expanded input '{port.tensor}' lies"
                )

    def _load(self, inputs: dict[str, Array], form: int = 0) -> None:
        wanted = {port.tensor for port in self.program.inputs}
        if set(inputs) != wanted:
            raise ValueError(f"inputs are {sorted(inputs)}, the program takes {sorted(wanted)}")
        self._memory[:] = self._blank
        for port in self._ports[form][0]:
            value = np.ascontiguousarray(inputs[port.tensor])
            if value.dtype != np.dtype(port.dtype) or value.size != port.nbytes:
                raise ValueError(
                    f"input '{port.tensor}': {value.dtype} of {value.size} elements, "
                    f"must be {port.dtype} of {port.nbytes} (NHWC {port.hwc})"
                )
            h, w, c = port.stored
            data = value.view(np.uint8).reshape(-1)
            words = self._memory[port.offset : port.offset + self._words(port)]
            if port.expand is not None:
                words[:] = np.uint8(port.expand.zp & 0xFF)  # as the host did when it loaded
                data = np.append(data, words[0, :1])[self._windows[port.tensor]]
            words.reshape(h * w, -1)[:, :c] = data.reshape(h * w, c)


class _Layer:
    """One instruction, its weights and parameters unpacked once."""

    def __init__(self, program: Program, index: int, instruction: Instruction) -> None:
        self.config, self.index, self.i = program.config, index, instruction
        i, config = instruction, program.config
        if i.op not in (Op.DOT, Op.LANE):
            raise self.wrong(f"operation {i.op} is unknown")
        if not all((i.slices, i.pixels, i.blocks, i.stride_h, i.stride_w)):
            raise self.wrong("a count of kernel, output, blocks or stride is 0")
        if i.window:
            self._check_window()
        # Words from a tensor's first to its last; pixels may lie apart (parts of a joint tensor).
        width = config.word_bytes
        depth = i.c_slices * config.simd if i.op == Op.DOT else i.blocks * config.lanes
        self.source_depth, self.result_depth = (
            -(-depth // width),
            -(-i.blocks * config.lanes // width),
        )
        if i.pixel_words and self.source_depth > i.pixel_words:
            raise self.wrong(f"reads {depth} channels of a pixel of {i.pixel_words} words")
        self.source_words = (i.in_h * i.in_w - 1) * i.pixel_words + self.source_depth
        self.result_row = i.out_w * i.out_pixel_words + i.out_row_gap
        self.result_words = (i.out_h - 1) * self.result_row + self.result_depth
        self.result_words += (i.out_w - 1) * i.out_pixel_words
        self._check_memory()
        self.channels = i.blocks * config.lanes
        taps = self._weights(program)  # [K, channels] for DOT, [KH * KW, channels] for LANE
        bias, self.m = self._params(program)
        bound = np.abs(taps).sum(0) if not i.acc_max else np.abs(taps).max(0)
        worst = int((bound * (255 if i.x_unsigned else 128) + np.abs(bias)).max())
        self.wraps = worst >= _INT32
        self.dtype: Any = np.float32 if worst < _EXACT32 else np.float64
        self.taps: Array = taps.astype(self.dtype)
        self.bias: Array = bias.astype(self.dtype)
        if i.has_mul:
            self._check_product(program, taps, bias)
        self.pairs = self._pairs(program) if i.has_add and not i.has_mul else None
        self.table = self._table(program) if i.has_table else None
        # The padded source is allocated once; only what lies inside the image is written again.
        rows = max(
            (i.out_h - 1) * i.stride_h + (i.kernel_h - 1) * i.dilation_h + 1, i.pad_top + i.in_h
        )
        cols = max(
            (i.out_w - 1) * i.stride_w + (i.kernel_w - 1) * i.dilation_w + 1, i.pad_left + i.in_w
        )
        self.depth = i.c_slices * config.simd if i.op == Op.DOT else self.channels
        self.padded = np.full((rows, cols, self.depth), i.zp_x, self.dtype)
        self.pieces = _pieces(i.pixels, len(taps), self.channels)

    def wrong(self, what: str) -> ProgramError:
        return ProgramError(f"instruction {self.index}: {what}")

    def _check_memory(self) -> None:
        """Addresses lie in memory, and the engine's rules for reads and writes hold."""
        i, size = self.i, self.config.act_bank_words
        spans = {"source": (i.src, self.source_words), "result": (i.dst, self.result_words)}
        if i.has_add:
            spans["skip tensor"] = (i.src2, self.result_words)
        for name, (start, words) in spans.items():
            if words < 1 or start + words > self.config.act_words:
                raise self.wrong(f"{name} ends at word {start + words} of {self.config.act_words}")
        for name, (start, words) in spans.items():
            if name == "result" or start >= i.dst + self.result_words or i.dst >= start + words:
                continue
            if name == "skip tensor" or self._own_words() & self._source_words():
                raise self.wrong(f"writes where its {name} lies")
        if i.has_add:
            banks = [
                set(range(start // size, (start + words - 1) // size + 1))
                for start, words in (spans["source"], spans["skip tensor"])
            ]
            if banks[0] & banks[1]:
                raise self.wrong(f"source and skip tensor share bank {min(banks[0] & banks[1])}")
        if i.blocks * self.config.lanes > i.out_pixel_words * self.config.word_bytes:
            raise self.wrong(
                f"{i.blocks} blocks do not fit an output pixel of {i.out_pixel_words} words"
            )
        # Cycles from one pixel's sums to the next: in a row, and from row to row.
        inner = (i.stride_w * i.kernel_h if i.window else i.slices) + i.idle
        outer = (3 - i.pad_left) * i.kernel_h if i.window else inner
        if min(inner, outer) < self.config.pixel_cycles:
            raise self.wrong(f"{i.idle} idle cycles are too few for {self.config.beats} beats")

    def _source_words(self) -> set[int]:
        i = self.i
        row = i.in_w * i.pixel_words
        return _words(i.src, (i.in_h, i.in_w), (row, i.pixel_words), self.source_depth)

    def _own_words(self) -> set[int]:
        i = self.i
        steps = (self.result_row, i.out_pixel_words)
        return _words(i.dst, (i.out_h, i.out_w), steps, self.result_depth)

    def _check_window(self) -> None:
        """Rules of LANE with three taps at once."""
        i = self.i
        if i.op != Op.LANE or self.config.simd < 3 or i.acc_max:
            raise self.wrong("a window needs LANE, sums and 3 multipliers a lane")
        if (i.kernel_h, i.kernel_w, i.dilation_w) != (3, 3, 1) or i.pad_left > 1:
            raise self.wrong("a window needs a kernel of 3 x 3, dilation_w 1, pad_left 0 or 1")

    def _weights(self, program: Program) -> npt.NDArray[np.int64]:
        i, config = self.i, self.config
        words = np.frombuffer(program.weights, np.int8).reshape(-1, config.lanes, config.simd)
        count = 1 if i.weight_hold else i.blocks * i.slices
        if i.weights + count > len(words):
            raise self.wrong(f"weights end at word {i.weights + count} of {len(words)}")
        used = words[i.weights : i.weights + count].astype(np.int64)
        if i.weight_hold:
            used = np.broadcast_to(used, (i.blocks * i.slices, *used.shape[1:]))
        own = 3 if i.window else 1
        if i.op == Op.LANE and used[:, :, own:].any():
            raise self.wrong(f"a LANE weight word is not 0 beyond index {own - 1}")
        if i.acc_max and i.op != Op.LANE:
            raise self.wrong("only LANE keeps maxima")
        used = used.reshape(i.blocks, i.slices, config.lanes, config.simd)
        if i.op == Op.LANE:
            if i.c_slices != 1:
                raise self.wrong(f"LANE with {i.c_slices} channel slices, must be 1")
            if i.window:  # [block, ky, lane, simd], the rightmost column first
                columns = used[..., 2::-1].transpose(1, 3, 0, 2)
                return columns.reshape(i.kernel_h * i.kernel_w, self.channels)
            return used[..., 0].transpose(1, 0, 2).reshape(i.slices, self.channels)
        return used.transpose(1, 3, 0, 2).reshape(i.slices * config.simd, self.channels)

    def _params(self, program: Program) -> tuple[Array, npt.NDArray[np.float32]]:
        i, config = self.i, self.config
        params = np.frombuffer(program.params, _PARAM)
        first = i.params * config.requantisers
        if first + self.channels > len(params):
            raise self.wrong(f"parameters end at channel {first + self.channels} of {len(params)}")
        used = params[first : first + self.channels]
        m = used["m"].astype(np.float32)
        exponent = np.frexp(m)[1]
        if not (np.isfinite(m) & (m > 0) & (exponent >= -33) & (exponent <= 9)).all():
            raise self.wrong("a multiplier is not positive with a binary exponent of -33..9")
        return used["bias"].astype(np.int64), m

    def _check_product(self, program: Program, taps: Array, bias: Array) -> None:
        """Rules of layers that multiply two tensors."""
        i, config = self.i, self.config
        if not (i.has_add and config.has_product):
            raise self.wrong("a product needs has_add and an engine with multipliers for it")
        ends = np.stack([taps * x for x in ((0, 255) if i.x_unsigned else (-128, 127))])
        low, high = ((side.sum(0) + bias) for side in (ends.min(0), ends.max(0)))
        if i.acc_max or low.min() < -256 or high.max() > 255:
            raise self.wrong(
                f"multiplies sums of {low.min()}..{high.max()}, the engine's factors have 9 bits"
            )
        first = i.params * config.requantisers
        params = np.frombuffer(program.params, _PARAM)
        used = params["m"][first : first + self.channels + config.requantisers]
        if len(used) <= self.channels or (used != used[0]).any():
            raise self.wrong("a product's multiplier is not that of all parameters and a word more")

    def _pairs(self, program: Program) -> npt.NDArray[np.int32]:
        pairs = np.frombuffer(program.addends, "<i4").reshape(-1, 256, 2)
        if self.i.addend >= len(pairs):
            raise self.wrong(f"addend tables {self.i.addend} of {len(pairs)}")
        used: npt.NDArray[np.int32] = pairs[self.i.addend].astype(np.int32)
        if (np.abs(used.astype(np.int64)) >= 1 << 27).any():
            raise self.wrong("an addend does not fit 28 bits")
        return used

    def _table(self, program: Program) -> npt.NDArray[np.uint8]:
        tables = np.frombuffer(program.tables, np.uint8).reshape(-1, 256)
        if self.i.table >= len(tables):
            raise self.wrong(f"table {self.i.table} of {len(tables)}")
        used: npt.NDArray[np.uint8] = tables[self.i.table]
        return used

    def reads(self) -> Iterator[int | None]:
        """Source words in the order of the slices, a slice a cycle; None for padding."""
        i, config = self.i, self.config
        block_bytes = config.lanes if i.op == Op.LANE else 0
        for block, oy in product(range(i.blocks), range(i.out_h)):
            if i.window:
                columns = (i.out_w - 1) * i.stride_w + 3 - i.pad_left
                taps = ((ky, x, 0) for x in range(columns) for ky in range(i.kernel_h))
            else:
                nest = (i.out_w, i.kernel_h, i.kernel_w, i.c_slices)
                taps = (
                    (ky, ox * i.stride_w + kx * i.dilation_w - i.pad_left, cs * config.simd)
                    for ox, ky, kx, cs in product(*map(range, nest))
                )
            for ky, x, byte in taps:
                y = oy * i.stride_h + ky * i.dilation_h - i.pad_top
                inside = 0 <= y < i.in_h and 0 <= x < i.in_w
                word = (byte + block * block_bytes) // config.word_bytes
                yield i.src + (y * i.in_w + x) * i.pixel_words + word if inside else None

    def results(self) -> tuple[Array, Array]:
        """In order of pixels: the slice or idle cycle of each layer that ends it; its word."""
        i = self.i
        rows = np.arange(i.blocks * i.out_h)[:, None]
        ox = np.arange(i.out_w)
        if i.window:
            first = (3 - i.pad_left) * i.kernel_h
            step = i.stride_w * i.kernel_h + i.idle
            ends = rows * (first + (i.out_w - 1) * step) + first - 1 + ox * step
        else:
            ends = (rows * i.out_w + ox + 1) * (i.slices + i.idle) - i.idle - 1
        block, oy = rows // i.out_h, rows % i.out_h
        word = block * self.config.lanes // self.config.word_bytes
        words = i.dst + oy * self.result_row + ox * i.out_pixel_words + word
        return ends.reshape(-1), words.reshape(-1)

    def execute(self, memory: Array) -> None:
        """Read, accumulate, requantise, post-process, write."""
        i = self.i
        acc = self._dot(memory) if i.op == Op.DOT else self._lane(memory)
        acc = acc.reshape(i.pixels, self.channels) + self.bias
        if self.wraps:
            acc = acc.astype(np.int64).astype(np.int32)
        width = self.config.word_bytes
        steps = (self.result_row * width, i.out_pixel_words * width)
        shape = (i.out_h, i.out_w, self.channels)
        skip = _pixels(memory, i.src2, shape, steps) if i.has_add else None
        if i.has_mul:
            assert skip is not None
            factor = (skip.view(np.int8) if i.lo_a < 0 else skip).astype(self.dtype) - i.zp_a
            acc *= factor.reshape(acc.shape)
        value = np.rint(acc.astype(np.float32) * self.m)
        value += np.float32(i.zp_y)
        result = np.clip(value, i.lo, i.hi).astype(np.int32).astype(np.uint8)
        result = result.reshape(shape)
        if self.pairs is not None:
            total = (self.pairs[result, 0] + self.pairs[skip, 1]) >> 16
            result = np.clip(total + i.zp_a, i.lo_a, i.hi_a).astype(np.uint8)
        if self.table is not None:
            result = self.table[result]
        _pixels(memory, i.dst, shape, steps)[:] = result

    def _windows(self, memory: Array) -> Array:
        """``[out_h, out_w, kernel_h, kernel_w, depth]`` view of the padded source."""
        i = self.i
        step = i.pixel_words * self.config.word_bytes
        pixels = _pixels(memory, i.src, (i.in_h, i.in_w, self.depth), (i.in_w * step, step))
        source = pixels.view(np.uint8 if i.x_unsigned else np.int8)
        padded = self.padded
        padded[i.pad_top : i.pad_top + i.in_h, i.pad_left : i.pad_left + i.in_w] = source
        y, x, c = padded.strides
        return np.lib.stride_tricks.as_strided(
            padded,
            (i.out_h, i.out_w, i.kernel_h, i.kernel_w, self.depth),
            (y * i.stride_h, x * i.stride_w, y * i.dilation_h, x * i.dilation_w, c),
            writeable=False,
        )

    def _dot(self, memory: Array) -> Array:
        rows = self._windows(memory).reshape(self.i.pixels, -1)
        if len(rows) == 1:
            single: Array = np.einsum("pk,kc->pc", rows, self.taps)
            return single
        total = np.empty((len(rows), self.channels), self.dtype)
        for pixels, columns in self.pieces:
            np.matmul(rows[pixels], self.taps[:, columns], out=total[pixels, columns])
        return total

    def _lane(self, memory: Array) -> Array:
        i = self.i
        taps = self.taps.reshape(i.kernel_h, i.kernel_w, self.channels)
        products = self._windows(memory) * taps
        total: Array = products.max((2, 3)) if i.acc_max else products.sum((2, 3))
        return total


def _pixels(memory: Array, word: int, shape: tuple[int, ...], steps: tuple[int, ...]) -> Array:
    """View of memory from a word on: bytes of pixels that lie ``steps`` bytes apart."""
    return np.lib.stride_tricks.as_strided(memory[word:], shape, (*steps, 1))


def _words(start: int, size: tuple[int, int], steps: tuple[int, int], depth: int) -> set[int]:
    """Words of rows and pixels that lie ``steps`` words apart; a pixel fills ``depth``."""
    rows, columns = (np.arange(n) * step for n, step in zip(size, steps, strict=True))
    words = start + rows[:, None, None] + columns[:, None] + np.arange(depth)
    return set(words.ravel().tolist())


def _check_early(before: _Layer, after: _Layer) -> None:
    """No word is read before it is written, no pixel done before its predecessors are.

    Slice s of a layer that starts ``early`` cycles early reads its word ``s + 2 - early`` cycles
    after the last write of the layer before. Latencies are fixed, so what that layer issues j
    cycles before its last slice it also writes j cycles before its last write.
    """
    early, first_end = after.i.early, int(after.results()[0][0])
    if early > first_end + 1:
        raise after.wrong(f"starts {early} cycles early, its first pixel has {first_end + 1}")
    ends, words = before.results()
    written: dict[int, int] = dict(zip(words.tolist(), (ends - ends[-1]).tolist(), strict=True))
    bank = before.config.act_bank_words
    skips: set[int] = set()
    if before.i.has_add:
        first, last = before.i.src2, before.i.src2 + before.result_words - 1
        skips = set(range(first // bank, last // bank + 1))
    for s, word in enumerate(islice(after.reads(), early)):
        if word is None:
            continue
        if s + 2 - early <= written.get(word, -early):
            raise after.wrong(
                f"reads word {word} before instruction {before.index} has written it; "
                f"{early} cycles early are too many"
            )
        # A skip read comes so long before its write, and has its bank for itself.
        if word // bank in skips and s + 2 - early <= -_SKIP_AHEAD:
            raise after.wrong(
                f"reads bank {word // bank} while instruction {before.index} reads its skip "
                f"tensor there; {early} cycles early are too many"
            )


def _window_index(expand: Expand) -> Array:
    """Index of every byte of the windows, ``[out_h * out_w, K]``, in the tensor's NHWC bytes.

    Padding is the index after the last byte.
    """
    h, w, c = expand.hwc
    rows = np.arange(expand.out_h)[:, None] * expand.stride_h - expand.pad_top
    cols = np.arange(expand.out_w)[:, None] * expand.stride_w - expand.pad_left
    y = (rows + np.arange(expand.kernel_h)).reshape(expand.out_h, 1, expand.kernel_h, 1, 1)
    x = (cols + np.arange(expand.kernel_w)).reshape(1, expand.out_w, 1, expand.kernel_w, 1)
    inside = (y >= 0) & (y < h) & (x >= 0) & (x < w)
    index: Array = np.where(inside, (y * w + x) * c + np.arange(c), h * w * c)
    return index.reshape(expand.out_h * expand.out_w, -1)


def _check_sections(program: Program) -> None:
    """Packed memories are whole words and fit the engine's."""
    config = program.config
    for name, data, word, limit in (
        ("weights", program.weights, config.weight_word_bytes, config.weight_words),
        ("parameters", program.params, config.requantisers * 8, config.param_words),
        ("tables", program.tables, 256, config.tables),
        ("addends", program.addends, 256 * 8, config.addends),
        ("instructions", program.instructions, 1, config.instructions),
    ):
        if len(data) % word or len(data) > word * limit:
            raise ProgramError(
                f"program: {name} are {len(data)} long, must be whole words of {word}, "
                f"at most {limit} of them"
            )


def _pieces(pixels: int, depth: int, channels: int) -> list[tuple[slice, slice]]:
    """Cut a product ``[pixels, depth] x [depth, channels]`` so that BLAS needs no second thread."""
    width = min(channels, max(1, _SERIAL_PRODUCTS // (4 * depth)))
    height = max(4, _SERIAL_PRODUCTS // (depth * width))
    return [(p, c) for p in _even(pixels, height) for c in _even(channels, width)]


def _even(length: int, limit: int) -> list[slice]:
    """Slices of nearly one size, none above ``limit``."""
    count = -(-length // limit)
    edges = [length * k // count for k in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]
