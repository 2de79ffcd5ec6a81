"""A pass over yosys' JSON netlist: flip-flops move into block RAMs and multipliers of an ECP5.

yosys maps memories and products to ``DP16KD`` and ``MULT18X18D`` and leaves their registers
outside, as flip-flops. A block RAM without its output register has 5.6 ns from clock to output,
with it 0.97 ns; the registers of a multiplier save a route of up to 36 bits each way.

What moves, and when it does not:

- the output register of a block RAM's read port: all used bits of the port go to one plain
  flip-flop each and nowhere else, on the port's clock; the port is always enabled, never reset
- the output register of a multiplier: the same for its product
- the input registers of a multiplier: all bits of a factor come from plain flip-flops (or are 0);
  those that somebody else reads too stay where they are, beside the copy inside the multiplier

*Plain* is: rising edge, no enable, no reset, starts as 0 (as the registers inside do), not marked
``keep``. Signedness and operand sources must be constant, since they have registers of their own.
Anything else is left alone and counted with its reason.

Lattice FPGA-TN-02204 (ECP5 memory usage guide) and FPGA-TN-02205 (sysDSP usage guide).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Absorbed", "absorb"]

Bit = int | str  # a net, or one of "0", "1", "x", "z"
Use = tuple[str, str]  # cell ("" for a port of the module), port
_FF_PORTS = frozenset({"CLK", "DI", "Q", "CE", "LSR"})
# Read port of a block RAM: the letters of its data, and that of its clock, enable and reset. The
# port of 36 bits is B, with the outputs of both; Lattice's cell for it has one register mode.
_RAM_PORTS = (("A", "A"), ("B", "B"))
_WIDE_PORTS = (("AB", "B"),)
_WIDE = 36
_FACTORS = (("A", "REG_INPUTA_CLK"), ("B", "REG_INPUTB_CLK"))
_STEADY = ("SIGNEDA", "SIGNEDB", "SOURCEA", "SOURCEB")


@dataclass
class Absorbed:
    """What the pass did: registers moved, flip-flops gone, and why others were left alone."""

    ram_outputs: int = 0
    multiplier_inputs: int = 0
    multiplier_outputs: int = 0
    flip_flops_removed: int = 0
    left_alone: Counter[str] = field(default_factory=Counter)


class _Refused(Exception):
    """A register stays where it is; the text says why."""


def absorb(netlist: dict[str, Any], top: str) -> Absorbed:
    """Move registers into the block RAMs and multipliers of module ``top``, in place.

    Parameters
    ----------
    netlist
        What ``write_json`` of yosys wrote after ``synth_ecp5``, as read by :mod:`json`.
    top
        Name of the flat module.

    Raises
    ------
    ValueError
        There is no such module.
    """
    if top not in netlist.get("modules", {}):
        names = ", ".join(sorted(netlist.get("modules", {}))[:5])
        raise ValueError(f"netlist: has no module {top!r}, it has {names or 'none'}")
    return _Pass(netlist["modules"][top]).run()


class _Pass:
    """One module with an index of who drives and who reads each net, kept up to date."""

    def __init__(self, module: dict[str, Any]) -> None:
        self.cells: dict[str, dict[str, Any]] = module["cells"]
        self.readers: dict[Bit, set[Use]] = {}
        self.driver: dict[Bit, Use] = {}
        self.done = Absorbed()
        for name, cell in self.cells.items():
            for port, bits in cell["connections"].items():
                for bit in _nets(bits):
                    if cell["port_directions"].get(port) != "input":
                        self.driver[bit] = (name, port)
                    if cell["port_directions"].get(port) != "output":
                        self.readers.setdefault(bit, set()).add((name, port))
        for name, port in module["ports"].items():
            if port["direction"] != "input":
                for bit in _nets(port["bits"]):
                    self.readers.setdefault(bit, set()).add(("", name))

    def run(self) -> Absorbed:
        # Outputs first: a flip-flop between two hard blocks goes into the first one, and what the
        # second one sees is then no flip-flop any more.
        for name in self._of_type("DP16KD"):
            is_wide = _number(self.cells[name], "DATA_WIDTH_B") == _WIDE
            for halves, port in _WIDE_PORTS if is_wide else _RAM_PORTS:
                self._try(f"block RAM {port}", self._ram_output, name, halves, port)
        for name in self._of_type("MULT18X18D"):
            self._try("multiplier output", self._product, name)
        for name in self._of_type("MULT18X18D"):
            for factor, parameter in _FACTORS:
                self._try(f"multiplier input {factor}", self._factor, name, factor, parameter)
        return self.done

    def _of_type(self, kind: str) -> list[str]:
        return [name for name, cell in self.cells.items() if cell["type"] == kind]

    def _try(self, what: str, step: Any, *arguments: Any) -> None:
        try:
            step(*arguments)
        except _Refused as e:
            self.done.left_alone[f"{what}: {e}"] += 1

    def _ram_output(self, name: str, halves: str, port: str) -> None:
        cell = self.cells[name]
        bits = [found for half in halves for found in self._read_bits(name, f"DO{half}")]
        if not bits:
            return
        parameters = cell["parameters"]
        if any(parameters.get(f"REGMODE_{h}", "NOREG").strip() != "NOREG" for h in halves):
            raise _Refused("it has a register already")
        if parameters.get(f"CLK{port}MUX", f"CLK{port}").strip() != f"CLK{port}":
            raise _Refused("its clock is inverted")
        if _constant(cell, f"CE{port}", "1") != "1":
            raise _Refused("it is not always enabled")
        if any(_constant(cell, f"RST{half}", "0") != "0" for half in halves):
            raise _Refused("it has a reset")
        found, own = self._followers(bits)
        if own != _bit(cell, f"CLK{port}"):
            raise _Refused("the flip-flops have another clock")
        self._replace_outputs(name, found)
        for half in halves:
            parameters[f"REGMODE_{half}"] = "OUTREG"
            _tie(cell, f"OCE{half}", "1")
        self.done.ram_outputs += 1

    def _product(self, name: str) -> None:
        cell = self.cells[name]
        bits = self._read_bits(name, "P")
        if not bits:
            return
        _check_multiplier(cell)
        if cell["parameters"].get("REG_OUTPUT_CLK", "NONE").strip() != "NONE":
            raise _Refused("it has a register already")
        found, clock = self._followers(bits)
        self._clock_multiplier(name, clock)
        self._replace_outputs(name, found)
        cell["parameters"]["REG_OUTPUT_CLK"] = "CLK0"
        self.done.multiplier_outputs += 1

    def _factor(self, name: str, factor: str, parameter: str) -> None:
        cell = self.cells[name]
        ports = [p for p in _numbered(cell, factor) if cell["connections"][p]]
        if not any(isinstance(cell["connections"][p][0], int) for p in ports):
            return
        _check_multiplier(cell)
        if cell["parameters"].get(parameter, "NONE").strip() != "NONE":
            raise _Refused("it has a register already")
        found: list[tuple[str, str]] = []
        clock: Bit | None = None
        for port in ports:
            bit = cell["connections"][port][0]
            if bit == "1":  # the register would show it one cycle late, after power-up
                raise _Refused("a bit is constant 1")
            if isinstance(bit, str):
                continue
            source, output = self.driver.get(bit, ("", ""))
            if output != "Q":
                raise _Refused("a bit comes from no flip-flop")
            own = self._plain_clock(source)
            if clock not in (None, own):
                raise _Refused("the flip-flops have several clocks")
            clock = own
            found.append((port, source))
        assert clock is not None
        self._clock_multiplier(name, clock)
        for port, source in found:
            self._move(name, port, _bit(self.cells[source], "DI"))
        for source in dict.fromkeys(source for _, source in found):
            if not self.readers.get(_bit(self.cells[source], "Q")):
                self._remove(source)
        cell["parameters"][parameter] = "CLK0"
        self.done.multiplier_inputs += 1

    def _read_bits(self, name: str, prefix: str) -> list[tuple[str, Bit]]:
        """Output ports of the group whose bit somebody reads."""
        cell = self.cells[name]
        found: list[tuple[str, Bit]] = []
        for port in _numbered(cell, prefix):
            for bit in _nets(cell["connections"][port]):
                if self.readers.get(bit):
                    found.append((port, bit))
        return found

    def _followers(self, bits: list[tuple[str, Bit]]) -> tuple[list[tuple[str, str]], Bit]:
        """The flip-flop behind each bit, and their clock."""
        found = []
        clock: Bit | None = None
        for port, bit in bits:
            uses = self.readers[bit]
            if len(uses) != 1:
                raise _Refused("a bit is read elsewhere too")
            name, used = next(iter(uses))
            if used != "DI" or not name:
                raise _Refused("a bit goes to no flip-flop")
            own = self._plain_clock(name)
            if clock not in (None, own):
                raise _Refused("the flip-flops have several clocks")
            clock = own
            found.append((port, name))
        assert clock is not None
        return found, clock

    def _plain_clock(self, name: str) -> Bit:
        """The clock of a plain flip-flop; _Refused when it is not plain."""
        cell = self.cells[name]
        if cell["type"] != "TRELLIS_FF" or not set(cell["connections"]) <= _FF_PORTS:
            raise _Refused("a bit meets another cell")
        parameters = cell["parameters"]
        if parameters.get("CLKMUX", "CLK").strip() != "CLK":
            raise _Refused("a flip-flop has the other edge")
        if parameters.get("CEMUX", "1").strip() != "1" and not (
            parameters["CEMUX"].strip() == "CE" and _constant(cell, "CE", "1") == "1"
        ):
            raise _Refused("a flip-flop has an enable")
        if parameters.get("LSRMUX", "LSR").strip() != "LSR" or _constant(cell, "LSR", "0") != "0":
            raise _Refused("a flip-flop has a reset")
        if parameters.get("GSR", "DISABLED").strip() != "DISABLED":
            raise _Refused("a flip-flop has a reset")
        if parameters.get("REGSET", "RESET").strip() != "RESET":
            raise _Refused("a flip-flop starts as 1")
        if set(str(cell.get("attributes", {}).get("keep", "0"))) != {"0"}:
            raise _Refused("a flip-flop is marked keep")
        return _bit(cell, "CLK")

    def _clock_multiplier(self, name: str, clock: Bit) -> None:
        """Give a multiplier its CLK0; _Refused when its other registers have another one."""
        cell = self.cells[name]
        if any(
            cell["parameters"].get(f"REG_{r}_CLK", "NONE").strip() not in ("NONE", "CLK0")
            for r in ("INPUTA", "INPUTB", "PIPELINE", "OUTPUT")
        ) or _constant(cell, "CLK0", "0") not in ("0", "x", clock):
            raise _Refused("its registers have another clock")
        cell["port_directions"]["CLK0"] = "input"
        cell["connections"]["CLK0"] = ["0"]
        self._move(name, "CLK0", clock)
        _tie(cell, "CE0", "1")
        _tie(cell, "RST0", "0")

    def _replace_outputs(self, name: str, found: list[tuple[str, str]]) -> None:
        """Let the hard block drive what the flip-flops drove, and remove those."""
        for port, source in found:
            bit = _bit(self.cells[source], "Q")
            self._remove(source)
            self.cells[name]["connections"][port] = [bit]
            self.driver[bit] = (name, port)

    def _move(self, name: str, port: str, bit: Bit) -> None:
        """Connect an input to another net."""
        connections = self.cells[name]["connections"]
        for old in _nets(connections.get(port, [])):
            self.readers[old].discard((name, port))
        connections[port] = [bit]
        if isinstance(bit, int):
            self.readers.setdefault(bit, set()).add((name, port))

    def _remove(self, name: str) -> None:
        cell = self.cells.pop(name)
        for port, bits in cell["connections"].items():
            for bit in _nets(bits):
                self.readers.get(bit, set()).discard((name, port))
                if self.driver.get(bit) == (name, port):
                    del self.driver[bit]
        self.done.flip_flops_removed += 1


def _check_multiplier(cell: dict[str, Any]) -> None:
    for port in _STEADY:
        if not isinstance(_constant(cell, port, "0"), str):
            raise _Refused("its signs or sources are not constant")
    if cell["parameters"].get("REG_PIPELINE_CLK", "NONE").strip() != "NONE":
        raise _Refused("it has a register already")


def _number(cell: dict[str, Any], parameter: str) -> int:
    """A parameter that yosys writes as a binary number; 0 where there is none."""
    return int(str(cell["parameters"].get(parameter, "0")), 2)


def _nets(bits: list[Bit]) -> Iterator[int]:
    return (bit for bit in bits if isinstance(bit, int))


def _numbered(cell: dict[str, Any], prefix: str) -> list[str]:
    """Ports ``prefix`` + number, in order."""
    cut = len(prefix)
    found = [p for p in cell["connections"] if p.startswith(prefix) and p[cut:].isdigit()]
    return sorted(found, key=lambda p: int(p[cut:]))


def _constant(cell: dict[str, Any], port: str, default: str) -> Bit:
    """The bit at a port; ``default`` where it is not connected."""
    bits = cell["connections"].get(port)
    bit: Bit = bits[0] if bits else default
    return bit


def _bit(cell: dict[str, Any], port: str) -> Bit:
    return _constant(cell, port, "x")


def _tie(cell: dict[str, Any], port: str, value: str) -> None:
    cell["port_directions"][port] = "input"
    cell["connections"][port] = [value]
