"""A small engine's netlist for ECP5: the reference machine's bytes in the predicted cycles."""

import dataclasses
import json
import shutil
import subprocess

import numpy as np
import pytest
from amaranth.back import rtlil
from synth.ecp5 import cells, need_tools, work_folder, yosys
from synth.hard_blocks import DP16KD, MULT18X18D

from trivet.boards.board import Toolchain
from trivet.compiler.build.design import Design
from trivet.compiler.build.netlist import absorb
from trivet.compiler.build.recipe import recipe
from trivet.compiler.build.replicate import replicate
from trivet.hdl.config import EngineConfig
from trivet.hdl.engine import READ_LATENCY, Engine, Space
from trivet.hdl.isa import Instruction, Op, Port, Program, predicted_total
from trivet.hdl.overlap import with_early_starts
from trivet.hdl.verilog import to_verilog
from trivet.sim.reference import ReferenceMachine

pytestmark = pytest.mark.synth

CONFIG = EngineConfig(
    lanes=4,
    simd=4,
    requantisers=2,
    act_banks=3,
    act_bank_words=16,
    weight_words=16,
    param_words=8,
    tables=1,
    addends=1,
    instructions=4,
)
# Deep enough for block RAM: activations and parameters of 36 bits, tables of 9.
DEEP = dataclasses.replace(CONFIG, act_bank_words=512, weight_words=512, param_words=512)
PIXELS = 12
NARROW = 16  # values that index tables, whose other entries need not be loaded


def program(rng, config):
    """A 3x3 convolution with padding, then a 1x1 one with residual add and table, then END."""
    src, middle, dst = (k * config.act_bank_words for k in range(3))  # one bank each
    first = Instruction(
        op=Op.DOT, src=src, dst=middle, out_h=3, out_w=4, kernel_h=3, kernel_w=3, in_h=3, in_w=4,
        pad_top=1, pad_left=1, zp_x=-5, zp_y=7, lo=7, hi=127,
    )  # fmt: skip
    second = Instruction(
        op=Op.DOT, src=middle, dst=dst, src2=src, weights=9, params=2, out_h=3, out_w=4, in_h=3,
        in_w=4, zp_x=7, zp_y=5, lo=0, hi=NARROW - 1, idle=1,
        has_add=1, zp_a=4, lo_a=0, hi_a=NARROW - 1, has_table=1,
    )  # fmt: skip
    weights = rng.integers(-128, 128, (10, 4, 4), dtype=np.int8)
    params = np.zeros(8, np.dtype([("bias", "<i4"), ("m", "<f4")]))
    params["bias"] = rng.integers(-3000, 3000, 8)
    params["m"] = 2.0 ** rng.uniform(-9, -6, 8)
    shape = (3, 4, 4)
    return Program(
        config=config,
        instructions=with_early_starts(config, (first, second, Instruction(op=Op.END))),
        weights=weights.tobytes(),
        params=params.tobytes(),
        tables=rng.permutation(256).astype(np.uint8).tobytes(),
        addends=rng.integers(-(9 << 16), 9 << 16, (256, 2)).astype("<i4").tobytes(),
        inputs=(Port("x", src, shape, "int8"),),
        outputs=(Port("middle", middle, shape, "int8"), Port("y", dst, shape, "int8")),
        layers=(),
    )


def memory_image(made, x):
    """(space, address, byte, data) of every byte to write."""
    image = [
        (Space.ACT, 0, made.config.word_bytes, x.tobytes()),
        (Space.WGHT, 0, made.config.weight_word_bytes, made.weights),
        (Space.PARM, 0, made.config.requantisers * 8, made.params),
        (Space.TABL, 0, 1, made.tables[:NARROW]),
        (Space.ADDT, 0, 8, made.addends[: NARROW * 8]),
        (Space.INST, 0, 64, b"".join(i.encode() for i in made.instructions)),
    ]
    for space, base, width, data in image:
        for k, value in enumerate(data):
            yield space, base + k // width, k % width, value


BENCH = """
module bench;
  reg clk = 0, rst = 1;
  reg write_en = 0, read_en = 0, start = 0;
  reg [2:0] write_space = 0; reg [15:0] write_addr = 0, read_addr = 0;
  reg [7:0] write_byte = 0, write_data = 0;
  wire busy, done, error; wire [31:0] cycles; wire [WIDTH-1:0] read_data;
  engine dut(.clk(clk), .rst(rst), .write_en(write_en), .write_space(write_space),
    .write_addr(write_addr), .write_byte(write_byte), .write_data(write_data), .read_en(read_en),
    .read_addr(read_addr), .start(start), .first(16'd0), .count(16'd0), .counter_addr(8'd0),
    .clear(1'b0), .busy(busy), .done(done), .error(error), .cycles(cycles), .read_data(read_data));
  reg [34:0] image [0:COUNT-1];
  integer k, waited;
  task tick; begin #5 clk = 1; #5 clk = 0; end endtask
  task peek; input [15:0] addr; begin
    read_addr = addr; read_en = 1; tick; read_en = 0;
    repeat (LATENCY - 1) tick;
    $display("word %h", read_data);
  end endtask
  initial begin
    $readmemh("image.hex", image);
    tick; tick; rst = 0;
    write_en = 1;
    for (k = 0; k < COUNT; k = k + 1) begin
      {write_space, write_addr, write_byte, write_data} = image[k]; tick;
    end
    write_en = 0; tick; tick;
    start = 1; tick; start = 0;
    waited = 0;
    while (!done && waited < 2000) begin tick; waited = waited + 1; end
    $display("done %b error %b cycles %0d", done, error, cycles);
    PEEKS
    $finish;
  end
endmodule
"""


def synthesise(variant, config, folder):
    """Write the sources of a variant; what the passes did, where they ran."""
    done = None
    if variant in ("built", "built without the pass"):
        # As Trivet builds a bitstream; there the engine lies in a top level.
        text = rtlil.convert(Engine(config), name="top.engine", emit_src=False)
        (folder / "top.il").write_text(text)
        design = Design("top.engine", "", ("top.lpf", ""), 100_000_000, "clk")
        yosys(" ; ".join(recipe(design, Toolchain("ecp5", (), ())).synthesis.split("\n")), folder)
        netlist = json.loads((folder / "synth.json").read_text())
        if variant == "built":
            done = absorb(netlist, "top.engine"), replicate(netlist, "top.engine")
        (folder / "top.json").write_text(json.dumps(netlist))
        yosys(
            "read_json top.json; rename top.engine engine; write_verilog -noattr netlist.v", folder
        )
    else:
        (folder / "engine.v").write_text(to_verilog(Engine(config), "engine"))
        if variant == "RTL":
            return ["engine.v"], None
        yosys(
            f"read_verilog engine.v; synth_ecp5 -top engine {variant}; "
            "write_verilog -noattr netlist.v",
            folder,
        )
    (folder / "cells.v").write_text(cells() + MULT18X18D + DP16KD)
    return ["netlist.v", "cells.v"], done


def simulate(variant, made, x):
    """Outputs by name, int8 ``[h, w, c]``, the cycles counted, and what the passes did."""
    folder = work_folder("netlist")
    config = made.config
    try:
        sources, done = synthesise(variant, config, folder)
        image = list(memory_image(made, x))
        (folder / "image.hex").write_text(
            "\n".join(f"{s << 32 | a << 16 | b << 8 | v:x}" for s, a, b, v in image)
        )
        peeks = "".join(f"peek({p.offset + k});\n" for p in made.outputs for k in range(PIXELS))
        bench = BENCH.replace("COUNT", str(len(image))).replace("LATENCY", str(READ_LATENCY))
        bench = bench.replace("WIDTH", str(8 * config.word_bytes)).replace("PEEKS", peeks)
        (folder / "bench.v").write_text(bench)
        command = ["iverilog", "-g2005", "-s", "bench", "-o", "bench.vvp"]
        run([*command, "bench.v", *sources], folder)
        lines = run(["vvp", "-n", "bench.vvp"], folder).splitlines()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert not any(line.startswith("MODEL") for line in lines), lines[:5]
    status = next(line for line in lines if line.startswith("done"))
    assert status.startswith("done 1 error 0"), lines[:5]
    words = [line.split()[1] for line in lines if line.startswith("word")]
    assert "x" not in "".join(words)
    values = np.array([list(bytes.fromhex(w)[::-1]) for w in words], np.uint8).view(np.int8)
    parts = np.split(values, len(made.outputs))
    outputs = {p.tensor: v.reshape(p.hwc) for p, v in zip(made.outputs, parts, strict=True)}
    return outputs, int(status.split()[-1]), done


def run(command, folder):
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


VARIANTS = {
    "RTL": ("RTL", CONFIG),
    "LUTs and DSPs": ("-nobram", CONFIG),
    "LUTs alone": ("-nobram -nodsp", CONFIG),
    "built without the pass": ("built without the pass", DEEP),
    "built": ("built", DEEP),
}
SLOW = {"LUTs alone", "built", "built without the pass"}


@pytest.mark.parametrize(
    "variant",
    [pytest.param(v, marks=pytest.mark.slow if v in SLOW else ()) for v in VARIANTS],
)
def test_netlist_writes_the_reference_machines_bytes(variant):
    need_tools("iverilog", "vvp")
    form, config = VARIANTS[variant]
    rng = np.random.default_rng(7)
    made = program(rng, config)
    assert made.instructions[1].early > 0
    x = rng.integers(0, NARROW, (3, 4, 4), dtype=np.int8)
    expected = ReferenceMachine(made).run({"x": x})
    assert all(len(np.unique(value)) > 5 for value in expected.values())
    found, cycles, done = simulate(form, made, x)
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name
    assert cycles == predicted_total(config, made.instructions)
    if form == "built":
        # The engine has a register for every block, and none was refused.
        absorbed, replicated = done
        assert not absorbed.left_alone
        assert absorbed.ram_outputs > 10
        assert absorbed.multiplier_inputs == 2 * absorbed.multiplier_outputs > 40
        assert replicated.copies > 20
