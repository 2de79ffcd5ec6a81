"""Verilog out: one module per distinct component, repeatable, and still the same circuit."""

import random
import re
import shutil
import subprocess

import pytest
from amaranth import *
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from trivet.hdl.config import DEFAULT, SMALL
from trivet.hdl.post import Post
from trivet.hdl.verilog import to_verilog


class Leaf(wiring.Component):
    def __init__(self, step, depth=8):
        self.step, self.depth = step, depth
        super().__init__({"i": In(4), "o": Out(8)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.store = store = memory.Memory(shape=8, depth=self.depth, init=[])
        read, write = store.read_port(domain="comb"), store.write_port()
        m.d.comb += [read.addr.eq(self.i), write.addr.eq(self.i), write.en.eq(1)]
        m.d.comb += [write.data.eq(read.data + self.step), self.o.eq(read.data)]
        return m


class Pair(wiring.Component):
    def __init__(self, *steps):
        self.steps = steps
        super().__init__({"i": In(4), "o": Out(8)})

    def elaborate(self, platform):
        m = Module()
        total = C(0, 8)
        for k, step in enumerate(self.steps):
            leaf = Leaf(step)
            m.submodules[f"leaf{k}"] = leaf
            # Slices of unnamed sums: their ports are anonymous in RTLIL.
            m.d.comb += leaf.i.eq((self.i + k)[:3])
            total = total + leaf.o
        m.d.comb += self.o.eq(total)
        return m


class Tree(wiring.Component):
    """Two equal pairs, and one that differs in a leaf."""

    def __init__(self):
        super().__init__({"i": In(4), "o": Out(8)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.first = first = Pair(1, 2, 1)
        m.submodules.second = second = Pair(1, 2, 1)
        m.submodules.third = third = Pair(1, 1)
        m.d.comb += [first.i.eq(self.i), second.i.eq(self.i ^ 5), third.i.eq(self.i + 3)]
        m.d.comb += self.o.eq(first.o ^ (second.o << 1) ^ (third.o << 2))
        return m


def modules(text):
    return re.findall(r"^module (\S+?) ?\(", text, re.M)


def test_equal_components_share_a_module():
    assert modules(to_verilog(Tree(), "tree")) == [
        "tree", "tree__first", "tree__first__leaf0", "tree__first__leaf1", "tree__third",
    ]


def test_text_is_the_same_every_time():
    text = to_verilog(Post(SMALL), "post")
    assert text == to_verilog(Post(SMALL), "post")
    assert "/" not in re.sub(r"//.*", "", text)  # no source paths
    assert "(*" not in text.replace("@(*)", "")  # no attributes


def test_wide_pipeline_costs_no_more_text_than_a_narrow_one():
    small, wide = (to_verilog(Post(config), "post") for config in (SMALL, DEFAULT))
    assert modules(small) == modules(wide)
    assert len(wide) < 50_000


def test_memories_are_cleared_by_a_loop():
    text = to_verilog(Leaf(1), "leaf")
    assert "initial for (clear0 = 0; clear0 <= 7; clear0 = clear0 + 1) store [clear0] = 0;" in text


def test_contents_of_a_memory_are_kept():
    class Rom(wiring.Component):
        i: In(2)
        o: Out(8)

        def elaborate(self, platform):
            m = Module()
            m.submodules.rom = rom = memory.Memory(shape=8, depth=4, init=[7, 0, 9, 1])
            port = rom.read_port(domain="comb")
            m.d.comb += [port.addr.eq(self.i), self.o.eq(port.data)]
            return m

    text = to_verilog(Rom(), "rom")
    assert "= 8'h07;" in text
    assert "clear0" not in text


class Narrow(wiring.Component):
    """A component of which a signal, or a port, has no bits."""

    def __init__(self, port_bits):
        super().__init__({"i": In(3), "o": Out(3), "p": In(port_bits)})

    def elaborate(self, platform):
        m = Module()
        nothing = Signal(0)
        m.d.sync += [nothing.eq(self.i), self.o.eq(Cat(self.i, nothing) + self.p)]
        return m


def test_signals_without_bits_are_left_out():
    text = to_verilog(Narrow(1), "narrow")
    assert "-1" not in text
    assert "nothing" not in text


def test_a_port_without_bits_is_refused():
    with pytest.raises(ValueError, match=r"signal p has no bits but is used in module narrow"):
        to_verilog(Narrow(0), "narrow")


def test_a_name_that_is_no_identifier_is_refused():
    with pytest.raises(ValueError, match="'a b' is no plain identifier"):
        to_verilog(None, "a b")


@pytest.mark.rtl
@pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus Verilog is not installed")
def test_merged_text_behaves_as_the_component(tmp_path):
    rng = random.Random(6)
    inputs = [rng.randrange(16) for _ in range(300)]
    expected = []
    dut = Tree()

    async def bench(ctx):
        for value in inputs:
            ctx.set(dut.i, value)
            await ctx.delay(1e-8)
            expected.append(ctx.get(dut.o))
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()

    (tmp_path / "tree.v").write_text(to_verilog(dut, "tree"))
    step = 'i = {}; #1 $display("%0d", o); clk = 1; #1 clk = 0; #1;\n'
    steps = "".join(step.format(value) for value in inputs)
    (tmp_path / "bench.v").write_text(
        "module bench; reg clk = 0, rst = 0; reg [3:0] i = 0; wire [7:0] o;\n"
        "tree dut(.clk(clk), .rst(rst), .i(i), .o(o));\n"
        f"initial begin\n#1;\n{steps}$finish;\nend\nendmodule\n")
    subprocess.run(["iverilog", "-g2001", "-Wall", "-s", "bench", "-o", "bench.vvp",
                    "bench.v", "tree.v"], cwd=tmp_path, check=True, timeout=60)
    shown = subprocess.run(["vvp", "-n", "bench.vvp"], cwd=tmp_path, check=True, timeout=60,
                           capture_output=True, text=True).stdout
    assert [int(v) for v in shown.split() if v.isdigit()] == expected
