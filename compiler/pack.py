"""Packs weights, parameters and tables into the engine's memories; equal contents are kept once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trivet.hdl.config import EngineConfig

from .units import Array

__all__ = [
    "Pool",
    "encode_m",
    "pack_dot",
    "pack_lane",
    "pack_params",
    "pack_shared_one",
    "pack_window",
]

# frexp exponents between which a multiplier still decides a byte (DESIGN section 5): above, every
# sum but 0 saturates; below, every sum gives 0.
_EXPONENT_LOW, _EXPONENT_HIGH = -33, 9

_PARAM = np.dtype([("bias", "<i4"), ("m", "<f4")])


class Pool:
    """One memory of the engine, filled front to back.

    Parameters
    ----------
    word_bytes : int
        Bytes of a word; every entry is a whole number of words.
    """

    def __init__(self, word_bytes: int) -> None:
        self.word_bytes = word_bytes
        self._parts: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self.words = 0

    def add(self, data: bytes) -> int:
        """Word address of ``data``, stored unless the same run of words already is."""
        if len(data) % self.word_bytes:
            raise ValueError(f"{len(data)} bytes are not whole words of {self.word_bytes}")
        if data not in self._places:
            self._places[data] = self.words
            self._parts.append(data)
            self.words += len(data) // self.word_bytes
        return self._places[data]

    def to_bytes(self) -> bytes:
        return b"".join(self._parts)


def encode_m(m: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Multipliers as the engine decodes them: exponent clamped, no result changed.

    Source of the bounds: DESIGN section 5 and its prototype (82 million cases). ValueError when
    one is not positive and finite.
    """
    values = np.asarray(m, np.float32)
    good = np.isfinite(values) & (values > 0)
    if not good.all():
        raise ValueError(
            f"output multiplier {values[~good].flat[0]} must be positive and finite; "
            "quantise the layer with nonzero finite scales"
        )
    _, exponent = np.frexp(values.astype(np.float64))
    bound = np.ldexp(0.5, np.clip(exponent, _EXPONENT_LOW, _EXPONENT_HIGH)).astype(np.float32)
    outside = (exponent < _EXPONENT_LOW) | (exponent > _EXPONENT_HIGH)
    return np.where(outside, bound, values).astype(np.float32)


def pack_dot(weight: Array, config: EngineConfig) -> bytes:
    """Weights int8 ``[O, KH, KW, C]`` as ``[block][slice][lane][simd]``; padding is 0."""
    outputs, kernel_h, kernel_w, channels = weight.shape
    blocks, slices = -(-outputs // config.lanes), -(-channels // config.simd)
    full = np.zeros(
        (blocks * config.lanes, kernel_h * kernel_w, slices * config.simd), dtype=np.int8
    )
    full[:outputs, :, :channels] = weight.reshape(outputs, kernel_h * kernel_w, channels)
    words = full.reshape(blocks, config.lanes, kernel_h * kernel_w, slices, config.simd)
    return words.transpose(0, 2, 3, 1, 4).tobytes()


def pack_lane(weight: Array, config: EngineConfig) -> bytes:
    """Weights int8 ``[C, KH, KW]`` of a depthwise layer: ``simd`` index 0 of each lane."""
    channels, kernel_h, kernel_w = weight.shape
    blocks, taps = -(-channels // config.lanes), kernel_h * kernel_w
    full = np.zeros((blocks * config.lanes, taps), dtype=np.int8)
    full[:channels] = weight.reshape(channels, taps)
    words = np.zeros((blocks, taps, config.lanes, config.simd), dtype=np.int8)
    words[..., 0] = full.reshape(blocks, config.lanes, taps).transpose(0, 2, 1)
    return words.tobytes()


def pack_window(weight: Array, config: EngineConfig) -> bytes:
    """Weights int8 ``[C, 3, 3]`` of a depthwise layer, a word a kernel row, columns reversed.

    ``simd`` index 0 of a lane meets the newest column, which is the rightmost.
    """
    channels, rows, columns = weight.shape
    blocks = -(-channels // config.lanes)
    full = np.zeros((blocks * config.lanes, rows, config.simd), dtype=np.int8)
    full[:channels, :, :columns] = weight[..., ::-1]
    return full.reshape(blocks, config.lanes, rows, -1).transpose(0, 2, 1, 3).tobytes()


def pack_shared_one(config: EngineConfig) -> bytes:
    """The weight word that pools and copies hold: 1 at ``simd`` index 0 of each lane."""
    word = np.zeros((config.lanes, config.simd), dtype=np.int8)
    word[:, 0] = 1
    return word.tobytes()


def pack_params(bias: Array, m: Array, config: EngineConfig) -> bytes:
    """Folded bias (int64 that fits int32) and encoded multiplier of each channel, whole blocks."""
    channels = len(bias)
    full = np.zeros(-(-channels // config.lanes) * config.lanes, _PARAM)
    full["m"] = 1.0
    full["bias"][:channels] = bias
    full["m"][:channels] = m
    return full.tobytes()
