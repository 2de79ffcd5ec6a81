"""A pass over yosys' JSON netlist: flip-flops that reach over the whole die get copies.

An address or an operand that all block RAMs or all lanes' multipliers take is one flip-flop after
synthesis, which merges equal ones. A net from it crosses the die, and placement pulls it towards
all its readers at once. Here such a flip-flop gets copies: one for each component that it drives
(:data:`PARTS` where those readers are many), which divide the readers as neighbours by name, that
is by lane or by piece of a memory. Copies hold what the first one holds in every cycle, so nothing
changes but the ways.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

__all__ = ["MANY_BLOCKS", "MANY_CELLS", "PARTS", "Replicated", "replicate"]

# Hard blocks, and cells of any kind, that one flip-flop may drive; and among how many flip-flops
# more are divided.
MANY_BLOCKS = 8
MANY_CELLS = 64
PARTS = 4
_HARD = frozenset({"DP16KD", "MULT18X18D", "TRELLIS_DPR16X4"})


@dataclass
class Replicated:
    """What the pass did: flip-flops that got copies, and the copies."""

    flip_flops: int = 0
    copies: int = 0


def replicate(netlist: dict[str, Any], top: str) -> Replicated:
    """Copy the far-reaching flip-flops of module ``top``, in place.

    Parameters
    ----------
    netlist
        As of :func:`trivet.compiler.build.netlist.absorb`, which must have run before: it takes
        flip-flops away.
    top
        Name of the flat module.
    """
    module = netlist["modules"][top]
    cells: dict[str, dict[str, Any]] = module["cells"]
    readers: dict[int, list[tuple[str, str]]] = {}
    for name, cell in cells.items():
        for port, bits in cell["connections"].items():
            if cell["port_directions"].get(port) == "input":
                for bit in bits:
                    if isinstance(bit, int):
                        readers.setdefault(bit, []).append((name, port))
    fresh = 1 + max(
        (bit for cell in cells.values() for bits in cell["connections"].values() for bit in bits
         if isinstance(bit, int)),
        default=1,
    )  # fmt: skip

    done = Replicated()
    for name, cell in list(cells.items()):
        if cell["type"] != "TRELLIS_FF" or _is_kept(cell):
            continue
        (bit,) = cell["connections"].get("Q") or [None]
        far = sorted({reader for reader, _ in readers.get(bit, ())}, key=_natural)
        if not _is_far(far, cells):
            continue
        parts = _divide(far, cells)
        done.flip_flops += 1
        for part, members in enumerate(parts[1:], 1):
            copy = {
                **cell,
                "attributes": dict(cell.get("attributes", {})),
                "parameters": dict(cell["parameters"]),
                "port_directions": dict(cell["port_directions"]),
                "connections": {**cell["connections"], "Q": [fresh]},
            }
            cells[f"{name}$copy{part}"] = copy
            for reader, port in readers[bit]:
                if reader in members:
                    connections = cells[reader]["connections"]
                    connections[port] = [fresh if b == bit else b for b in connections[port]]
            done.copies += 1
            fresh += 1
    return done


def _divide(readers: list[str], cells: dict[str, dict[str, Any]]) -> list[set[str]]:
    """The readers by component, large ones in parts, small ones together."""
    components: dict[str, list[str]] = {}
    for reader in readers:
        components.setdefault(reader.rsplit(".", 1)[0].split("[")[0], []).append(reader)
    parts: list[set[str]] = []
    rest: set[str] = set()
    for members in components.values():
        if _is_far(members, cells):
            size = -(-len(members) // PARTS)
            parts += [set(members[k : k + size]) for k in range(0, len(members), size)]
        else:
            rest |= set(members)
    return [rest, *parts] if rest else parts


def _is_far(readers: list[str], cells: dict[str, dict[str, Any]]) -> bool:
    blocks = sum(cells[reader]["type"] in _HARD for reader in readers)
    return blocks > MANY_BLOCKS or len(readers) > MANY_CELLS


def _is_kept(cell: dict[str, Any]) -> bool:
    return set(str(cell.get("attributes", {}).get("keep", "0"))) != {"0"}


def _natural(name: str) -> list[Any]:
    """Numbers in a name compare as numbers."""
    return [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", name)]
