"""Verify: equal bytes pass, a changed program is found at its layer, reports are complete."""

from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from trivet.compiler.driver import Options, compile_model
from trivet.compiler.rig import default_rig
from trivet.hdl.isa import Program
from trivet.runtime.bundle import Bundle, BundleError
from trivet.sim import verify


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    samples = folder / "samples.npz"
    np.savez(samples, image=np.random.default_rng(1).random((16, 1, 8, 8), np.float32))
    model = Path(str(files("trivet").joinpath("digits.onnx")))
    out = folder / "digits.trivet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIVET_CACHE_DIR", str(folder))
        rig = default_rig().with_options(place="fpga")
        compile_model(model, out, Options(rig, calibrate=samples))
    return out


def test_every_layer_and_the_stored_outputs_are_compared(bundle: Path) -> None:
    with Bundle.open(bundle) as opened:
        report = verify.verify_bundle(opened, verify.bundle_vectors(opened))
        program = Program.from_bytes(opened.read("stages/1.trvp"))
    assert report.ok
    assert report.sources == {"real": 4, "seeded": 4}
    assert len(report.layers) == len(program.layers)
    per_item = sum(n.output.nbytes for n in program.layers)
    assert report.bytes_compared == 8 * per_item
    assert report.outputs_compared == 8 * 10 * 4
    assert report.cycles is None
    assert report.cycles_predicted >= sum(n.cycles for n in program.layers)
    assert report.macs == sum(n.macs for n in program.layers)
    assert report.mac_utilisation == pytest.approx(report.macs / (report.cycles_predicted * 128))


def test_a_changed_weight_is_found_at_its_layer(bundle: Path) -> None:
    with Bundle.open(bundle) as opened:
        program = Program.from_bytes(opened.read("stages/1.trvp"))
        taps = opened.read("taps/1.onnx")
        nhwc = frozenset(n for n, t in opened.manifest.tensors.items() if t.layout == "NHWC")
        vectors = verify.bundle_vectors(opened)
        first = opened.manifest.stages[0]
        session = verify._session(opened.read(first.member))
        feeds = []
        for feed in vectors.feeds:
            found = session.run(first.outputs, {n: feed[n] for n in first.inputs})
            feeds.append(dict(zip(first.outputs, found, strict=True)))
    clean = verify.verify_program(program.to_bytes(), taps, nhwc, feeds)
    assert all(x.bytes_different == 0 for x in clean)
    weights = bytearray(program.weights)
    start = program.instructions[1].weights * program.config.weight_word_bytes
    weights[start] ^= 0x40
    broken = Program(**{**program.__dict__, "weights": bytes(weights)})
    layers = verify.verify_program(broken.to_bytes(), taps, nhwc, feeds)
    assert layers[0].bytes_different == 0
    assert layers[1].bytes_different > 0


def test_vectors_by_number_and_by_file(bundle: Path, tmp_path: Path) -> None:
    with Bundle.open(bundle) as opened:
        assert len(verify.bundle_vectors(opened, 2).feeds) == 2
        more = verify.bundle_vectors(opened, 11)
        assert len(more.feeds) == 11
        assert len(more.expected) == 8
        assert verify.verify_bundle(opened, more).ok
        path = tmp_path / "x.npz"
        np.savez(path, image=np.zeros((3, 1, 8, 8), np.float32))
        found = verify.file_vectors(opened, path)
        assert len(found.feeds) == 3
        assert verify.verify_bundle(opened, found).sources == {"file": 3}
        np.savez(path, image=np.zeros((3, 1, 8, 9), np.float32))
        with pytest.raises(ValueError, match=r"shape \[3, 1, 8, 9\], must be \[N, 1, 8, 8\]"):
            verify.file_vectors(opened, path)
        np.savez(path, other=np.zeros(3))
        with pytest.raises(ValueError, match="no array for input 'image'; it has other"):
            verify.file_vectors(opened, path)
        path.write_bytes(b"junk")
        with pytest.raises(ValueError, match=r"not a readable \.npz"):
            verify.file_vectors(opened, path)


def test_the_junit_report_counts_failures(bundle: Path) -> None:
    with Bundle.open(bundle) as opened:
        report = verify.verify_bundle(opened, verify.bundle_vectors(opened, 1))
    suite = ElementTree.fromstring(verify.junit(report))
    assert suite.get("failures") == "0"
    assert len(suite) == len(report.layers) + 1
    layers = [msgspec.structs.replace(report.layers[0], bytes_different=5), *report.layers[1:]]
    suite = ElementTree.fromstring(verify.junit(msgspec.structs.replace(report, layers=layers)))
    assert suite.get("failures") == "1"
    assert "5 of" in str(suite[0][0].get("message"))


@pytest.mark.parametrize(
    ("member", "text"),
    [
        ("stages/1.trvp", "digits.trivet: stage 1: .*; compile the model again"),
        ("stages/0.onnx", "digits.trivet: stage 0 cannot run .*; compile the model again"),
    ],
)
def test_a_bad_stage_is_named(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, member: str, text: str
) -> None:
    with Bundle.open(bundle) as opened:
        vectors = verify.bundle_vectors(opened)
        other = opened.read("stages/1.onnx")
        read = opened.read
        bad = other if member.endswith(".onnx") else read(member)[:-9]
        monkeypatch.setattr(opened, "read", lambda name: bad if name == member else read(name))
        with pytest.raises(BundleError, match=text):
            verify.verify_bundle(opened, vectors)
