"""Renders ``docs/isa.md`` from the definition in :mod:`trivet.hdl.isa`.

    python -m trivet.hdl.isa_doc > docs/isa.md
"""

from __future__ import annotations

import inspect

from . import isa

__all__ = ["render"]


def render() -> str:
    """The page as Markdown."""
    lines = [
        "# The instruction set",
        "",
        "Rendered from `hdl/isa.py` by `python -m trivet.hdl.isa_doc`; a test holds the two "
        "together.",
        "",
        f"Version {isa.VERSION}. An instruction is one layer, {isa.INSTRUCTION_BYTES} bytes, "
        "little-endian; fields from the least significant bit up.",
        "",
        inspect.cleandoc(isa.Op.__doc__ or ""),
        "",
        "## Memory layouts",
        "",
        inspect.cleandoc(isa.Instruction.__doc__ or ""),
        "",
        inspect.cleandoc(isa.Program.__doc__ or ""),
        "",
        "## Fields",
        "",
        "| bits | field | width | meaning |",
        "|---|---|---|---|",
    ]
    at = 0
    for field in isa.FIELDS:
        width = f"{field.bits}, signed" if field.signed else str(field.bits)
        lines.append(f"| {at}..{at + field.bits - 1} | `{field.name}` | {width} | {field.doc} |")
        at += field.bits
    lines += [
        "",
        "## Cycles",
        "",
        inspect.cleandoc(isa.predicted_cycles.__doc__ or ""),
        "Utilisation is multiplications that the layer needs, over `lanes * simd` times the "
        "cycles.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(render(), end="")
