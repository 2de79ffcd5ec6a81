"""What every device of the runtime must do; call it from each device's own test."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from trivet.runtime.device import Buffer, Device, DeviceBusy, DeviceError, Stage

Arrays = Sequence[np.ndarray[Any, Any]]


def check_device(
    make: Callable[[], Device],
    stage: Stage,
    inputs: Arrays,
    expected: Arrays | None,
    *,
    timeout: float = 60.0,
) -> None:
    """Run the whole contract.

    Parameters
    ----------
    make
        A new, unprepared device.
    stage, inputs, expected
        A stage, one item for it, and its outputs byte for byte (None: not compared).
    timeout
        Seconds that one item may take.
    """
    _prepared_device_answers(make, stage, inputs, expected, timeout)
    _outputs_stay_until_released(make, stage, inputs, timeout)
    _credits_bound_what_is_inside(make, stage, inputs, timeout)
    _result_times_out(make, stage)
    _close_wakes_result(make, stage)
    _closed_device_refuses(make, stage, inputs)
    _wrong_hash_is_refused(make, stage)


def _buffers(inputs: Arrays) -> list[Buffer]:
    return [Buffer.of(array.copy()) for array in inputs]


def _prepared_device_answers(
    make: Callable[[], Device],
    stage: Stage,
    inputs: Arrays,
    expected: Arrays | None,
    timeout: float,
) -> None:
    device = make()
    try:
        device.prepare(stage)
        device.prepare(stage)  # idempotent
        info = device.describe()
        assert info.credits >= 1
        assert info.name
        given = _buffers(inputs)
        for ticket in (7, 3):
            device.submit(ticket, given)
            done = device.result(timeout)
            assert done.error is None
            assert done.ticket == ticket
            assert done.finished >= done.started
            found = [(b.array.dtype.name, b.array.shape) for b in done.outputs]
            assert found == [(spec.dtype, spec.shape) for spec in stage.outputs]
            assert all(b.array.flags.c_contiguous for b in done.outputs)
            if expected is not None:
                for buffer, wanted in zip(done.outputs, expected, strict=True):
                    assert buffer.array.tobytes() == wanted.tobytes()
            done.release()
            done.release()  # idempotent
        for buffer, original in zip(given, inputs, strict=True):
            assert buffer.array.tobytes() == original.tobytes(), "the device changed its inputs"
    finally:
        device.close()


def _outputs_stay_until_released(
    make: Callable[[], Device], stage: Stage, inputs: Arrays, timeout: float
) -> None:
    """A second item must not write over the first one's outputs, nor over its own inputs."""
    device = make()
    try:
        device.prepare(stage)
        held = []
        for ticket in range(2):
            given = _buffers(inputs)
            device.submit(ticket, given)
            done = device.result(timeout)
            assert done.error is None
            held.append([*given, *done.outputs])
        for first in held[0]:
            for second in held[1]:
                assert not np.shares_memory(first.array, second.array)
        for values in held:
            for first, second in itertools.combinations(values, 2):
                assert not np.shares_memory(first.array, second.array)
    finally:
        device.close()


def _credits_bound_what_is_inside(
    make: Callable[[], Device], stage: Stage, inputs: Arrays, timeout: float
) -> None:
    device = make()
    try:
        device.prepare(stage)
        credits = device.describe().credits
        for ticket in range(credits):
            device.submit(ticket, _buffers(inputs))
        with pytest.raises(DeviceBusy):
            device.submit(credits, _buffers(inputs))
        tickets = set()
        for _ in range(credits):
            done = device.result(timeout)
            tickets.add(done.ticket)
            done.release()
        assert tickets == set(range(credits)), "each ticket is answered once"
        device.submit(credits, _buffers(inputs))
        assert device.result(timeout).ticket == credits
    finally:
        device.close()


def _result_times_out(make: Callable[[], Device], stage: Stage) -> None:
    device = make()
    try:
        device.prepare(stage)
        with pytest.raises(TimeoutError):
            device.result(0.01)
    finally:
        device.close()


def _close_wakes_result(make: Callable[[], Device], stage: Stage) -> None:
    device = make()
    device.prepare(stage)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            device.result(None)
        except BaseException as error:
            caught.append(error)

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    time.sleep(0.05)
    device.close()
    waiter.join(30.0)
    assert not waiter.is_alive(), "close() must wake result()"
    assert isinstance(caught[0], DeviceError)


def _closed_device_refuses(make: Callable[[], Device], stage: Stage, inputs: Arrays) -> None:
    device = make()
    device.prepare(stage)
    device.close()
    device.close()  # idempotent
    with pytest.raises(DeviceError):
        device.submit(0, _buffers(inputs))
    with pytest.raises(DeviceError):
        device.result(1.0)
    with pytest.raises(DeviceError):
        device.prepare(stage)
    make().close()  # never prepared


def _wrong_hash_is_refused(make: Callable[[], Device], stage: Stage) -> None:
    device = make()
    try:
        with pytest.raises(DeviceError):
            device.prepare(_with_hash(stage, "0" * 64))
    finally:
        device.close()


def _with_hash(stage: Stage, sha256: str) -> Stage:

    return dataclasses.replace(stage, sha256=sha256)
