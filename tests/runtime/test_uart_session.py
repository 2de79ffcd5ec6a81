"""The iCEBreaker's engine behind its UART pins, simulated: the device's contract, whole sessions.

The board is RTL down to the pins, bit by bit; pyserial opens the pseudo-terminal in front of them.
"""

import signal
import warnings
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import golden_graph
import numpy as np
import pty_board
import pytest
from device_contract import check_device
from layerwise import nhwc

import trivet
from trivet import boards
from trivet.compiler.driver import Options, compile_model
from trivet.compiler.rig import default_rig
from trivet.hdl.config import EngineConfig
from trivet.runtime.bundle import BitstreamInfo, Bundle, BundleWriter
from trivet.runtime.device import DeviceError
from trivet.runtime.devices.uart import UartDevice

pytest.importorskip("serial", reason="pyserial is not installed; pip install 'trivet[uart]'")
pytestmark = [pytest.mark.rtl, pytest.mark.slow]

BOARD = "icebreaker"
BUILD = bytes(range(32))
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def config() -> EngineConfig:
    engine = boards.get(BOARD).engine
    assert engine is not None
    return EngineConfig(**engine)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, config: EngineConfig) -> Path:
    return pty_board.compile_board(tmp_path_factory.mktemp("board"), config, BOARD, BUILD)


@pytest.fixture
def board(program: Path) -> Iterator[Any]:
    with pty_board.running(program) as process_and_port:
        yield process_and_port


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory, config: EngineConfig) -> Any:
    """The digits network in a bundle that knows the board's build, and what compiled it."""
    folder = tmp_path_factory.mktemp("digits")
    np.savez(folder / "samples.npz", image=images(16))
    options = Options(
        default_rig(BOARD).with_options(place="fpga"), calibrate=folder / "samples.npz"
    )
    work = compile_model(
        Path(str(files("trivet").joinpath("digits.onnx"))), folder / "a.trivet", options
    ).work
    with Bundle.open(folder / "a.trivet") as bundle:
        writer = BundleWriter.copy_of(bundle)
    member = writer.add(f"bit/{BOARD}.bin", b"not looked at")
    writer.add_bitstream(config.sha256, BOARD, BitstreamInfo(member, BUILD.hex()))
    writer.write(folder / "digits.trivet")
    return folder / "digits.trivet", work


def images(count: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).random((count, 1, 8, 8), np.float32)


def uart(port: str) -> dict[str, str]:
    return {"fpga0": f"uart:address={port},baud=115200"}  # a pseudo-terminal has any rate


def on_cpu(bundle: Path, feed: Array) -> list[Array]:
    """The stage in contract form by onnxruntime, which the contract's tests hold to golden.py."""
    with trivet.Session(bundle, devices={"fpga0": "cpu"}) as session:
        return [session.run(None, {"image": x[None]})[0] for x in feed]


def test_the_contract_of_devices(board: Any, compiled: Any) -> None:
    path, work = compiled
    _, port = board
    (program,) = work.programs.values()
    with Bundle.open(path) as bundle:
        (stage,) = (s for s in bundle.stages() if s.kind == "program")
    values = golden_graph.run(work.graph, {"image": images(1)})
    shapes = {spec.name: spec.shape for spec in (*stage.inputs, *stage.outputs)}
    inputs, expected = (
        [nhwc(values[p.tensor]).reshape(shapes[p.tensor]) for p in ports]
        for ports in (program.inputs, program.outputs)
    )
    check_device(
        lambda: UartDevice("fpga0", {"address": port, "baud": "115200", "board": BOARD}),
        stage,
        inputs,
        expected,
    )


def test_a_session_gives_the_bytes_of_the_cpu(board: Any, compiled: Any) -> None:
    path, _ = compiled
    feed = images(5, seed=2)
    with trivet.Session(path, devices=uart(board[1]), strict=True) as session:
        found = [out[0] for out in session.stream({"image": x[None]} for x in feed)]
    for one, other in zip(found, on_cpu(path, feed), strict=True):
        assert np.array_equal(one, other)


def test_a_board_with_another_build_is_refused(
    board: Any, compiled: Any, tmp_path: Path, config: EngineConfig
) -> None:
    with Bundle.open(compiled[0]) as bundle:
        writer = BundleWriter.copy_of(bundle, without=(config.sha256, BOARD))
    member = writer.add(f"bit/{BOARD}.bin", b"not looked at")
    writer.add_bitstream(config.sha256, BOARD, BitstreamInfo(member, bytes(32).hex()))
    writer.write(tmp_path / "other.trivet")
    with pytest.raises(DeviceError, match="run trivet program BUNDLE --board icebreaker --yes"):
        trivet.Session(tmp_path / "other.trivet", devices=uart(board[1]))


@pytest.mark.parametrize("strict", [False, True])
def test_unplugged_in_the_middle_of_a_stream(board: Any, compiled: Any, strict: bool) -> None:
    """Every item is answered once, in order, with the same bytes; or, strict, with an error."""
    path, _ = compiled
    process, port = board
    feed = images(8, seed=3)
    wanted = on_cpu(path, feed)
    found: list[Array] = []

    def stream(session: Any) -> None:
        for out in session.stream({"image": x[None]} for x in feed):
            found.append(out[0])
            if len(found) == 2:
                process.send_signal(signal.SIGKILL)

    with trivet.Session(path, devices=uart(port), strict=strict) as session:
        if strict:
            with pytest.raises(DeviceError, match="fpga0"):
                stream(session)
            assert 2 <= len(found) < len(feed)
        else:
            with pytest.warns(RuntimeWarning, match="fpga0"):
                stream(session)
            assert len(found) == len(feed)
    for one, other in zip(found, wanted, strict=False):
        assert np.array_equal(one, other)


def test_a_silent_board_is_found(board: Any, compiled: Any) -> None:
    """Stopped, not gone: the port stays open and nothing comes."""
    path, _ = compiled
    process, port = board
    feed = images(3, seed=4)
    with trivet.Session(path, devices=uart(port)) as session:
        first = session.run(None, {"image": feed[:1]})[0]
        process.send_signal(signal.SIGSTOP)
        try:
            with pytest.warns(RuntimeWarning, match="fpga0"):
                rest = [session.run(None, {"image": x[None]})[0] for x in feed[1:]]
        finally:
            process.send_signal(signal.SIGCONT)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session.close()
    for one, other in zip([first, *rest], on_cpu(path, feed), strict=True):
        assert np.array_equal(one, other)
