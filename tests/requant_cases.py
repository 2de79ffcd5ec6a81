"""Cases for requantisers, and their judge."""

import numpy as np
import sympy
from golden import requant

# Zero point and bounds of a layer: both types, extreme zero points, fused Relu and Clip.
LAYERS = (
    (0, -128, 127),
    (-128, -128, 127),
    (127, -128, 127),
    (-3, -3, 127),
    (17, -20, 60),
    (5, 5, 5),
    (0, 0, 255),
    (255, 0, 255),
    (128, 0, 255),
    (114, 114, 255),
    (7, 7, 200),
)
INT32 = 1 << 31


def cases(rng, n):
    """Groups of n sums (int64) and multipliers (float32): random, ties, edges of every rounding."""
    signs = rng.choice([-1, 1], n)
    size = rng.integers(0, 32, n)
    sums = {
        "full": rng.integers(-INT32, INT32, n),
        "small": rng.integers(-70000, 70000, n),
        "any size": (rng.integers(0, 1 << 62, n) >> (62 - size)) * signs,
        "powers of two": (np.int64(1) << size) * signs + rng.integers(-300, 301, n),
    }
    sums = {name: np.clip(s, -INT32, INT32 - 1) for name, s in sums.items()}
    scales = {
        "any": rng.integers(1, 0x7F800000, n).astype(np.uint32).view(np.float32),
        "usual": (2.0 ** rng.uniform(-14, 0, n)).astype(np.float32),
        "exact ties": (rng.integers(1, 64, n) * 2.0 ** rng.integers(-40, 12, n)).astype(np.float32),
    }
    for name, s in sums.items():
        for scale, m in scales.items():
            yield f"{name}, {scale}", s, m
        # A product next to k + 1/2, for every k of the output's range: the nearest multiplier, and
        # its neighbours.
        s = np.where(s == 0, 1, s)
        m = ((rng.integers(0, 259, n) + 0.5) / np.abs(s)).astype(np.float32)
        steps = np.maximum(m.view(np.int32) + rng.integers(-2, 3, n), 1).astype(np.int32)
        yield f"{name}, near ties", s, steps.view(np.float32)
        # Every exponent that switches a case (saturates, shifts, vanishes), extreme mantissas.
        mantissa = np.where(rng.integers(0, 2, n), 0.5, 1 - 2.0**-24)
        mantissa += rng.integers(0, 3, n) * 2.0**-24
        m = (mantissa * 2.0 ** rng.integers(-36, 12, n)).astype(np.float32)
        yield f"{name}, exponents", s, m
    edges = np.array(
        [
            0,
            1,
            -1,
            2**24 - 1,
            2**24,
            2**24 + 1,
            2**24 + 2,
            2**24 + 3,
            -(2**24) - 1,
            2**25 + 2,
            2**25 + 6,
            2**31 - 1,
            -(2**31),
            2**31 - 64,
            2**31 - 65,
            2**31 - 192,
            1 - 2**31,
        ],
        np.int64,
    )
    for scale, m in scales.items():
        yield f"edges, {scale}", rng.choice(edges, n), m


def all_cases(seed, n):
    groups = list(cases(np.random.default_rng(seed), n))
    return np.concatenate([s for _, s, _ in groups]), np.concatenate([m for _, _, m in groups])


def expected(sums, m, layer):
    with np.errstate(over="ignore", under="ignore"):
        return requant(sums, m, *layer)


def differences(runs, results):
    """Texts of the first few differences; empty when there is none."""
    texts = []
    for (sums, m, layer), found in zip(runs, results, strict=True):
        want = expected(sums, m, layer)
        for k in np.nonzero(found != want)[0][:3]:
            texts.append(
                f"sum {sums[k]}, m {m[k]!r}, (zp, lo, hi) {layer}: {found[k]}, must be {want[k]}"
            )
    return texts


def split(sums, m):
    """The cases dealt out to the layers: every layer sees every kind of case."""
    return [(sums[k :: len(LAYERS)], m[k :: len(LAYERS)], layer) for k, layer in enumerate(LAYERS)]


def double_roundings(rng):
    """Products that lie half a float32 step from k + 1/2, exactly or by the least amount.

    There the second rounding decides the third. Random cases never come so close, so products are
    chosen first, as integers of every length, and then split into two factors of 24 bits.
    """
    found = []
    for length in range(26, 49):
        step = 1 << length - 24
        for offset in (step // 2 - 1, step // 2, step // 2 + 1):
            for side in (-1, 1):
                kinds = set()  # normalised product of 48 or 47 bits, k odd or even
                for _ in range(60):
                    odd = 2 * int(rng.integers(1, 128)) + 1  # k + 1/2 = odd / 2
                    tie = odd << length - odd.bit_length()
                    product = tie + side * offset
                    for a in sympy.divisors(product):
                        b = product // a
                        spare = a.bit_length() + b.bit_length() - product.bit_length()
                        kind = (spare, odd >> 1 & 1)
                        if max(a, b) < 1 << 24 and kind not in kinds:
                            kinds.add(kind)
                            shift = length - odd.bit_length() + 1
                            found.append((a * int(rng.choice([-1, 1])), b * 2.0**-shift))
                    if len(kinds) == 4:
                        break
    sums, m = np.array([s for s, _ in found], np.int64), np.array([m for _, m in found])
    assert np.array_equal(m, m.astype(np.float32))
    return sums, m.astype(np.float32)
