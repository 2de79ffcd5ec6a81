"""Bytes that arrive lie in every window that uses them, and nowhere else."""

import random

import numpy as np
import pytest
from streams import simulate

from trivet.hdl.config import EngineConfig
from trivet.hdl.expand import SETUP_BYTES, Expander, Setup
from trivet.hdl.isa import Expand
from trivet.hdl.transfer import expand_cycles
from trivet.runtime.link.expand import _WIDTHS, expand_requests, expand_setup

CONFIG = EngineConfig(lanes=4, simd=4, requantisers=2, act_banks=3, act_bank_words=512)
HEADER = 8  # of LOAD


def windows(image, e):
    """im2col by its definition: [out_h, out_w, kernel_h, kernel_w, c]; -1 where the padding is."""
    h, w, c = image.shape
    found = np.full((e.out_h, e.out_w, e.kernel_h, e.kernel_w, c), -1)
    for oy, ox, ky, kx in np.ndindex(found.shape[:4]):
        y, x = oy * e.stride_h + ky - e.pad_top, ox * e.stride_w + kx - e.pad_left
        if 0 <= y < h and 0 <= x < w:
            found[oy, ox, ky, kx] = image[y, x]
    return found


def memory_of(image, e, offset, config=CONFIG):
    """Activation memory as bytes, -1 where nothing is written."""
    pixels = windows(image, e).reshape(e.out_h * e.out_w, -1)
    width = -(-pixels.shape[1] // config.word_bytes) * config.word_bytes
    padded = np.full((len(pixels), width), -1)
    padded[:, :pixels.shape[1]] = pixels
    memory = np.full(config.act_words * config.word_bytes, -1)
    memory[offset * config.word_bytes:][:padded.size] = padded.reshape(-1)
    return memory


def write(requests, config=CONFIG, stall=0.0, seed=0):
    """Serve LOAD payloads one after another: memory, refusals and cycles of each."""
    dut = Expander(config)
    rng = random.Random(seed)
    memory = np.full(config.act_words * config.word_bytes, -1)
    refused, cycles = [], []
    outputs = (dut.write_en, dut.write_addr, dut.write_byte, dut.write_data, dut.done, dut.refused)

    async def serve(ctx):
        ctx.set(dut.write_ready, 1)
        ctx.set(dut.write_idle, 1)
        for payload in requests:
            body = list(payload[HEADER:])
            ctx.set(dut.address, int.from_bytes(payload[4:8], "little"))
            ctx.set(dut.count, len(body) - SETUP_BYTES)
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            cycles.append(0)
            done = False
            while not done:
                valid = bool(body) and rng.random() >= stall
                ctx.set(dut.i.valid, valid)
                ctx.set(dut.i.payload, body[0] if body else 0)
                _, _, ready, en, addr, byte, value, done, bad = await ctx.tick().sample(
                    dut.i.ready, *outputs)
                cycles[-1] += 1
                assert cycles[-1] < 200_000
                if ready and valid:
                    body.pop(0)
                if en:
                    memory[addr * config.word_bytes + byte] = value
            refused.append(bool(bad))

    simulate(dut, serve)
    return memory, refused, cycles


def random_case(seed):
    """An image and the windows of a convolution on it."""
    rng = np.random.default_rng(seed)
    h, w, c = (int(rng.integers(1, n)) for n in (8, 8, 6))
    kernel = [int(rng.integers(1, 5)) for _ in range(2)]
    stride = [int(rng.integers(1, k + 1)) for k in kernel]
    pads = [int(rng.integers(0, k)) for k in (*kernel, *kernel)]  # top, left, bottom, right
    out = [
        max(1, (n + pads[k] + pads[k + 2] - kernel[k]) // stride[k] + 1)
        for k, n in enumerate((h, w))
    ]
    e = Expand((h, w, c), *kernel, *stride, pads[0], pads[1], *out, zp=0)
    return rng.integers(0, 256, (h, w, c)).astype(np.uint8), e, int(rng.integers(0, 40))


def test_setup_is_laid_out_as_the_client_packs_it():
    widths = [(name, 8 * width) for name, width in _WIDTHS.items()]
    assert [(name, field.width) for name, field in Setup] == widths


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_shapes_lie_as_im2col_says(first):
    for seed in range(first, first + 10):
        image, e, offset = random_case(seed)
        piece = random.Random(seed).choice((1, 3, 7, 50, 900))
        piece = max(piece, image.size // 20)
        requests = expand_requests(e, offset, CONFIG.word_bytes, image.tobytes(), piece)
        memory, refused, _ = write(list(requests), stall=0.3 if seed % 3 == 0 else 0.0, seed=seed)
        assert not any(refused), seed
        assert np.array_equal(memory, memory_of(image, e, offset)), (seed, e)


@pytest.mark.parametrize("lanes", [1, 16])
def test_other_widths_of_a_word(lanes):
    config = EngineConfig(lanes=lanes, simd=1, requantisers=1, act_bank_words=1024)
    image, e, offset = random_case(5)
    memory, _, _ = write(list(expand_requests(e, offset, lanes, image.tobytes())), config)
    assert np.array_equal(memory, memory_of(image, e, offset, config))


def test_requests_may_be_repeated_and_come_in_any_order():
    image, e, offset = random_case(14)
    requests = list(expand_requests(e, offset, CONFIG.word_bytes, image.tobytes(), 9))
    assert len(requests) > 3
    other = list(expand_requests(e, offset, CONFIG.word_bytes, bytes(image.size), 9))
    shuffled = other[::2] + requests * 2
    random.Random(1).shuffle(shuffled)
    memory, _, _ = write(other[:1] + shuffled + requests[::-1])
    assert np.array_equal(memory, memory_of(image, e, offset))


def test_closed_form_of_the_cycles():
    """Exact over all requests, beside what each takes for its setup, its check and its end."""
    for seed in range(30):
        image, e, offset = random_case(seed)
        requests = list(expand_requests(e, offset, CONFIG.word_bytes, image.tobytes(), 50))
        _, _, cycles = write(requests)
        # The end takes one more if the last window of all is written, not beyond the last row.
        rest = sum(cycles) - expand_cycles(e) - len(requests) * (SETUP_BYTES + 3)
        assert 0 <= rest <= len(requests), (seed, e)


def test_cycles_of_a_byte():
    """One, and one for each window: 3 x 3 of stride 1, and 5 x 2 of a 10 x 4 kernel of stride 2."""
    for kernel, stride, pads, taps in (((3, 3), 1, (1, 1), 9), ((10, 4), 2, (4, 1), 10)):
        e = Expand((12, 12, 1), *kernel, stride, stride, *pads, 12 // stride, 12 // stride, 0)
        (request,) = expand_requests(e, 0, CONFIG.word_bytes, bytes(144))
        _, _, (cycles,) = write([request])
        assert cycles <= 144 * (taps + 1) + SETUP_BYTES + 4
        assert cycles > 120 * taps


def corrupt(request, **fields):
    """The same request with other values in its setup."""
    at, body = HEADER, bytearray(request)
    for name, width in _WIDTHS.items():
        if name in fields:
            body[at:at + width] = (fields[name] % (1 << 8 * width)).to_bytes(width, "little")
        at += width
    return bytes(body)


@pytest.mark.parametrize("field", ["stride_h", "stride_w", "channels_left", "columns_left"])
def test_impossible_setups_are_refused_and_write_nothing(field):
    image, e, offset = random_case(3)
    (request,) = expand_requests(e, offset, CONFIG.word_bytes, image.tobytes())
    memory, refused, _ = write([corrupt(request, **{field: 0}), request])
    assert refused == [True, False]
    assert np.array_equal(memory, memory_of(image, e, offset))
    memory, _, _ = write([corrupt(request, **{field: 0})])
    assert (memory == -1).all()


def test_buffers_beyond_the_memory_are_refused_and_write_only_inside():
    image, e, _ = random_case(14)
    words = e.out_h * e.out_w * -(-e.stored[2] // CONFIG.word_bytes)
    last = CONFIG.act_words - words
    beyond = (last + 1, CONFIG.act_words, 65535 - words)
    for offset, bad in ((last, False), *((place, True) for place in beyond)):
        (request,) = expand_requests(e, offset, CONFIG.word_bytes, image.tobytes())
        memory, refused, _ = write([request])
        assert refused == [bad], offset
        assert offset < CONFIG.act_words or (memory == -1).all()


def test_random_setups_end_and_stay_inside():
    rng = random.Random(7)
    image, e, offset = random_case(14)
    (request,) = expand_requests(e, offset, CONFIG.word_bytes, image.tobytes()[:8])
    for _ in range(20):
        wild = {name: rng.getrandbits(8 * width) for name, width in _WIDTHS.items() if width != 1}
        wild |= {"stride_h": rng.randrange(30), "phase_y": rng.randrange(256)}
        write([corrupt(request, **wild)])  # a write beyond the memory raises IndexError


def test_setup_of_any_byte_continues_that_of_the_first():
    """The way from byte to byte by running sums, against the closed form."""
    for seed in range(30):
        image, e, offset = random_case(seed)
        address, now = expand_setup(e, offset, CONFIG.word_bytes)
        for index in range(1, image.size):
            step = 1
            if now["channels_left"] == 1 and now["columns_left"] == 1:
                step = now["step_rows" if now["phase_y"] + 1 == e.stride_h else "step_row"]
            elif now["channels_left"] == 1 and now["phase_x"] + 1 == e.stride_w:
                step = now["step_column"]
            address += step
            expected, now = expand_setup(e, offset, CONFIG.word_bytes, index)
            assert address == expected, (seed, index)


def test_addresses_beyond_16_bit_words_are_refused():
    image, e, offset = random_case(3)
    (request,) = expand_requests(e, offset, CONFIG.word_bytes, image.tobytes())
    for at, value in ((6, 4), (7, 1)):  # 18 bits are bytes of words of 4
        memory, refused, _ = write([request[:at] + bytes([value]) + request[at + 1:]])
        assert refused == [True]
        assert (memory == -1).all()
