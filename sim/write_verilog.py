"""Writes the virtual board's Verilog: ``python -m trivet.sim.write_verilog CONFIG KEY FILE``."""

import json
import sys
from pathlib import Path

from trivet.hdl.config import EngineConfig
from trivet.hdl.top import Top
from trivet.hdl.verilog import to_verilog

__all__ = ["main"]


def main() -> None:
    """``CONFIG``: configuration as JSON; ``KEY``: the build's hash, for HELLO; ``FILE``: output."""
    config, key, target = sys.argv[1:]
    parsed = EngineConfig.from_dict(json.loads(config))
    top = Top(parsed, bytes.fromhex(key), board="virtual")  # type: ignore[no-untyped-call]
    text: str = to_verilog(top, "top")  # type: ignore[no-untyped-call]
    Path(target).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
