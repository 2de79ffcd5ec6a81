"""Bundles: same inputs, same bytes; and every way a file can be wrong gives one clear line."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ENGINE, model, write, writer

from trivet.runtime import archive
from trivet.runtime import bundle as bundle_module
from trivet.runtime.bundle import Bundle, BundleError, BundleWriter, EngineInfo, TensorInfo

Members = dict[str, bytes]


def members_of(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(path: Path, members: Members, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest of a bundle in place."""
    members = members_of(path)
    manifest = json.loads(members["manifest.json"])
    change(manifest)
    members["manifest.json"] = json.dumps(manifest).encode()
    pack(path, members)


def swap(path: Path, member: str, data: bytes) -> None:
    """Put other bytes in a member, with the right hash."""
    members = members_of(path)
    members[member] = data
    manifest = json.loads(members["manifest.json"])
    manifest["members"][member] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    members["manifest.json"] = json.dumps(manifest).encode()
    pack(path, members)


def error_of(path: Path, use: Callable[[Bundle], object] = lambda b: b.stages()) -> str:
    with pytest.raises(BundleError) as caught, Bundle.open(path) as opened:
        use(opened)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "m.trivet", ("onnx", "program"))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    made = writer(("onnx", "program", "onnx"))
    made.add_tensor("t0", TensorInfo("float32", [1, 4]))
    vectors = {"x": np.arange(4, dtype=np.float32).reshape(1, 4), "layer/0": np.int8([[1], [2]])}
    made.add_vectors(vectors)
    made.write(tmp_path / "m.trivet")
    with Bundle.open(tmp_path / "m.trivet") as opened:
        stages = opened.stages()
        assert [s.kind for s in stages] == ["onnx", "program", "onnx"]
        assert [s.inputs[0].name for s in stages] == ["x", "t0", "t1"]
        assert stages[1].payload == b'["Mul", 2.0]'
        assert stages[1].engine == ENGINE
        assert stages[1].engine_config == {"lanes": 4, "simd": 4}
        assert stages[1].fallback == opened.read("stages/1.onnx")
        assert stages[0].predicted_seconds == 0.001
        assert opened.rig().devices["fpga0"].attached == "fake"
        assert opened.plan_json()["version"] == 1
        read = opened.vectors()
    assert read.keys() == vectors.keys()
    for name, array in vectors.items():
        np.testing.assert_array_equal(read[name], array, strict=True)


def split(members: list[str] | None = None, axis: int = 1) -> BundleWriter:
    """``y = x + 1`` in two parts of two columns; replicas when there are four members."""
    made = writer(("onnx",))
    made._stages.clear()
    whole = model("Add", 1.0, "x", "y")
    parts = [(b"program", ENGINE, model("Add", 1.0, "x", f"y/{k}", (1, 2))) for k in range(2)]
    made.add_split_stage(
        ["x"], ["y"], whole, parts, axis=axis, members=members or ["fpga0", "fpga1"]
    )
    made.add_engine(ENGINE, EngineInfo({"lanes": 4}))
    for k in range(2):
        made.add_tensor(f"y/{k}", TensorInfo("float32", [1, 2]))
    return made


def test_split_stage_is_read_with_its_parts(tmp_path: Path) -> None:
    split().write(tmp_path / "m")
    with Bundle.open(tmp_path / "m") as opened:
        (info,) = opened.manifest.stages
        (stage,) = opened.stages()
    assert (info.members, info.shards, info.shard_axis) == (["fpga0", "fpga1"], 2, 1)
    assert (stage.kind, stage.shard_axis, stage.engine) == ("onnx", 1, None)
    assert [p.outputs[0].name for p in stage.parts] == ["y/0", "y/1"]
    assert [p.outputs[0].shape for p in stage.parts] == [(1, 2), (1, 2)]
    for part in stage.parts:
        assert (part.index, part.kind, part.engine, part.payload) == (
            0,
            "program",
            ENGINE,
            b"program",
        )
        assert part.inputs == stage.inputs
        assert part.fallback


def test_fields_of_replicas_and_shards_stand_only_where_they_say_something(tmp_path: Path) -> None:
    made = writer(("onnx", "program"))
    made.write(tmp_path / "plain")
    plain = json.loads(members_of(tmp_path / "plain")["manifest.json"])["stages"]
    assert [sorted(s) for s in plain] == [
        ["engine", "fallback", "index", "inputs", "kind", "member", "outputs"]
    ] * 2
    split().write(tmp_path / "split")
    (found,) = json.loads(members_of(tmp_path / "split")["manifest.json"])["stages"]
    assert {"members", "shards", "shard_axis", "parts"} <= set(found)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s, t: s.update(members=["fpga0", "fpga0"]), "has a device twice among"),
        (lambda s, t: s.update(members=[]), "has 0 devices for 2 shards"),
        (lambda s, t: s.update(members=["a", "b", "c"]), "has 3 devices for 2 shards"),
        (lambda s, t: s.update(shards=3), "has 3 shards and 2 parts"),
        (lambda s, t: s.update(shards=0), "has 0 shards and 2 parts"),
        (lambda s, t: s.update(shards=1), "has 1 shards and 2 parts"),
        (lambda s, t: s.update(parts=s["parts"][:1]), "has 2 shards and 1 parts"),
        (lambda s, t: s.update(shard_axis=2), "of 2 axes cannot be put together along 2"),
        (lambda s, t: s.update(shard_axis=0), "'y/0' is no piece of 'y' along axis 0"),
        (lambda s, t: s.pop("shard_axis"), "cannot be put together along None"),
        (lambda s, t: s["parts"][1].update(inputs=[]), r"part 1 reads \[\] and writes"),
        (lambda s, t: s["parts"][1].update(outputs=["y/0"]), "part 1 reads"),
        (lambda s, t: s["parts"][1].update(engine="f" * 64), "which is not in it"),
        (lambda s, t: s["parts"][1].update(member="stages/9.trvp"), "is used, but not in the"),
        (lambda s, t: t.pop("y/1"), "tensor 'y/1' is not described"),
        (lambda s, t: t["y/1"].update(shape=[1, 3]), "is 4 along axis 1, its parts 5"),
        (lambda s, t: t["y/1"].update(dtype="int8"), "'y/1' is no piece of 'y'"),
    ],
)
def test_parts_that_are_not_the_stage(
    tmp_path: Path, change: Callable[[Any, Any], Any], text: str
) -> None:
    split().write(tmp_path / "m")
    edit(tmp_path / "m", lambda m: change(m["stages"][0], m["tensors"]))
    assert re.search(text, error_of(tmp_path / "m"))


def test_same_inputs_give_same_bytes(tmp_path: Path) -> None:
    arrays = {"b": np.int8([1]), "a": np.float32([2])}
    for name, order in (("1", ("a", "b")), ("2", ("b", "a"))):
        made = writer()
        made.add_vectors({k: arrays[k] for k in order})
        made.write(tmp_path / name)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    with zipfile.ZipFile(tmp_path / "1") as archive:
        names = archive.namelist()
        assert names == sorted(names)
        assert {i.date_time for i in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_failed_write_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundle_module.os, "fsync", full)
    with pytest.raises(BundleError, match="No space left"):
        writer().write(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_symbolic_link_stays_and_its_target_is_written(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    link = tmp_path / "latest.trivet"
    link.symlink_to(path)
    writer(("onnx",)).write(link)
    assert link.is_symlink()
    assert path.read_bytes() != before
    with Bundle.open(link) as bundle:
        assert len(bundle.manifest.stages) == 1


def test_writing_into_no_folder_names_it(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be written"):
        writer().write(tmp_path / "none" / "m.trivet")


def test_writer_refuses_what_the_reader_would(tmp_path: Path) -> None:
    made = writer()
    made.add_onnx_stage(["nothing"], ["z"], b"")
    with pytest.raises(BundleError, match="'nothing', which is not described"):
        made.write(tmp_path / "m.trivet")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../x", "/x", "a\\b", "manifest.json", "", "a//b", ".x", "C:/x"])
def test_writer_refuses_bad_member_names(name: str) -> None:
    with pytest.raises(ValueError, match="bundle member"):
        writer().add(name, b"")


def test_writer_refuses_other_bytes_under_one_name() -> None:
    made: BundleWriter = writer()
    made.add("bit/a.bit", b"1")
    made.add("bit/a.bit", b"1")
    with pytest.raises(ValueError, match="other bytes"):
        made.add("bit/a.bit", b"2")


def test_missing_file(tmp_path: Path) -> None:
    assert "cannot be opened (No such file" in error_of(tmp_path / "none.trivet")


@pytest.mark.parametrize("data", [b"", b"hello", b"PK\x05\x06", bytes(100_000)])
def test_not_a_zip(tmp_path: Path, data: bytes) -> None:
    bad = tmp_path / "bad.trivet"
    bad.write_bytes(data)
    assert "is not a bundle, or was cut short" in error_of(bad)


def test_truncated_anywhere(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        assert "cut short" in error_of(path)


def test_any_flipped_byte_is_found(path: Path) -> None:
    """A flip may hit what carries no meaning (a date); otherwise it is a BundleError."""
    whole = path.read_bytes()
    with Bundle.open(path) as opened:
        good = opened.stages()
    for at in range(0, len(whole), 13):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with contextlib.suppress(BundleError), Bundle.open(path) as opened:
            assert opened.stages() == good


def test_random_damage_is_a_bundle_error_or_harmless(path: Path) -> None:
    whole = path.read_bytes()
    with Bundle.open(path) as opened:
        good = opened.stages()
    pick = random.Random(3)
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(pick.randrange(1, 6)):
            at = pick.randrange(len(data))
            data[at : at + pick.randrange(8)] = pick.randbytes(pick.randrange(8))
        path.write_bytes(data)
        with contextlib.suppress(BundleError), Bundle.open(path) as opened:
            assert [s.payload for s in opened.stages()] == [s.payload for s in good]


def test_zip_without_manifest(tmp_path: Path) -> None:
    assert "has no manifest.json" in error_of(pack(tmp_path / "z", {"a": b""}))


def test_newer_format_is_named_before_anything_else(path: Path) -> None:
    members = members_of(path)
    members["manifest.json"] = b'{"format": 2, "all": "new"}'
    text = error_of(pack(path, members))
    assert "has bundle format 2, this Trivet reads up to 1; install a newer Trivet" in text


def test_format_below_one(path: Path) -> None:
    edit(path, lambda m: m.update(format=0))
    assert "format 0, below 1" in error_of(path)


@pytest.mark.parametrize("name", ["../up", "/etc/x", "a\\b", "a/../../b", "C:/x"])
def test_member_outside_the_bundle(path: Path, name: str) -> None:
    assert "do not trust this file" in error_of(pack(path, members_of(path) | {name: b""}))


def test_member_not_in_the_manifest(path: Path) -> None:
    assert "'extra' is not in the manifest" in error_of(
        pack(path, members_of(path) | {"extra": b""})
    )


def test_member_missing(path: Path) -> None:
    members = members_of(path)
    del members["stages/0.onnx"]
    assert "'stages/0.onnx' of the manifest is missing" in error_of(pack(path, members))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_member_twice(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("stages/0.onnx", b"other")
    assert "is in the zip twice" in error_of(path)


def test_wrong_hash(path: Path) -> None:
    members = members_of(path)
    data = members["stages/0.onnx"]
    members["stages/0.onnx"] = data[:-1] + bytes([data[-1] ^ 1])
    text = error_of(pack(path, members))
    assert "member 'stages/0.onnx' has sha256" in text
    assert "changed or damaged" in text


def test_wrong_length(path: Path) -> None:
    members = members_of(path)
    members["stages/0.onnx"] += b"x"
    assert "the manifest says" in error_of(pack(path, members))


def test_zip_bomb_is_refused_before_it_is_unpacked(path: Path) -> None:
    members = members_of(path) | {"bomb": bytes(8 << 20)}
    assert "above the ratio 200" in error_of(pack(path, members, zipfile.ZIP_DEFLATED))


def test_compressed_members_are_read(path: Path) -> None:
    pack(path, members_of(path), zipfile.ZIP_DEFLATED)
    with Bundle.open(path) as opened:
        assert len(opened.stages()) == 2


def test_other_compression_is_refused(path: Path) -> None:
    assert "compression method 14" in error_of(pack(path, members_of(path), zipfile.ZIP_LZMA))


@pytest.mark.parametrize(
    ("limit", "value", "text"),
    [
        ("MAX_MEMBERS", 3, "above the limit 3"),
        ("MAX_MEMBER_BYTES", 10, "above the limit 10"),
        ("MAX_JSON_BYTES", 10, "above the limit 10"),
        ("MAX_TOTAL_BYTES", 10, "above the limit 10"),
        ("MAX_DIRECTORY_BYTES", 10, "above the limit 10"),
    ],
)
def test_limits(
    path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, text: str
) -> None:
    monkeypatch.setattr(archive, limit, value)
    assert text in error_of(path)


@pytest.mark.parametrize("where", ["manifest.json", "plan.json"])
def test_deep_json(path: Path, where: str) -> None:
    deep = (
        b'{"format": 1, "version": 1, "stages": [], "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    )
    if where == "manifest.json":
        pack(path, members_of(path) | {where: deep})
    else:
        swap(path, where, deep)
    assert "nests deeper" in error_of(path)


def test_not_json(path: Path) -> None:
    swap(path, "plan.json", b"\xff{")
    assert "member 'plan.json' is not valid" in error_of(path)


def wrong_dtype(m: dict[str, Any]) -> None:
    m["tensors"]["t0"]["dtype"] = "object"


def cycle(m: dict[str, Any]) -> None:
    m["stages"][0]["inputs"] = ["y"]


def no_stages(m: dict[str, Any]) -> None:
    m["stages"] = []


def wrong_type(m: dict[str, Any]) -> None:
    m["stages"][0]["inputs"] = "x"


def unused_name(m: dict[str, Any]) -> None:
    m["stages"][0]["member"] = "stages/9.onnx"


def no_engine(m: dict[str, Any]) -> None:
    m["engines"] = {}


def other_shape(m: dict[str, Any]) -> None:
    m["model"]["outputs"][0]["shape"] = [1, 5]


def bad_nhwc(m: dict[str, Any]) -> None:
    m["tensors"]["t0"]["layout"] = "NHWC"


def no_output(m: dict[str, Any]) -> None:
    m["model"]["outputs"][0]["name"] = "other"


def numbered(m: dict[str, Any]) -> None:
    m["stages"][1]["index"] = 5


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (wrong_dtype, "tensor 't0' has dtype 'object'"),
        (cycle, "stage 0 reads tensor 'y' before anything writes it"),
        (no_stages, "has no stages"),
        (wrong_type, "Expected `array`, got `str` - at `$.stages[0].inputs`"),
        (unused_name, "member 'stages/9.onnx' is used, but not in the manifest"),
        (no_engine, "which is not in it"),
        (other_shape, "the model's 'y' is float32 [1, 5], its tensor float32 [1, 4]"),
        (bad_nhwc, "is NHWC, but of 2 axes"),
        (no_output, "no stage writes the model's output 'other'"),
        (numbered, "stage 1 is numbered 5"),
    ],
)
def test_manifest_that_contradicts_itself(
    path: Path, change: Callable[[dict[str, Any]], None], text: str
) -> None:
    edit(path, change)
    assert text in error_of(path)


def test_hostile_names_stay_on_one_line(path: Path) -> None:
    text = error_of(pack(path, members_of(path) | {"a\nrm -rf\x1b[2J": b""}))
    assert text.isprintable()
    edit(path, lambda m: m["stages"][0].update(inputs=["a\nb"]))
    assert error_of(path).isprintable()


def test_plan_of_other_stages(path: Path) -> None:
    swap(path, "plan.json", b'{"version": 1, "stages": [{"index": 0, "device": "cpu0"}]}')
    assert "plan.json has stages [0], the manifest [0, 1]" in error_of(path)


def test_vectors_are_never_unpickled(tmp_path: Path) -> None:
    made = writer()
    packed = io.BytesIO()
    np.savez(packed, x=np.array([{"a": 1}], dtype=object))
    made._vectors = made.add("vectors.npz", packed.getvalue())
    made.write(tmp_path / "m")
    assert "would need pickle" in error_of(tmp_path / "m", lambda b: b.vectors())


def test_vector_header_that_promises_too_much(tmp_path: Path) -> None:
    one = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        one, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)}
    )
    made = writer()
    packed = pack(tmp_path / "npz", {"x.npy": one.getvalue()}).read_bytes()
    made._vectors = made.add("vectors.npz", packed)
    made.write(tmp_path / "m")
    assert "needs 8796093022208 bytes" in error_of(tmp_path / "m", lambda b: b.vectors())


def test_vectors_bomb(tmp_path: Path) -> None:
    made = writer()
    packed = pack(tmp_path / "npz", {"x.npy": bytes(8 << 20)}, zipfile.ZIP_DEFLATED).read_bytes()
    made._vectors = made.add("vectors.npz", packed)
    made.write(tmp_path / "m")
    assert "ratio 200" in error_of(tmp_path / "m", lambda b: b.vectors())


def test_closed_bundle(path: Path) -> None:
    opened = Bundle.open(path)
    opened.close()
    opened.close()
    with pytest.raises(BundleError, match="is closed"):
        opened.read("plan.json")


def test_unknown_member(path: Path) -> None:
    with Bundle.open(path) as opened, pytest.raises(BundleError, match="has no member 'x'"):
        opened.read("x")


def test_a_fifo_is_no_bundle(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BundleError, match="is no regular file; give the path of a bundle"):
        Bundle.open(tmp_path / "pipe")
