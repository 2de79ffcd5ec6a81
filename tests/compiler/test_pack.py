"""Packing puts every weight where the instruction set says, and changes no multiplier's result."""

from __future__ import annotations

import golden
import numpy as np
import pytest

from trivet.compiler.pack import Pool, encode_m, pack_dot, pack_lane, pack_params, pack_shared_one
from trivet.hdl.config import EngineConfig

CONFIG = EngineConfig(lanes=4, simd=2, requantisers=2)


def test_dot_weights_lie_by_block_slice_lane_simd() -> None:
    weight = np.random.default_rng(1).integers(-128, 128, (6, 3, 2, 5)).astype(np.int8)
    words = np.frombuffer(pack_dot(weight, CONFIG), np.int8).reshape(2, 3 * 2 * 3, 4, 2)
    for o in range(8):
        for y, x, c in np.ndindex(3, 2, 6):
            expected = weight[o, y, x, c] if o < 6 and c < 5 else 0
            assert words[o // 4, (y * 2 + x) * 3 + c // 2, o % 4, c % 2] == expected


def test_lane_weights_use_index_0() -> None:
    weight = np.random.default_rng(2).integers(-128, 128, (6, 3, 2)).astype(np.int8)
    words = np.frombuffer(pack_lane(weight, CONFIG), np.int8).reshape(2, 6, 4, 2)
    assert not words[..., 1].any()
    for c in range(8):
        expected = weight[c].reshape(-1) if c < 6 else np.zeros(6)
        assert np.array_equal(words[c // 4, :, c % 4, 0], expected)
    assert pack_shared_one(CONFIG) == bytes([1, 0] * 4)


def test_params_are_padded_to_blocks() -> None:
    data = pack_params(np.array([5, -(2**31), 7]), np.float32([0.5, 0.25, 2.0]), CONFIG)
    pairs = np.frombuffer(data, [("bias", "<i4"), ("m", "<f4")])
    assert pairs["bias"].tolist() == [5, -(2**31), 7, 0]
    assert pairs["m"].tolist() == [0.5, 0.25, 2.0, 1.0]


def test_clamping_the_exponent_changes_no_byte() -> None:
    rng = np.random.default_rng(3)
    m = rng.integers(1, 0x7F800000, 20000).astype(np.uint32).view(np.float32)
    sums = rng.integers(-(2**31), 2**31, 20000)
    sums[::3] = rng.integers(-3, 4, len(sums[::3]))
    sums[1::7] = rng.choice([2**31 - 1, -(2**31), 2**31 - 64, 1, -1, 0], len(sums[1::7]))
    coded = encode_m(m)
    assert coded.dtype == np.float32
    exponent = np.frexp(coded)[1]
    assert exponent.min() == -33
    assert exponent.max() == 9
    with np.errstate(over="ignore"):
        for zp, lo, hi in ((-128, -128, 127), (255, 0, 255), (0, 0, 100), (17, -128, 127)):
            want = golden.requant(sums, m, zp, lo, hi)
            assert np.array_equal(golden.requant(sums, coded, zp, lo, hi), want)


@pytest.mark.parametrize("m", [0.0, -1.0, np.inf, np.nan])
def test_bad_multiplier_is_refused(m: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        encode_m(np.float32([1.0, m]))


def test_pool_keeps_equal_contents_once() -> None:
    pool = Pool(4)
    assert [pool.add(b"abcd"), pool.add(b"abcdefgh"), pool.add(b"abcd")] == [0, 1, 0]
    assert (pool.words, pool.to_bytes()) == (3, b"abcdabcdefgh")
    with pytest.raises(ValueError, match="whole words"):
        pool.add(b"abc")
