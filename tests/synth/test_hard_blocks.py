"""The models of block RAM and multiplier do what the data sheets say, told by bits in Python."""

import random
import shutil
import subprocess

import pytest
from synth.ecp5 import need_tools, work_folder
from synth.hard_blocks import DP16KD, MULT18X18D

pytestmark = pytest.mark.synth

CYCLES = 3000
# Widths of port A and B, which have an output register, and what a writing port shows.
RAMS = [
    *((a, b, "", "NORMAL") for a in (1, 2, 4, 9, 18) for b in (1, 2, 4, 9, 18)),
    *((36, b, r, "NORMAL") for b in (1, 2, 4, 9, 18, 36) for r in ("", "AB")),
    (9, 9, "A", "READBEFOREWRITE"), (18, 9, "B", "READBEFOREWRITE"),
    (18, 18, "AB", "WRITETHROUGH"), (4, 18, "AB", "NORMAL"), (2, 1, "B", "WRITETHROUGH"),
]  # fmt: skip


def run(verilog, folder):
    for name, text in verilog.items():
        (folder / name).write_text(text)
    sources = [n for n in verilog if n.endswith(".v")]
    for command in (
        ["iverilog", "-g2005", "-s", "bench", "-o", "b.vvp", *sources],
        ["vvp", "-n", "b.vvp"],
    ):
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def simulated(verilog):
    need_tools("iverilog", "vvp")
    folder = work_folder("hard-blocks")
    try:
        return run(verilog, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def bits_of(width, addr):
    """(word of 18 bits, bit) of each data bit that a port of this width has at an address."""
    if width == 36:
        base = addr >> 5 << 1
        return [(base, k) for k in range(18)] + [(base + 1, k) for k in range(18)]
    word, rest = addr >> 4, addr & 15
    if width == 18:
        return [(word, k) for k in range(18)]
    if width == 9:
        return [(word, 9 * (rest >> 3) + k) for k in range(9)]
    first = rest // width * width  # of sixteen: the ninth bits are not counted
    return [(word, 9 * (k >> 3) + (k & 7)) for k in range(first, first + width)]


def ram_outputs(config, start, steps):
    """Both outputs after every cycle as strings of 0, 1, x; None is a bit that nobody knows."""
    width_a, width_b, registers, mode = config
    memory = {(w, k): start[w] >> k & 1 for w in range(1024) for k in range(18)}
    shown = [[0] * 18, [0] * 18]
    kept = [[0] * 18, [0] * 18]
    for s in steps:
        kept = [list(x) for x in shown]
        written, ports = [], []
        for width, addr, data in (
            (width_a, s["ada"], s["dia"] | (s["dib"] << 18 if width_a == 36 else 0)),
            (width_b, s["adb"], s["dib"]),
        ):
            places = bits_of(width, addr)
            enabled = [width < 18 or addr >> k // 9 & 1 for k in range(width)]
            ports.append((width, places, data))
            written.append({p: data >> k & 1 for k, p in enumerate(places) if enabled[k]})
        writes = [s["cea"] & s["wea"], s["ceb"] & s["web"] & (width_a != 36)]
        enables = [s["cea"] & (width_a != 36), s["ceb"]]
        for k, (width, places, data) in enumerate(ports):
            other = written[1 - k] if writes[1 - k] else {}
            if not enables[k] or (writes[k] and mode == "NORMAL"):
                continue
            value = [memory[p] for p in places] + [0] * (18 - width)
            if writes[k] and mode == "WRITETHROUGH":
                value = [data >> j & 1 for j in range(width)] + [0] * (18 - width)
            elif any(p in other for p in places):
                value = [None] * len(value)
            if width == 36:
                shown = [value[:18], value[18:]]
            else:
                shown[k] = value
        for k in range(2):
            if writes[k]:
                memory.update(written[k])
        if all(writes):
            memory.update(dict.fromkeys(written[0].keys() & written[1].keys()))
        yield [kept[k] if "AB"[k] in registers else shown[k] for k in range(2)]


def text(bits):
    return "".join("x" if b is None else str(b) for b in reversed(bits))


def test_block_rams():
    rng = random.Random(5)
    start = [rng.randrange(1 << 18) for _ in range(1024)]
    rows = [sum(start[16 * k + j] << 20 * j for j in range(16)) for k in range(64)]
    contents = ", ".join(f".INITVAL_{k:02X}(320'h{row:x})" for k, row in enumerate(rows))
    steps = [
        {
            "ada": rng.randrange(128), "adb": rng.randrange(128), "dia": rng.randrange(1 << 18),
            "dib": rng.randrange(1 << 18), "wea": rng.randrange(2), "web": rng.randrange(4) == 0,
            "cea": rng.randrange(4) > 0, "ceb": rng.randrange(4) > 0,
        }
        for _ in range(CYCLES)
    ]  # fmt: skip
    order = ("ada", "adb", "dia", "dib", "wea", "web", "cea", "ceb")
    sizes = {"ada": 14, "adb": 14, "dia": 18, "dib": 18}
    lines = []
    for s in steps:
        value = 0
        for name in order:
            value = value << sizes.get(name, 1) | int(s[name])
        lines.append(f"{value:x}")
    blocks, shows = "", []
    for n, (a, b, registers, mode) in enumerate(RAMS):
        modes = "".join(f', .REGMODE_{p}("OUTREG")' for p in registers)
        pins = "".join(
            f", .AD{p}{k}(ad{p.lower()}[{k}])" for p in "AB" for k in range(14)
        ) + "".join(
            f", .DI{p}{k}(di{p.lower()}[{k}]), .DO{p}{k}(do{p.lower()}{n}[{k}])"
            for p in "AB" for k in range(18)
        )  # fmt: skip
        always = {p: p in registers for p in "AB"}
        blocks += (
            f"wire [17:0] doa{n}, dob{n};\n"
            f'DP16KD #(.DATA_WIDTH_A({a}), .DATA_WIDTH_B({b}), .WRITEMODE_A("{mode}"), '
            f'.WRITEMODE_B("{mode}"){modes}, {contents}) ram{n}(.CLKA(clk), .CLKB(clk), '
            f".CEA({'one' if always['A'] else 'cea'}), .CEB({'one' if always['B'] else 'ceb'}), "
            f".WEA(wea), .WEB({'zero' if a == 36 else 'web'}), .OCEA(one), .OCEB(one), .RSTA(zero),"
            ".RSTB(zero), .CSA0(zero), .CSA1(zero), .CSA2(zero), .CSB0(zero), .CSB1(zero), "
            f".CSB2(zero){pins});\n"
        )
        shows.append(f'$display("%b %b", doa{n}, dob{n});')
    bench = (
        "module bench; reg clk = 0; wire one = 1, zero = 0;\n"
        "reg [13:0] ada = 0, adb = 0; reg [17:0] dia, dib;\n"
        "reg wea = 0, web = 0, cea = 0, ceb = 0;\n"
        f"reg [67:0] step [0:{CYCLES - 1}]; integer i;\n{blocks}"
        'initial begin $readmemh("steps.hex", step);\n'
        f"for (i = 0; i < {CYCLES}; i = i + 1) begin\n"
        "{ada, adb, dia, dib, wea, web, cea, ceb} = step[i]; #5 clk = 1; #5 clk = 0;\n"
        + "\n".join(shows)
        + "\nend $finish; end\nendmodule\n"
    )
    out = simulated({"bench.v": bench, "m.v": DP16KD, "steps.hex": "\n".join(lines)}).splitlines()
    assert len(out) == CYCLES * len(RAMS), out[:3]
    for n, config in enumerate(RAMS):
        own = [
            {**s, "cea": s["cea"] or "A" in config[2], "ceb": s["ceb"] or "B" in config[2]}
            for s in steps
        ]
        for i, wanted in enumerate(ram_outputs(config, start, own)):
            found = out[i * len(RAMS) + n].split()
            if config[0] == 36 and config[1] != 36:
                found[0] = text(wanted[0])  # nothing is read there
            assert found == [text(w) for w in wanted], (config, i)


def test_multipliers():
    rng = random.Random(6)
    edges = [0, 1, (1 << 17) - 1, 1 << 17, (1 << 18) - 1]
    values = [(a, b) for a in edges for b in edges]
    values += [(rng.randrange(1 << 18), rng.randrange(1 << 18)) for _ in range(300)]
    forms = [(s, t, i, j, o) for s in (0, 1) for t in (0, 1) for i in (0, 1) for j in (0, 1)
             for o in (0, 1)]  # fmt: skip
    blocks, shows = "", ""
    for n, (s, t, *registers) in enumerate(forms):
        names = [
            r for r, used in zip(("INPUTA", "INPUTB", "OUTPUT"), registers, strict=True) if used
        ]
        clocks = ", ".join(f'.REG_{r}_CLK("CLK0")' for r in names) or '.REG_OUTPUT_CLK("NONE")'
        pins = ", ".join(
            [f".{x}{k}({x.lower()}[{k}])" for x in "AB" for k in range(18)]
            + [f".P{k}(p{n}[{k}])" for k in range(36)]
        )
        blocks += (
            f"wire [35:0] p{n}; MULT18X18D #({clocks}) m{n}(.SIGNEDA(1'b{s}), .SIGNEDB(1'b{t}), "
            f".CLK0(clk), .CE0(1'b1), .RST0(1'b0), {pins});\n"
        )
        shows += f'$display("%h", p{n});\n'
    steps = "".join(f"a = {a}; b = {b}; show;\n" for a, b in values)
    bench = (
        f"module bench; reg clk = 0; reg [17:0] a = 0, b = 0;\n{blocks}"
        f"task show; begin #5 clk = 1; #5 clk = 0; {shows} end endtask\n"
        f"initial begin\n{steps}$finish; end\nendmodule\n"
    )
    out = simulated({"bench.v": bench, "m.v": MULT18X18D}).split()

    def read(value, is_signed):
        return value - (1 << 18) if is_signed and value >> 17 else value

    for n, (s, t, in_a, in_b, is_late) in enumerate(forms):
        last = [0, 0, 0]
        for i, (a, b) in enumerate(values):
            # Shown after the clock edge that takes a and b: a registered factor is this one too.
            before = (last[0] if in_a else a), (last[1] if in_b else b)
            now = read(a, s) * read(b, t)
            product = read(before[0], s) * read(before[1], t) if is_late else now
            last = [a, b, 0]
            assert int(out[i * len(forms) + n], 16) == product & (1 << 36) - 1, (n, i)


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("DP16KD dut(.CLKA(c), .CLKB(c), .RSTA(one))", "reset in use"),
        ('DP16KD #(.CLKBMUX("INV")) dut(.CLKA(c), .CLKB(c))', "the ports have two clocks"),
        ('DP16KD #(.REGMODE_A("OUTREG")) dut(.CLKA(c), .CLKB(c), .CEA(zero))', "not enabled"),
        ('MULT18X18D #(.REG_PIPELINE_CLK("CLK0")) dut(.CLK0(c))', "pipeline register"),
        ('MULT18X18D #(.REG_INPUTA_CLK("CLK0")) dut(.CLK0(c), .CE0(zero))', "enable or reset"),
    ],
)
def test_what_is_not_modelled_stops(cell, why):
    if cell.startswith("DP16KD"):
        pins = {"RSTA": "zero", "RSTB": "zero", "CEA": "zero", "CEB": "zero", "WEA": "zero"}
        pins |= {f"CS{p}{k}": "zero" for p in "AB" for k in range(3)} | {"WEB": "zero"}
        rest = ", ".join(f".{p}({v})" for p, v in pins.items() if f".{p}(" not in cell)
        cell = f"{cell[:-1]}, {rest})"
    bench = (
        f"module bench; reg c = 0; wire one = 1, zero = 0; {cell};\n"
        "initial begin repeat (4) #5 c = ~c; $finish; end endmodule\n"
    )
    out = simulated({"bench.v": bench, "m.v": DP16KD + MULT18X18D})
    assert why in out
