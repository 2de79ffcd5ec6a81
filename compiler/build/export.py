"""Boards without an open place and route: Verilog, constraints and a Tcl script for the vendor."""

from __future__ import annotations

import zipfile
from pathlib import Path

from trivet.boards.board import Board, Toolchain

from .design import Design

__all__ = ["archive"]

_TCL = """\
# Vivado, batch mode: vivado -mode batch -source build.tcl
create_project -in_memory -part {part}
read_verilog top.v
read_xdc {constraints}
synth_design -top {top} -part {part}
# Registers that meet what has no clock here: pins, and the lock of the clock manager.
foreach cell [get_cells -quiet -hier -filter {{amaranth.vivado.false_path == "TRUE"}}] {{
    set_false_path -to $cell
}}
set async [get_cells -quiet -hier -filter {{amaranth.vivado.false_path_pre == "TRUE"}}]
foreach pin [get_pins -quiet -of $async -filter {{REF_PIN_NAME == PRE}}] {{
    set_false_path -to $pin
}}
opt_design
place_design
route_design
report_timing_summary -file timing.txt
report_utilization -file utilisation.txt
write_bitstream -force top.bit
"""


def archive(folder: Path, board: Board, toolchain: Toolchain, design: Design, suffix: str) -> str:
    """Pack ``top.v``, the constraints and ``build.tcl`` in ``folder``; the archive's name.

    The part is the packer's first argument, or the board's device.
    """
    part = toolchain.pack[0] if toolchain.pack else board.device
    tcl = _TCL.format(part=part, constraints=design.constraints[0], top=design.name)
    (folder / "build.tcl").write_text(tcl, encoding="utf-8")
    name = f"top.{suffix}"
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_STORED) as out:
        for member in sorted(("top.v", design.constraints[0], "build.tcl")):
            info = zipfile.ZipInfo(member, date_time=(1980, 1, 1, 0, 0, 0))
            out.writestr(info, (folder / member).read_bytes())
    return name
