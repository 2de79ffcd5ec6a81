"""Loading: what is refused, with which words, and what comes out."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from qdq import Builder

from trivet.compiler.errors import CompileError
from trivet.compiler.load import load


def relu(path: Path, shape: list[int | str], opset: int = 17) -> Path:
    b = Builder(opset)
    b.input("x", shape, np.float32)
    return b.save(path, b.op("Relu", "x"), dtype=np.float32)


def external(folder: Path, location: str) -> Path:
    """A model whose weights lie in a file; the location is then written over."""
    b = Builder()
    x = b.input("x", [1, 64], np.float32)
    w = b.constant(np.arange(64 * 64, dtype=np.float32).reshape(64, 64), "w")
    model = b.model(b.op("MatMul", x, w), dtype=np.float32)
    path = folder / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    raw = onnx.load(path, load_external_data=False)
    for tensor in raw.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(raw.SerializeToString())
    return path


def test_unnamed_nodes_get_names_that_stay(tmp_path: Path) -> None:
    b = Builder()
    b.input("x", [1, 4], np.float32)
    y = b.op("Relu", b.op("Relu", "x"), name="mine")
    path = b.save(tmp_path / "m.onnx", b.op("Relu", b.op("Abs", y), name="mine"), dtype=np.float32)
    names = [[n.name for n in load(path, {}).model.graph] for _ in range(2)]
    assert names[0] == names[1] == ["Relu_0", "mine", "Abs_2", "mine_3"]


def test_only_symbol_on_the_leading_axis_is_the_batch(tmp_path: Path) -> None:
    loaded = load(relu(tmp_path / "m.onnx", ["n", 4]), {})
    assert loaded.batch_axis == "n"
    assert list(loaded.model.graph.outputs[0].shape) == [1, 4]
    assert any("'n'" in note for note in loaded.notes)


def test_shape_option_fixes_dimensions(tmp_path: Path) -> None:
    loaded = load(relu(tmp_path / "m.onnx", ["n", "w"]), {"n": 1, "w": 5})
    assert loaded.batch_axis is None
    assert list(loaded.model.graph.outputs[0].shape) == [1, 5]


@pytest.mark.parametrize(
    ("shape", "given", "text"),
    [
        (["n", "w"], {}, r"dynamic dimension 'n'.*--shape n=SIZE --shape w=SIZE"),
        ([1, "w"], {}, r"dynamic dimension 'w'.*--shape w=SIZE"),
        (["n", 4], {"m": 2}, r"no dimension 'm'; symbolic dimensions: 'n'"),
        (["n", 4], {"n": 0}, r"n=0.*at least 1"),
    ],
)
def test_dimensions_that_are_not_fixed(
    tmp_path: Path, shape: list[int | str], given: dict[str, int], text: str
) -> None:
    with pytest.raises(CompileError, match=text):
        load(relu(tmp_path / "m.onnx", shape), given)


def test_not_an_onnx_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for data in (b"", b"hello, world" * 10, b"\x00" * 64):
        path.write_bytes(data)
        with pytest.raises(CompileError, match=r"m\.onnx: not an ONNX") as caught:
            load(path, {})
        assert "\n" not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="no such file"):
        load(tmp_path / "absent.onnx", {})


def test_newer_opset(tmp_path: Path) -> None:
    path = relu(tmp_path / "m.onnx", [1, 4])
    proto = onnx.load(path)
    proto.opset_import[0].version = 999
    onnx.save(proto, path)
    with pytest.raises(CompileError, match="opset 999 is above"):
        load(path, {})


def test_invalid_graph(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["nowhere"], ["y"])
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "g", [], [out])), path)
    with pytest.raises(CompileError, match="not a valid ONNX model") as caught:
        load(path, {})
    assert "\n" not in str(caught.value)


def test_external_data_beside_the_model_works(tmp_path: Path) -> None:
    path = external(tmp_path, "m.data")
    loaded = load(path, {})
    weights = loaded.model.graph.initializers["w"].const_value
    assert weights is not None
    assert weights.numpy()[1, 1] == 65
    before = loaded.sha256
    data = bytearray((tmp_path / "m.data").read_bytes())
    data[0] ^= 1
    (tmp_path / "m.data").write_bytes(data)
    assert load(path, {}).sha256 != before


@pytest.mark.parametrize("location", ["../m.data", "/etc/hostname", "a/../../m.data", "..\\m.data"])
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(CompileError, match="not a path inside the model's folder"):
        load(external(folder, location), {})


def test_external_data_behind_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = external(folder, "m.data")
    os.replace(folder / "m.data", tmp_path / "secret")
    (folder / "m.data").symlink_to(tmp_path / "secret")
    with pytest.raises(CompileError, match="outside the model's folder by a link"):
        load(path, {})


def test_external_data_missing(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="is missing"):
        load(external(tmp_path, "other.data"), {})


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("offset", "-4", "bytes -4 to "),
        ("offset", "1000000000", "bytes 1000000000 to "),
        ("offset", "four", "offset or length is not a number"),
        ("length", "1000000000000", "bytes 0 to 1000000000000 of a file of "),
        ("length", "8", "the tensor has 16384; save the model again"),
        ("location", "m\0data", "is not a path inside the model's folder"),
    ],
)
def test_external_data_that_does_not_fit_its_file(
    tmp_path: Path, key: str, value: str, text: str
) -> None:
    path = external(tmp_path, "m.data")
    raw = onnx.load(path, load_external_data=False)
    (tensor,) = raw.graph.initializer
    kept = [(e.key, e.value) for e in tensor.external_data if e.key != key]
    del tensor.external_data[:]
    for name, content in [*kept, (key, value)]:
        entry = tensor.external_data.add()
        entry.key, entry.value = name, content
    path.write_bytes(raw.SerializeToString())
    with pytest.raises(CompileError) as caught:
        load(path, {})
    assert text in str(caught.value)


def test_graph_without_nodes(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4])
    graph = helper.make_graph([], "nothing", [value], [value])
    path = tmp_path / "nothing.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    with pytest.raises(CompileError, match="the graph has no nodes"):
        load(path, {})


def test_dimension_beyond_any_memory(tmp_path: Path) -> None:
    path = relu(tmp_path / "m.onnx", ["n", 4])
    with pytest.raises(CompileError, match=r"must be at least 1 and below 2\^31"):
        load(path, {"n": 1 << 40})
