"""Verilog out: plain, small and the same text every time.

Amaranth writes one module per *instance*; a row of equal components would be repeated as often as
it is used. Here equal modules are merged in the RTLIL text before yosys turns it into Verilog, and
zeroed memories are cleared by a loop instead of one line a word.
"""

import re

from amaranth.back import rtlil
from amaranth.back.verilog import _convert_rtlil_text

__all__ = ["drop_zero_contents", "to_verilog"]

_MODULE = re.compile(r"^module \\(\S+)$", re.M)
_CELL = re.compile(r"^(  cell )\\(\S+)( )", re.M)
# A port that no signal of the module names is called after net numbers of the whole design.
_ANONYMOUS = re.compile(r"\\port\$\d+\$\d+")
_PORT = re.compile(
    r"^(?:  attribute [^\n]*\n)*  wire [^\n]*?((?:input|output|inout) \d+) [^\n]*(\\\S+)\n", re.M)
_START = re.compile(r"^(?:attribute [^\n]*\n)*module ", re.M)
_MEMINIT = re.compile(r"^  cell \$meminit_v2 .*?^  end\n", re.M | re.S)
_ZEROS = re.compile(r"connect \\DATA \d+'0+\n")
# All attributes but those that choose a memory's kind.
_ATTRIBUTE = re.compile(r"^ *\(\* (?!ram_style ).*? \*\)\n", re.M)
_MEMORY = re.compile(r"^  reg (?:\[\d+:0\] )?(\S+) \[(\d+):0\];\n", re.M)


def to_verilog(component, name, *, platform=None):
    """Verilog-2001 text of a component, one module per distinct component.

    Parameters
    ----------
    component : :class:`amaranth.lib.wiring.Component`
        What to convert. Ports are its members (``path__member`` for nested interfaces), ``clk``
        and ``rst`` (synchronous).
    name : :class:`str`
        Name of the top module, a plain Verilog identifier; further modules are called
        ``name__path__to__instance`` after their first instance.
    platform : object
        Passed on to ``elaborate``.

    Returns
    -------
    :class:`str`
        The same text for the same component, on every machine with the same tool versions. Of
        attributes only a memory's ``ram_style`` is kept.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"Verilog: {name!r} is no plain identifier; "
                         f"use letters, digits and underscores for the top module")
    text = rtlil.convert(component, name=name, platform=platform, emit_src=False)
    merged = _merge(drop_zero_contents(text))
    verilog = _ATTRIBUTE.sub("", _convert_rtlil_text(merged, strip_internal_attrs=True))
    # The banner names the build of the converter: two machines would differ in it alone.
    parts = re.split(r"(?<=endmodule\n)", verilog[verilog.index("module "):])
    return "".join(_clear_memories(_drop_empty_wires(part)) for part in parts)


def drop_zero_contents(text):
    """RTLIL without the zeros of memories: a line a word in Verilog."""
    return _MEMINIT.sub(lambda cell: "" if _ZEROS.search(cell[0]) else cell[0], text)


def _merge(text):
    """RTLIL text in which equal modules, submodules included, are kept once."""
    starts = [match.start() for match in _START.finditer(text)]
    prelude, ends = text[:starts[0]], [*starts[1:], len(text)]
    kept_name = {}  # module -> module that stands for it
    kept_ports = {}  # module -> {anonymous port: its name in the module that stands for it}
    by_body = {}
    bodies = []
    # Parents come before their children, so the last module is a leaf.
    for start, end in reversed(list(zip(starts, ends, strict=True))):
        body = text[start:end]
        name = _MODULE.search(body)[1]
        body, ports = _local_port_names(_with_merged_cells(body, kept_name, kept_ports))
        key = _key(body)
        if key in by_body:
            index = by_body[key]
        else:
            index = by_body[key] = len(bodies)
            bodies.append([name, body])
        # The first instance in reading order gives the name: the last one met here.
        bodies[index][0] = name
        kept_name[name] = index
        kept_ports[name] = ports
    names = [name.replace(".", "__") for name, _ in bodies]
    if len(set(names)) != len(names):
        raise ValueError("Verilog: two instance paths give one module name; "
                         "rename a submodule so that no name holds two underscores in a row")

    def named(body, index):
        body = _MODULE.sub(lambda _: f"module \\{names[index]}", body)
        return re.sub(r"^(  cell )\\@(\d+)( )", lambda c: f"{c[1]}\\{names[int(c[2])]}{c[3]}", body,
                      flags=re.M)

    return prelude + "".join(named(body, k) for k, (_, body) in reversed(list(enumerate(bodies))))


def _with_merged_cells(body, kept_name, kept_ports):
    """Cells of merged modules as ``\\@index``, their anonymous ports renamed as in the module."""
    parts = re.split(r"(^  cell .*?^  end\n)", body, flags=re.M | re.S)
    for k in range(1, len(parts), 2):
        cell = _CELL.match(parts[k])
        if not cell or cell[2] not in kept_name:
            continue
        lines = _CELL.sub(lambda c: f"{c[1]}\\@{kept_name[c[2]]}{c[3]}", parts[k])
        for anonymous, port in kept_ports[cell[2]].items():
            lines = lines.replace(f"    connect {anonymous} ", f"    connect {port} ")
        parts[k] = lines
    return "".join(parts)


def _local_port_names(body):
    """Anonymous ports numbered in the order of their use: the same in equal modules."""
    declared = [port[2] for port in _PORT.finditer(body) if _ANONYMOUS.fullmatch(port[2])]
    used = _ANONYMOUS.findall(_PORT.sub("", body))
    order = [port for port in dict.fromkeys(used + declared) if port in declared]
    ports = {port: f"\\anonymous_port{k}" for k, port in enumerate(order)}
    return _ANONYMOUS.sub(lambda port: ports.get(port[0], port[0]), body), ports


def _key(body):
    """What makes two modules equal: their text but for the name and the order of ports.

    Amaranth orders ports by net number, which depends on what the rest of the design looks like.
    """
    ports = sorted(port[0].replace(port[1], port[1].split()[0]) for port in _PORT.finditer(body))
    return _MODULE.sub("module", _PORT.sub("", body)), tuple(ports)


def _drop_empty_wires(module):
    """Signals without bits would be declared ``[-1:0]``, which is two bits in Verilog."""
    for name in re.findall(r"^  wire \[-1:0\] (\S+) ?;$", module, re.M):
        module = re.sub(rf"^  wire \[-1:0\] {re.escape(name)} ?;\n", "", module, flags=re.M)
        if re.search(rf"(?<![\w$\\]){re.escape(name)}(?![\w$])", module):
            raise ValueError(f"Verilog: signal {name} has no bits but is used in "
                             f"{module[:module.index('(')]}; leave ports of width 0 out")
    return module


def _clear_memories(module):
    """Give memories without contents zeros, by a loop: simulators would start with x."""
    count = 0

    def loop(declaration):
        nonlocal count
        memory, last = declaration[1], declaration[2]
        if re.search(rf"^    {re.escape(memory)} ?\[0\] = ", module, re.M):
            return declaration[0]
        index = f"clear{count}"
        count += 1
        return (f"{declaration[0]}  integer {index};\n"
                f"  initial for ({index} = 0; {index} <= {last}; {index} = {index} + 1) "
                f"{memory} [{index}] = 0;\n")

    return _MEMORY.sub(loop, module)
