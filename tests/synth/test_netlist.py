"""A small engine's netlist for ECP5, simulated, writes the bytes of the reference machine."""

import random
import shutil
import subprocess

import numpy as np
import pytest
from synth.ecp5 import MULT18X18D, cells, need_tools, work_folder, yosys

from trivet.hdl.config import EngineConfig
from trivet.hdl.engine import READ_LATENCY, Engine, Space
from trivet.hdl.isa import Instruction, Op, Port, Program
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
SRC, MIDDLE, DST = 0, 16, 32  # one bank each
NARROW = 16  # values that index tables, whose other entries need not be loaded


def program(rng):
    """A 3x3 convolution with padding, then a 1x1 one with residual add and table, then END."""
    first = Instruction(
        op=Op.DOT, src=SRC, dst=MIDDLE, out_h=3, out_w=4, kernel_h=3, kernel_w=3, in_h=3, in_w=4,
        pad_top=1, pad_left=1, zp_x=-5, zp_y=7, lo=7, hi=127,
    )  # fmt: skip
    second = Instruction(
        op=Op.DOT, src=MIDDLE, dst=DST, src2=SRC, weights=9, params=2, out_h=3, out_w=4, in_h=3,
        in_w=4, zp_x=7, zp_y=5, lo=0, hi=NARROW - 1, idle=1,
        has_add=1, zp_a=4, lo_a=0, hi_a=NARROW - 1, has_table=1,
    )  # fmt: skip
    weights = rng.integers(-128, 128, (10, 4, 4), dtype=np.int8)
    params = np.zeros(8, np.dtype([("bias", "<i4"), ("m", "<f4")]))
    params["bias"] = rng.integers(-3000, 3000, 8)
    params["m"] = 2.0 ** rng.uniform(-9, -6, 8)
    shape = (3, 4, 4)
    return Program(
        config=CONFIG,
        instructions=(first, second, Instruction(op=Op.END)),
        weights=weights.tobytes(),
        params=params.tobytes(),
        tables=rng.permutation(256).astype(np.uint8).tobytes(),
        addends=rng.integers(-(9 << 16), 9 << 16, (256, 2)).astype("<i4").tobytes(),
        inputs=(Port("x", SRC, shape, "int8"),),
        outputs=(Port("middle", MIDDLE, shape, "int8"), Port("y", DST, shape, "int8")),
        layers=(),
    )


def memory_image(made, x):
    """(space, address, byte, data) of every byte to write."""
    image = [
        (Space.ACT, SRC, CONFIG.word_bytes, x.tobytes()),
        (Space.WGHT, 0, CONFIG.weight_word_bytes, made.weights),
        (Space.PARM, 0, CONFIG.requantisers * 8, made.params),
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
    for (k = 0; k < WORDS; k = k + 1) begin
      read_addr = k; read_en = 1; tick; read_en = 0;
      repeat (LATENCY - 1) tick;
      $display("word %h", read_data);
    end
    $finish;
  end
endmodule
"""


def simulate(netlist, made, x):
    """All of activation memory after the run, uint8 ``[words, word_bytes]``."""
    folder = work_folder("netlist")
    try:
        (folder / "engine.v").write_text(to_verilog(Engine(CONFIG), "engine"))
        if netlist:
            yosys(
                f"read_verilog engine.v; synth_ecp5 -top engine {netlist}; "
                "write_verilog -noattr netlist.v",
                folder,
            )
            (folder / "cells.v").write_text(cells() + MULT18X18D)
            sources = ["netlist.v", "cells.v"]
        else:
            sources = ["engine.v"]
        image = list(memory_image(made, x))
        (folder / "image.hex").write_text(
            "\n".join(f"{s << 32 | a << 16 | b << 8 | v:x}" for s, a, b, v in image)
        )
        bench = BENCH.replace("COUNT", str(len(image))).replace("LATENCY", str(READ_LATENCY))
        bench = bench.replace("WIDTH", str(8 * CONFIG.word_bytes))
        (folder / "bench.v").write_text(bench.replace("WORDS", str(CONFIG.act_words)))
        command = ["iverilog", "-g2005", "-s", "bench", "-o", "bench.vvp"]
        run([*command, "bench.v", *sources], folder)
        lines = run(["vvp", "-n", "bench.vvp"], folder).splitlines()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    status = next(line for line in lines if line.startswith("done"))
    assert status.startswith("done 1 error 0"), lines[:5]
    words = [line.split()[1] for line in lines if line.startswith("word")]
    # Words that nobody wrote may hold anything.
    rows = [bytes.fromhex(w.replace("x", "0"))[::-1] for w in words]
    return np.array([list(r) for r in rows], np.uint8)


def run(command, folder):
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


VARIANTS = {
    "RTL": "",
    "LUTs and DSPs": "-nobram",
    "LUTs alone": "-nobram -nodsp",
}
SLOW = {"LUTs alone"}


@pytest.mark.parametrize(
    "variant",
    [pytest.param(v, marks=pytest.mark.slow if v in SLOW else ()) for v in VARIANTS],
)
def test_netlist_writes_the_reference_machines_bytes(variant):
    need_tools("iverilog", "vvp")
    rng = np.random.default_rng(7)
    made = program(rng)
    x = rng.integers(0, NARROW, (3, 4, 4), dtype=np.int8)
    expected = ReferenceMachine(made).run({"x": x})
    assert all(len(np.unique(value)) > 5 for value in expected.values())
    act = simulate(VARIANTS[variant], made, x)
    for port in made.outputs:
        found = act[port.offset : port.offset + 12].view(np.int8).reshape(port.hwc)
        assert np.array_equal(found, expected[port.tensor]), port.tensor


def test_model_of_the_multiplier_multiplies():
    need_tools("iverilog", "vvp")
    rng = random.Random(3)
    edges = [0, 1, (1 << 17) - 1, 1 << 17, (1 << 18) - 1]
    cases = [(a, b, s, t) for a in edges for b in edges for s in (0, 1) for t in (0, 1)]
    cases += [
        (rng.randrange(1 << 18), rng.randrange(1 << 18), rng.randrange(2), rng.randrange(2))
        for _ in range(2000)
    ]

    def read(value, is_signed):
        return value - (1 << 18) if is_signed and value >> 17 else value

    wires = ", ".join(
        [f".{x}{k}({x.lower()}[{k}])" for x in "AB" for k in range(18)]
        + [f".P{k}(p[{k}])" for k in range(36)]
        + [".SIGNEDA(s)", ".SIGNEDB(t)"]
    )
    steps = "".join(
        f'a = {a}; b = {b}; s = {s}; t = {t}; #1 $display("%h", p);\n' for a, b, s, t in cases
    )
    folder = work_folder("multiplier")
    try:
        (folder / "bench.v").write_text(
            "module bench; reg [17:0] a, b; reg s, t; wire [35:0] p;\n"
            f"MULT18X18D dut({wires});\ninitial begin\n{steps}$finish; end\nendmodule\n"
        )
        (folder / "model.v").write_text(MULT18X18D)
        run(["iverilog", "-g2005", "-s", "bench", "-o", "b.vvp", "bench.v", "model.v"], folder)
        shown = run(["vvp", "-n", "b.vvp"], folder).split()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wanted = [read(a, s) * read(b, t) & (1 << 36) - 1 for a, b, s, t in cases]
    assert [int(v, 16) for v in shown] == wanted
