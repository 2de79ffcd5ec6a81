"""rig.toml: what is read, what is refused, and pins."""

from pathlib import Path

import pytest

from trivet import boards
from trivet.compiler.errors import CompileError
from trivet.compiler.rig import Rig, default_rig, read_rig

GOOD = """
version = 1
[devices.cpu0]
kind = "cpu"
threads = 2
power_w = { busy = 15.0, idle = 4.0, source = "given" }
[devices.fpga0]
kind = "fpga"
board = "ulx3s-85f"
attach = "model"
clock_hz = 50_000_000
[[links]]
ends = ["cpu0", "fpga0"]
bandwidth_bytes_per_second = 300_000
latency_seconds = 0.00044
shared = "usb0"
source = "measured"
[pins]
"Conv_3" = "fpga0"
"*softmax" = "cpu0"
[planner]
objective = "latency"
place = "fpga"
overlap = true
[rules]
communication_share_max = 0.5
"""


def rig_of(tmp_path: Path, text: str) -> Rig:
    path = tmp_path / "rig.toml"
    path.write_text(text)
    return read_rig(path)


def test_only_devices_that_exist_can_be_attached(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"attach is 'ft245', must be one of .*model, .*virtual"):
        rig_of(tmp_path, GOOD.replace('"model"', '"ft245"'))


def test_every_key_of_the_format_is_read(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, GOOD)
    cpu, fpga = rig.devices
    assert (cpu.threads, cpu.attach) == (2, "cpu")
    assert cpu.power is not None
    assert cpu.power.busy == 15.0
    assert (fpga.attach, fpga.clock_hz, fpga.clock_status) == ("model", 50e6, "given")
    assert fpga.engine is not None
    link = rig.link_of("fpga0")
    assert link is not None
    assert (link.shared, link.source) == ("usb0", "measured")
    assert rig.planner.place == "fpga"
    assert rig.planner.objective == "latency"
    assert rig.rules == {"communication_share_max": 0.5}


def test_the_default_rig_is_a_cpu_and_a_virtual_board_on_its_own_link() -> None:
    rig = default_rig()
    assert [(d.name, d.kind, d.attach) for d in rig.devices] == [
        ("cpu0", "cpu", "cpu"),
        ("fpga0", "fpga", "virtual"),
    ]
    link = rig.link_of("fpga0")
    assert link is not None
    assert link.bandwidth_bytes_per_second == 300_000
    assert rig.devices[1].clock_status == boards.get("ulx3s-85f").clock_status


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("threads = 2", "treads = 2", r"device 'cpu0': unknown key 'treads'; known keys are kind"),
        ("version = 1", "version = 2", r"version is 2, this release reads 1"),
        ('"fpga0"]', '"fpga9"]', r"link 1: leads to device 'fpga9', .* it has cpu0, fpga0"),
        ('board = "ulx3s-85f"', "", r"device 'fpga0': board is missing"),
        ("ulx3s-85f", "de10", r"board 'de10' is not known; known boards: ulx3s-85f"),
        ('kind = "cpu"', 'kind = "tpu"', r"kind is 'tpu', must be one of cpu, gpu, fpga, null"),
        ('"Conv_3" = "fpga0"', '"Conv_3" = "fpga7"', r"pin 'Conv_3': device 'fpga7' is not there"),
        ("300_000", "0", r"link 1: bandwidth_bytes_per_second is 0, must be above 0"),
        ("0.00044", "-1.0", r"latency_seconds is -1, must be at least 0"),
        ('place = "fpga"', 'place = "gpu"', r"planner: place is 'gpu', must be one of auto, fpga"),
        ('"latency"', '"energy"', r"device 'fpga0': power_w is missing, objective 'energy' needs"),
        ('"latency"', '"joules"', r"objective is 'joules', must be one of throughput, latency"),
        ("idle = 4.0", "idle = 40.0", r"power_w: idle 40 W is above busy 15 W; exchange them"),
        ("overlap = true", "batch = 0", r"planner: batch is 0, must be at least 1"),
        ("overlap = true", "replicas = 1.5", r"planner: replicas is 1.5, must be a whole number"),
        ("overlap = true", "slack = 0.1", r"slack 0.1 is for objective 'throughput', not 'lat"),
        ("communication_share_max", "share_max", r"rules: unknown key 'share_max'"),
        ("threads = 2", "threads = 0", r"threads is 0, must be at least 1"),
        ("threads = 2", 'threads = "2"', r"threads is '2', must be a number of threads"),
        ("[pins]", "[pins", r"not TOML"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, old: str, new: str, text: str) -> None:
    assert old in GOOD
    with pytest.raises(CompileError, match=text) as caught:
        rig_of(tmp_path, GOOD.replace(old, new, 1))
    assert "\n" not in str(caught.value)


def test_a_rig_without_a_cpu_or_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="no device of kind cpu"):
        rig_of(tmp_path, "version = 1\n")
    with pytest.raises(
        CompileError, match=r"cannot be read \(No such file or directory\); check the path"
    ):
        read_rig(tmp_path / "none.toml")


def test_pins_match_patterns_and_the_command_line_wins(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, GOOD).with_options(pins=[("Conv_*", "cpu0")])
    nodes = {"u0": ("Conv_3", "Relu_4"), "u1": ("MatMul_5",), "u2": ("softmax",)}
    assert rig.pinned(nodes) == {"u0": "cpu0", "u2": "cpu0"}
    with pytest.raises(CompileError, match=r"pin 'Conv_3': no node has that name"):
        rig.pinned({"u1": ("MatMul_5",), "u2": ("softmax", "Conv_9")})


def test_nodes_of_one_unit_cannot_be_pinned_apart() -> None:
    rig = default_rig().with_options(pins=[("a", "cpu0"), ("b", "fpga0")])
    with pytest.raises(CompileError, match=r"unit 'u' are pinned to different devices"):
        rig.pinned({"u": ("a", "b")})


def test_a_wrong_device_or_place_option_is_refused() -> None:
    with pytest.raises(CompileError, match=r"device 'gpu0' is not there; it has cpu0, fpga0"):
        default_rig().with_options(pins=[("a", "gpu0")])
    with pytest.raises(CompileError, match=r"--place is 'board', must be one of auto, fpga"):
        default_rig().with_options(place="board")


def test_the_hash_follows_the_content(tmp_path: Path) -> None:
    assert rig_of(tmp_path, GOOD).sha256 == rig_of(tmp_path, GOOD + "\n# comment\n").sha256
    changed = GOOD.replace("50_000_000", "60_000_000")
    assert rig_of(tmp_path, GOOD).sha256 != rig_of(tmp_path, changed).sha256
