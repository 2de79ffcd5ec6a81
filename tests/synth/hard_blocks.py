"""Verilog models of the ECP5's block RAM and multiplier, of which yosys knows only the ports.

Written after Lattice FPGA-TN-02204 (memory usage guide) and FPGA-TN-02205 (sysDSP usage guide).
They cover what yosys and Trivet's register pass emit; anything else stops the simulation with a
line that begins with ``MODEL``, since a model that guesses would prove nothing.
"""

__all__ = ["DP16KD", "MULT18X18D"]

_STOP = """\
  task stop; input [8*40-1:0] why; begin $display("MODEL %m: %0s", why); $finish; end endtask
"""

_DP16KD = """
  // One clock for both ports, so that what meets in a cycle is known.
  wire ca = CLKA ^ (CLKAMUX == "INV"), cb = CLKB ^ (CLKBMUX == "INV");
  always @(ca or cb) #1 if (ca !== cb) stop("the ports have two clocks");
  initial begin
    if (CSDECODE_A != "0b000" || CSDECODE_B != "0b000") stop("chip select decode");
    if (DATA_WIDTH_B == 36 && DATA_WIDTH_A != 36) stop("36 bits on port B alone");
  end
  // 1,024 words of two bytes of nine bits; widths 1, 2 and 4 leave every ninth bit alone.
  reg [17:0] mem [0:1023];
  reg [17:0] latch_a = 0, latch_b = 0, reg_a = 0, reg_b = 0;
  reg [319:0] row;
  integer k;
  task fill; input integer index; begin
    for (k = 0; k < 16; k = k + 1) mem[16 * index + k] = row[20 * k +: 18];
  end endtask
  function [4:0] place; input integer width; input [13:0] addr;  // first bit within the word
    case (width)
      1: place = 9 * addr[3] + addr[2:0];
      2: place = 9 * addr[3] + 2 * addr[2:1];
      4: place = 9 * addr[3] + 4 * addr[2];
      9: place = 9 * addr[3];
      default: place = 0;
    endcase
  endfunction
  function [17:0] mask; input integer width;  mask = (1 << width) - 1; endfunction
  function [17:0] nine; input low, high; nine = {{9{high}}, {9{low}}}; endfunction
  wire [13:0] ada = {ADA}, adb = {ADB};
  wire [17:0] dia = {DIA}, dib = {DIB};
  wire wide = DATA_WIDTH_A == 36, wide_read = DATA_WIDTH_B == 36;
  // Bits that each port touches in its word, and those that it writes.
  wire [17:0] here_a =
    DATA_WIDTH_A >= 18 ? 18'h3ffff : mask(DATA_WIDTH_A) << place(DATA_WIDTH_A, ada);
  wire [17:0] here_b =
    DATA_WIDTH_B >= 18 ? 18'h3ffff : mask(DATA_WIDTH_B) << place(DATA_WIDTH_B, adb);
  wire [17:0] put_a = DATA_WIDTH_A >= 18 ? nine(ada[0], ada[1]) : here_a;
  wire [17:0] put_b = DATA_WIDTH_B >= 18 ? nine(adb[0], adb[1]) : here_b;
  wire [9:0] word_a = wide ? {ada[13:5], 1'b0} : ada[13:4];
  wire [9:0] word_b = wide_read ? {adb[13:5], 1'b0} : adb[13:4];
  wire write_a = CEA & WEA, write_b = CEB & WEB;
  wire [17:0] put_high = wide ? nine(ada[2], ada[3]) : 18'b0;
  // A port writes what the other reads.
  wire same = wide ? word_a[9:1] == word_b[9:1] : word_a == word_b;
  wire [17:0] put_here =
    wide_read ? put_a | put_high : here_b & (wide & word_b[0] ? put_high : put_a);
  wire meet_b = write_a && same && |put_here, meet_a = write_b && same && |(here_a & put_b);
  reg [17:0] old, old_b, in;
  always @(posedge ca) begin
    if ((|{RSTA, RSTB}) !== 0) stop("reset in use");
    if ((|{CSA0, CSA1, CSA2, CSB0, CSB1, CSB2}) !== 0) stop("chip select in use");
    if (REGMODE_A == "OUTREG") begin
      if (CEA !== 1) stop("register of a port that is not enabled");
      if (OCEA) reg_a = latch_a;
    end
    if (REGMODE_B == "OUTREG") begin
      if (CEB !== 1) stop("register of a port that is not enabled");
      if (OCEB) reg_b = latch_b;
    end
    if (wide && WEB !== 0) stop("port B writes in 36-bit mode");
    if (write_a === 1'bx || write_b === 1'bx) stop("write enable is x");
    if (write_a && ^word_a === 1'bx && |put_a !== 0) stop("write address is x");
    if (write_b && ^word_b === 1'bx) stop("write address is x");
    // Reads see what was there before the cycle; where the other port writes, nobody knows.
    if (CEB) begin
      old = mem[word_b];
      if (!write_b || WRITEMODE_B == "READBEFOREWRITE") begin
        if (wide_read) begin latch_a = old; latch_b = mem[word_b + 1]; end
        else latch_b = (old & here_b) >> place(DATA_WIDTH_B, adb);
        if (meet_b !== 0) begin
          latch_b = 18'bx;
          if (wide_read) latch_a = 18'bx;
        end
      end else if (WRITEMODE_B == "WRITETHROUGH") latch_b = dib & mask(DATA_WIDTH_B);
    end
    if (CEA && !wide) begin
      old = mem[word_a];
      if (!write_a || WRITEMODE_A == "READBEFOREWRITE") begin
        latch_a = (old & here_a) >> place(DATA_WIDTH_A, ada);
        if (meet_a !== 0) latch_a = 18'bx;
      end else if (WRITEMODE_A == "WRITETHROUGH") latch_a = dia & mask(DATA_WIDTH_A);
    end
    if (write_a) begin
      in = DATA_WIDTH_A >= 18 ? dia : dia << place(DATA_WIDTH_A, ada);
      mem[word_a] = mem[word_a] & ~put_a | in & put_a;
      if (wide) mem[word_a + 1] = mem[word_a + 1] & ~put_high | dib & put_high;
    end
    if (write_b) begin
      in = DATA_WIDTH_B >= 18 ? dib : dib << place(DATA_WIDTH_B, adb);
      old_b = mem[word_b];
      mem[word_b] = old_b & ~put_b | in & put_b;
      if (write_a && word_a == word_b)
        mem[word_b] = mem[word_b] ^ (put_a & put_b & 18'bx);
    end
  end
  assign {DOA} = REGMODE_A == "OUTREG" ? reg_a : latch_a;
  assign {DOB} = REGMODE_B == "OUTREG" ? reg_b : latch_b;
"""


def _bits(name: str, count: int) -> list[str]:
    return [f"{name}{k}" for k in range(count)]


def _block_ram() -> str:
    inputs, outputs, parameters = [], [], []
    body = _DP16KD
    for p in "AB":
        inputs += _bits(f"DI{p}", 18) + _bits(f"AD{p}", 14) + _bits(f"CS{p}", 3)
        inputs += [f"{x}{p}" for x in ("CE", "OCE", "CLK", "WE", "RST")]
        outputs += _bits(f"DO{p}", 18)
        parameters += [
            (f"DATA_WIDTH_{p}", "18"), (f"REGMODE_{p}", '"NOREG"'), (f"CLK{p}MUX", f'"CLK{p}"'),
            (f"CSDECODE_{p}", '"0b000"'), (f"WRITEMODE_{p}", '"NORMAL"'),
        ]  # fmt: skip
        for name, count in ((f"AD{p}", 14), (f"DI{p}", 18), (f"DO{p}", 18)):
            body = body.replace(f"{{{name}}}", f"{{{', '.join(reversed(_bits(name, count)))}}}")
    for name in ("RESETMODE", "ASYNC_RESET_RELEASE", "GSR", "INIT_DATA", "WID"):
        parameters.append((name, '""'))
    for k in range(64):
        parameters.append((f"INITVAL_{k:02X}", "320'h0"))
    fills = "\n".join(f"    row = INITVAL_{k:02X}; fill({k});" for k in range(64))
    return (
        f"module DP16KD({', '.join([*inputs, *outputs])});\n"
        + "".join(f"  parameter {name} = {value};\n" for name, value in parameters)
        + f"  input {', '.join(inputs)};\n  output {', '.join(outputs)};\n{_STOP}{body}"
        + f"  initial begin\n{fills}\n  end\nendmodule\n"
    )


_MULTIPLIER = """
  initial begin
    if (REG_PIPELINE_CLK != "NONE") stop("pipeline register");
    if (REG_INPUTA_CLK != "NONE" && REG_INPUTA_CLK != "CLK0") stop("register clock");
    if (REG_INPUTB_CLK != "NONE" && REG_INPUTB_CLK != "CLK0") stop("register clock");
    if (REG_OUTPUT_CLK != "NONE" && REG_OUTPUT_CLK != "CLK0") stop("register clock");
  end
  localparam in_a = REG_INPUTA_CLK != "NONE", in_b = REG_INPUTB_CLK != "NONE";
  localparam out = REG_OUTPUT_CLK != "NONE";
  reg [17:0] reg_a = 0, reg_b = 0;
  reg [35:0] reg_p = 0;
  reg [1:0] signs, is_late = 0;
  // The sign inputs have registers of their own with the factors': right only for constants.
  always @(posedge CLK0) if (in_a | in_b | out) begin
    if (CE0 !== 1 || RST0 !== 0) stop("enable or reset in use");
    if (is_late && signs !== {SIGNEDA, SIGNEDB}) stop("sign of a registered factor changes");
    signs = {SIGNEDA, SIGNEDB}; is_late = 1;
    reg_p <= p[35:0]; reg_a <= {A}; reg_b <= {B};
  end
  always @(SOURCEA or SOURCEB) if (SOURCEA === 1 || SOURCEB === 1) stop("shift input in use");
  wire [17:0] fa = in_a ? reg_a : {A}, fb = in_b ? reg_b : {B};
  wire signed [18:0] a = {SIGNEDA & fa[17], fa};
  wire signed [18:0] b = {SIGNEDB & fb[17], fb};
  wire signed [37:0] p = a * b;
  assign {P} = out ? reg_p : p[35:0];
"""


def _multiplier() -> str:
    inputs = [*_bits("A", 18), *_bits("B", 18), *_bits("C", 18)]
    inputs += ["SIGNEDA", "SIGNEDB", "SOURCEA", "SOURCEB", *_bits("SRIA", 18), *_bits("SRIB", 18)]
    inputs += [f"{x}{k}" for x in ("CLK", "CE", "RST") for k in range(4)]
    outputs = [*_bits("P", 36), "SIGNEDP"]
    outputs += [f"{x}{k}" for x in ("SROA", "SROB", "ROA", "ROB", "ROC") for k in range(18)]
    registers = ("INPUTA", "INPUTB", "INPUTC", "PIPELINE", "OUTPUT")
    parameters = [(f"REG_{r}_CLK", '"NONE"') for r in registers]
    others = [f"REG_{r}_{x}" for r in registers for x in ("CE", "RST")]
    others += [*(f"CLK{k}_DIV" for k in range(4)), "HIGHSPEED_CLK", "GSR", "CAS_MATCH_REG"]
    others += ["SOURCEB_MODE", "MULT_BYPASS", "RESETMODE"]
    parameters += [(name, '""') for name in others]
    body = _MULTIPLIER
    for name, count in (("A", 18), ("B", 18), ("P", 36)):
        body = body.replace(f"{{{name}}}", f"{{{', '.join(reversed(_bits(name, count)))}}}")
    return (
        f"module MULT18X18D({', '.join([*inputs, *outputs])});\n"
        + "".join(f"  parameter {name} = {value};\n" for name, value in parameters)
        + f"  input {', '.join(inputs)};\n  output {', '.join(outputs)};\n{_STOP}{body}endmodule\n"
    )


DP16KD = _block_ram()
MULT18X18D = _multiplier()
