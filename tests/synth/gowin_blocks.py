"""Gowin's block RAMs and multipliers in Verilog, as far as our netlists use them.

yosys has black boxes for them. These follow Gowin's UG285 (BSRAM: address bits, byte enables in the
lowest ones, write-through) and UG287 (DSP); another width or mode ends the simulation.
"""

__all__ = ["models"]

_SLICES = 64  # INIT_RAM_00 ... INIT_RAM_3F

_COMMON = """
  parameter BLK_SEL_0 = 3'b000, BLK_SEL_1 = 3'b000, RESET_MODE = "SYNC";
{parameters}
  localparam [{all}:0] CONTENTS = {{{contents}}};
  reg [{bits}:0] mem [0:{last}];
  integer k;
  initial for (k = 0; k <= {last}; k = k + 1) mem[k] = CONTENTS[{width} * k +: {width}];
"""

# Two ports, each reads or writes; what is written is read as well (WRITE_MODE 1).
_DUAL = """
module {name} (CLKA, CEA, CLKB, CEB, OCEA, OCEB, RESETA, RESETB, WREA, WREB, ADA, ADB, BLKSELA,
               BLKSELB, DIA, DIB, DOA, DOB);
  input CLKA, CEA, CLKB, CEB, OCEA, OCEB, RESETA, RESETB, WREA, WREB;
  input [13:0] ADA, ADB;
  input [2:0] BLKSELA, BLKSELB;
  input [{port}:0] DIA, DIB;
  output reg [{port}:0] DOA = 0, DOB = 0;
  parameter READ_MODE0 = 0, READ_MODE1 = 0, WRITE_MODE0 = 0, WRITE_MODE1 = 0;
  parameter BIT_WIDTH_0 = 16, BIT_WIDTH_1 = 16;
  initial if (BIT_WIDTH_0 != {width} || BIT_WIDTH_1 != {width} || READ_MODE0 != 0
              || READ_MODE1 != 0 || WRITE_MODE0 != 1 || WRITE_MODE1 != 1)
    $fatal(1, "{name} in a mode that is not modelled");
{common}
  always @(posedge CLKA) if (CEA && BLKSELA == BLK_SEL_0) begin
    if (WREA) mem[ADA[13:{low}]] <= DIA[{bits}:0];
    DOA <= WREA ? DIA[{bits}:0] : mem[ADA[13:{low}]];
  end
  always @(posedge CLKB) if (CEB && BLKSELB == BLK_SEL_1) begin
    if (WREB) mem[ADB[13:{low}]] <= DIB[{bits}:0];
    DOB <= WREB ? DIB[{bits}:0] : mem[ADB[13:{low}]];
  end
endmodule
"""

# One port writes, by byte enables in the lowest address bits, the other reads.
_SIMPLE = """
module SDPX9B (CLKA, CEA, CLKB, CEB, OCE, RESETA, RESETB, ADA, ADB, BLKSELA, BLKSELB, DI, DO);
  input CLKA, CEA, CLKB, CEB, OCE, RESETA, RESETB;
  input [13:0] ADA, ADB;
  input [2:0] BLKSELA, BLKSELB;
  input [35:0] DI;
  output reg [35:0] DO = 0;
  parameter READ_MODE = 0, BIT_WIDTH_0 = 32, BIT_WIDTH_1 = 32;
  initial if (BIT_WIDTH_0 != 36 || BIT_WIDTH_1 != 36 || READ_MODE != 0)
    $fatal(1, "SDPX9B in a mode that is not modelled");
{common}
  always @(posedge CLKA) if (CEA && BLKSELA == BLK_SEL_0) begin
    if (ADA[0]) mem[{{ADA[13:5], 2'd0}}] <= DI[8:0];
    if (ADA[1]) mem[{{ADA[13:5], 2'd1}}] <= DI[17:9];
    if (ADA[2]) mem[{{ADA[13:5], 2'd2}}] <= DI[26:18];
    if (ADA[3]) mem[{{ADA[13:5], 2'd3}}] <= DI[35:27];
  end
  always @(posedge CLKB) if (CEB && BLKSELB == BLK_SEL_1)
    DO <= {{mem[{{ADB[13:5], 2'd3}}], mem[{{ADB[13:5], 2'd2}}], mem[{{ADB[13:5], 2'd1}}],
           mem[{{ADB[13:5], 2'd0}}]}};
endmodule
"""

# Without registers: yosys sets none.
_MULTIPLIER = """
module MULT{w}X{w} (A, SIA, B, SIB, ASIGN, BSIGN, ASEL, BSEL, CE, CLK, RESET, DOUT, SOA, SOB);
  input [{top}:0] A, SIA, B, SIB;
  input ASIGN, BSIGN, ASEL, BSEL, CE, CLK, RESET;
  output [{out}:0] DOUT;
  output [{top}:0] SOA, SOB;
  parameter AREG = 1'b0, BREG = 1'b0, OUT_REG = 1'b0, PIPE_REG = 1'b0;
  initial if (AREG || BREG || OUT_REG || PIPE_REG)
    $fatal(1, "MULT{w}X{w} in a mode that is not modelled");
  wire signed [{w}:0] a = {{ASIGN & A[{top}], A}};
  wire signed [{w}:0] b = {{BSIGN & B[{top}], B}};
  wire signed [{wide}:0] product = a * b;
  assign DOUT = product[{out}:0];
endmodule
"""


def _common(width: int, words: int) -> str:
    """Contents of a memory of 2^14 (or 9 / 8 of that) bits, ``words`` of ``width`` a slice."""
    top = words * width - 1
    names = [f"INIT_RAM_{k:02X}" for k in range(_SLICES)]
    return _COMMON.format(
        parameters="\n".join(f"  parameter [{top}:0] {n} = {top + 1}'b0;" for n in names),
        contents=", ".join(reversed(names)), all=_SLICES * words * width - 1,
        bits=width - 1, width=width, last=_SLICES * words - 1,
    )  # fmt: skip


def models() -> str:
    """The modules DPB (4 bits wide), DPX9B (9), SDPX9B (36), MULT9X9 and MULT18X18."""
    return "".join((
        _DUAL.format(name="DPB", port=15, width=4, bits=3, low=2, common=_common(4, 64)),
        _DUAL.format(name="DPX9B", port=17, width=9, bits=8, low=3, common=_common(9, 32)),
        _SIMPLE.format(common=_common(9, 32)),
        *(_MULTIPLIER.format(w=w, top=w - 1, out=2 * w - 1, wide=2 * w + 1) for w in (9, 18)),
    ))  # fmt: skip
