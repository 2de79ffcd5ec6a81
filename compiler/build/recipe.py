"""How each family is built: the scripts and arguments, as data that goes into the build's hash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trivet.boards.board import Toolchain

from .design import Design

__all__ = ["SUFFIX", "Recipe", "recipe"]

Family = Literal["ecp5", "ice40", "gowin", "xilinx"]
SUFFIX: Mapping[str, str] = {"ecp5": "bit", "ice40": "bin", "gowin": "fs", "xilinx": "zip"}

# Memories whose contract says that a read and a write of one word never meet in a cycle
# (hdl.memories, the tables of hdl.post and hdl.addend: nothing is loaded while the engine runs).
# yosys would otherwise put a multiplexer of old and new data behind each of their bits, and no
# output register could be used. Those of the link and the counters are not in the list.
_NEVER_MEET = ("*.engine.*_memory", "*.engine.*.addend*", "*.engine.*.table*")


# What `synth_ice40 -dsp` does for products, but for sums: where two products with registers are
# added, yosys 0.70 puts the sum and both registers into one SB_MAC16 and the other product's output
# is gone, its input undefined. The selection keeps adders out of its sight.
_ICE40_PRODUCTS = """\
opt_expr
opt_clean
opt -nodffe -nosdff
wreduce
opt_clean
techmap -map +/mul2dsp.v -map +/ice40/dsp_map.v -D DSP_A_MAXWIDTH=16 -D DSP_B_MAXWIDTH=16 \
-D DSP_A_MINWIDTH=2 -D DSP_B_MINWIDTH=2 -D DSP_Y_MINWIDTH=11 -D DSP_NAME=$__MUL16X16
select a:mul2dsp
setattr -unset mul2dsp
opt_expr -fine
wreduce
select -clear
select t:SB_MAC16 t:$dff t:$sdff t:$dffe t:$sdffe
ice40_dsp
select -clear
chtype -set $mul t:$__soft_mul
"""


@dataclass(frozen=True)
class Recipe:
    """Commands of one build; ``{seed}`` in a file name or argument stands for the seed.

    ``synthesis`` is yosys' script: it reads ``top.il`` and writes ``synth.json`` and ``stat.json``.
    ``absorb`` says whether :func:`.netlist.absorb` runs in between. ``place`` and ``pack`` are the
    arguments of the other two tools, empty for families that are only exported.
    """

    family: Family
    synthesis: str
    absorb: bool = False
    place: tuple[str, ...] = ()
    pack: tuple[str, ...] = ()

    @property
    def bitstream(self) -> str:
        return f"top-{{seed}}.{SUFFIX[self.family]}"


def recipe(design: Design, toolchain: Toolchain) -> Recipe:
    """The commands for a design on a family."""
    top = design.name
    constraints = design.constraints[0]
    mhz = f"{design.clock_hz / 1e6:g}"
    common = (*toolchain.arguments, "--seed", "{seed}", "--report", "report-{seed}.json")
    read = "read_rtlil top.il\n"
    stat = "tee -q -o stat.json stat -json\n"
    apart = " ".join(f"{pattern}/t:$memrd_v2" for pattern in _NEVER_MEET)
    read_apart = f"{read}setparam -set COLLISION_X_MASK 1'1 {apart}\n"
    if toolchain.family == "ecp5":
        return Recipe(
            "ecp5",
            f"{read_apart}synth_ecp5 -top {top} -json synth.json\n{stat}",
            absorb=True,
            place=(
                *common, "--json", "top.json", "--lpf", constraints, "--textcfg",
                "top-{seed}.config", "--freq", mhz, "--router", "router1", "--timing-allow-fail",
            ),
            pack=(*toolchain.pack, "--input", "top-{seed}.config", "--bit", "top-{seed}.bit"),
        )  # fmt: skip
    if toolchain.family == "ice40":
        return Recipe(
            "ice40",
            # Single-port RAM starts with nothing, so memories with contents are not put there.
            f"{read_apart}delete *weight_memory/t:$meminit_v2\n"
            f"synth_ice40 -top {top} -run begin:coarse\n{_ICE40_PRODUCTS}"
            f"synth_ice40 -spram -top {top} -json synth.json -run coarse:\n{stat}",
            place=(
                *common, "--json", "top.json", "--pcf", constraints, "--asc", "top-{seed}.asc",
                "--freq", mhz, "--timing-allow-fail",
            ),
            pack=(*toolchain.pack, "top-{seed}.asc", "top-{seed}.bin"),
        )  # fmt: skip
    if toolchain.family == "gowin":
        return Recipe(
            "gowin",
            f"{read_apart}synth_gowin -top {top} -json synth.json\n{stat}",
            place=(
                *common, "--json", "top.json", "--vopt", f"cst={constraints}", "--write",
                "routed-{seed}.json", "--freq", mhz, "--timing-allow-fail",
            ),
            pack=(*toolchain.pack, "-o", "top-{seed}.fs", "routed-{seed}.json"),
        )  # fmt: skip
    return Recipe(
        "xilinx",
        # With attributes: Vivado is told by them what a memory is made of, and what crosses clocks.
        f"{read_apart}write_verilog top.v\n"
        f"synth_xilinx -flatten -top {top} {' '.join(toolchain.arguments)}\n{stat}",
    )
