"""The rig: devices and links at hand, from a TOML file or the default.

Format: INTERFACES, "rig.toml". Every mistake in a file is one :class:`CompileError` that names the
table, the key and the way out.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, get_args

from trivet import boards
from trivet.hdl.config import EngineConfig

from .cost import SOURCES, Source
from .errors import CompileError

__all__ = ["Link", "PlannerOptions", "Power", "Rig", "RigDevice", "default_rig", "read_rig"]

Kind = Literal["cpu", "gpu", "fpga", "null"]
Place = Literal["auto", "fpga"]
Objective = Literal["throughput", "latency", "energy", "batch"]
Execution = Literal["sync", "async"]
DEVICES = "trivet.devices"  # entry points; the runtime's registry makes its devices from them
RULES = ("communication_share_max", "memory_max", "budget_max", "balance_min", "link_load_max")


@dataclass(frozen=True)
class Power:
    """Watts while busy and while idle, and where the figures come from."""

    busy: float
    idle: float
    source: Source


@dataclass(frozen=True)
class RigDevice:
    """One device. ``engine`` and ``clock_hz`` are the board's unless the rig says more."""

    name: str
    kind: Kind
    attach: str
    threads: int | None = None
    board: str | None = None
    clock_hz: float | None = None
    clock_status: str = ""
    engine: EngineConfig | None = None
    memory_bytes: int | None = None
    power: Power | None = None


@dataclass(frozen=True)
class Link:
    """A link between two devices; ``shared`` names a capacity that several links use together."""

    ends: tuple[str, str]
    bandwidth_bytes_per_second: float
    latency_seconds: float
    source: Source
    detail: str
    shared: str | None = None

    @property
    def name(self) -> str:
        return f"{self.ends[0]}-{self.ends[1]}"


@dataclass(frozen=True)
class PlannerOptions:
    """How to plan.

    ``batch``: items of the objective "batch". ``slack``: the cheapest plan of those whose pace is
    within (1 + slack) of the best. ``replicas``, ``shards``: the most copies of a stage, and parts
    of a layer, on equal boards. ``execution``: whether results keep the order of requests.
    """

    objective: Objective = "throughput"
    place: Place = "auto"
    overlap: bool = False
    slack: float = 0.0
    batch: int = 1
    replicas: int = 1
    shards: int = 1
    execution: Execution = "sync"


@dataclass(frozen=True)
class Rig:
    """Devices in order, links, pins (pattern of node names -> device), options and rules."""

    devices: tuple[RigDevice, ...]
    links: tuple[Link, ...]
    pins: tuple[tuple[str, str], ...] = ()
    planner: PlannerOptions = PlannerOptions()
    rules: dict[str, float] = field(default_factory=dict)

    def device(self, name: str) -> RigDevice:
        for device in self.devices:
            if device.name == name:
                return device
        names = ", ".join(d.name for d in self.devices)
        raise CompileError(f"rig: device {name!r} is not there; it has {names}")

    @property
    def host(self) -> RigDevice:
        """The first CPU: model inputs come from it, model outputs go to it."""
        return next(d for d in self.devices if d.kind == "cpu")

    def link_of(self, name: str) -> Link | None:
        """The link between a device and the host (or any CPU), None when there is none."""
        cpus = {d.name for d in self.devices if d.kind == "cpu"}
        for link in self.links:
            if name in link.ends and cpus & (set(link.ends) - {name}):
                return link
        return None

    @property
    def sha256(self) -> str:
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def with_options(
        self,
        *,
        place: str | None = None,
        pins: Iterable[tuple[str, str]] = (),
        replicas: int | None = None,
    ) -> Rig:
        """The rig with the command line's choices; its pins come first and so win."""
        rig = self
        if place is not None:
            if place not in get_args(Place):
                raise CompileError(f"--place is {place!r}, must be one of auto, fpga")
            rig = replace(rig, planner=replace(rig.planner, place=place))  # type: ignore[arg-type]
        if replicas is not None:
            rig = replace(rig, planner=replace(rig.planner, replicas=replicas))
        extra = tuple(pins)
        chosen: dict[str, str] = {}
        for pattern, device in extra:
            rig.device(device)
            if chosen.setdefault(pattern, device) != device:
                raise CompileError(
                    f"--pin {pattern} is given as {chosen[pattern]} and as {device}; keep one"
                )
        return replace(rig, pins=extra + rig.pins) if extra else rig

    def pinned(self, nodes: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
        """Units' pins: ``nodes`` maps a unit to its node names; the first matching pattern wins.

        CompileError for a pattern that matches no node, or two devices for nodes of one unit.
        """
        everything = [n for names in nodes.values() for n in names]
        for pattern, _ in self.pins:
            if not fnmatch.filter(everything, pattern):
                close = ", ".join(everything[:5])
                raise CompileError(
                    f"pin {pattern!r}: no node has that name; the model's nodes begin with "
                    f"{close}; `trivet explain` lists them all"
                )
        found: dict[str, str] = {}
        for unit, names in nodes.items():
            wanted = {}
            for node in names:
                device = next(
                    (d for pattern, d in self.pins if fnmatch.fnmatchcase(node, pattern)), None
                )
                if device is not None:
                    wanted[node] = device
            if len(set(wanted.values())) > 1:
                pairs = ", ".join(f"{n} -> {d}" for n, d in wanted.items())
                raise CompileError(
                    f"pins: nodes that always fuse into one unit {unit!r} are pinned to different "
                    f"devices ({pairs}); pin them to one"
                )
            if wanted:
                found[unit] = next(iter(wanted.values()))
        return found


def default_rig(board: str = "ulx3s-85f") -> Rig:
    """``cpu0`` and one virtual board ``fpga0`` on the board's own link."""
    return _rig(
        {
            "version": 1,
            "devices": {
                "cpu0": {"kind": "cpu"},
                "fpga0": {"kind": "fpga", "board": board, "attach": "virtual"},
            },
        },
        "default rig",
    )


def read_rig(path: Path) -> Rig:
    """Read and check a rig file; CompileError is one line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "not UTF-8 text"
        raise CompileError(f"rig {path}: cannot be read ({reason}); check the path") from e
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise CompileError(f"rig {path}: not TOML: {e}") from e
    return _rig(values, f"rig {path}")


def _keys(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    known = tuple(known)
    for key in table:
        if key not in known:
            raise CompileError(f"{where}: unknown key {key!r}; known keys are {', '.join(known)}")


def _typed(
    table: Mapping[str, Any], key: str, kinds: tuple[type, ...], where: str, what: str
) -> Any:
    value = table.get(key)
    if value is None:
        raise CompileError(f"{where}: {key} is missing; give {what}")
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise CompileError(f"{where}: {key} is {value!r}, must be {what}")
    return value


def _number(table: Mapping[str, Any], key: str, where: str, *, above: float | None = None) -> float:
    value = float(_typed(table, key, (int, float), where, "a number"))
    if above is not None and not (above < value < float("inf")):
        raise CompileError(f"{where}: {key} is {value:g}, must be above {above:g} and finite")
    if above is None and not (0.0 <= value < float("inf")):
        raise CompileError(f"{where}: {key} is {value:g}, must be at least 0 and finite")
    return value


def _choice(
    table: Mapping[str, Any], key: str, options: Iterable[str], where: str, default: str
) -> str:
    value = table.get(key, default)
    options = tuple(options)
    if value not in options:
        raise CompileError(f"{where}: {key} is {value!r}, must be one of {', '.join(options)}")
    return str(value)


def _table(values: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    table = values.get(key, {})
    if not isinstance(table, dict):
        raise CompileError(f"{where}: {key} must be a table, [{key}]")
    return table


def _rig(values: Mapping[str, Any], where: str) -> Rig:
    _keys(values, ("version", "devices", "links", "pins", "planner", "rules"), where)
    if values.get("version") != 1:
        raise CompileError(f"{where}: version is {values.get('version')!r}, this release reads 1")
    devices = tuple(
        _device(name, entry, f"{where}, device {name!r}")
        for name, entry in _table(values, "devices", where).items()
    )
    names = [d.name for d in devices]
    if not any(d.kind == "cpu" for d in devices):
        raise CompileError(f"{where}: no device of kind cpu; one is needed as the host")
    raw_links = values.get("links", [])
    if not isinstance(raw_links, list):
        raise CompileError(f"{where}: links must be a list of tables, [[links]]")
    links = tuple(_link(e, names, f"{where}, link {k + 1}") for k, e in enumerate(raw_links))
    rig = Rig(
        devices,
        links,
        _pins(_table(values, "pins", where), names, where),
        _planner(_table(values, "planner", where), f"{where}, planner"),
        _rules(_table(values, "rules", where), f"{where}, rules"),
    )
    return _with_board_links(_with_power(rig, where), where)


def _with_power(rig: Rig, where: str) -> Rig:
    """The rig, if it says what its objective needs to know."""
    for device in rig.devices:
        if device.power is None and rig.planner.objective == "energy":
            raise CompileError(
                f"{where}, device {device.name!r}: power_w is missing, objective 'energy' needs "
                'it; give power_w = { busy = W, idle = W, source = "given" }'
            )
        if device.power is not None and device.power.idle > device.power.busy:
            raise CompileError(
                f"{where}, device {device.name!r}: power_w: idle {device.power.idle:g} W is above "
                f"busy {device.power.busy:g} W; exchange them"
            )
    return rig


def _with_board_links(rig: Rig, where: str) -> Rig:
    """Add the board's own host link for every FPGA that the file gives none."""
    links = list(rig.links)
    for device in rig.devices:
        if device.kind not in ("fpga", "gpu") or rig.link_of(device.name) is not None:
            continue
        if device.board is None:
            raise CompileError(
                f"{where}, device {device.name!r}: no link to a cpu; add [[links]] with "
                f'ends = ["{rig.host.name}", "{device.name}"]'
            )
        own = boards.get(device.board).link
        links.append(
            Link(
                (rig.host.name, device.name),
                own.bandwidth_bytes_per_second,
                own.latency_seconds,
                own.source,  # type: ignore[arg-type]
                f"board {device.board}: {own.detail}",
            )
        )
    return replace(rig, links=tuple(links))


def _device(name: str, entry: Any, where: str) -> RigDevice:
    if not isinstance(entry, dict):
        raise CompileError(f"{where}: must be a table, [devices.{name}]")
    known = ("kind", "attach", "threads", "board", "clock_hz", "engine", "memory_bytes", "power_w")
    _keys(entry, known, where)
    kind = _choice(entry, "kind", get_args(Kind), where, "")
    if kind in ("gpu", "null"):
        raise CompileError(
            f"{where}: kind {kind!r} is not planned for in this release; use cpu or fpga"
        )
    power = _power(entry["power_w"], f"{where}, power_w") if "power_w" in entry else None
    memory = (
        int(_number(entry, "memory_bytes", where, above=0)) if "memory_bytes" in entry else None
    )
    if kind == "cpu":
        for key in ("board", "clock_hz", "engine", "attach"):
            if key in entry:
                raise CompileError(f"{where}: {key} does not apply to a cpu; remove it")
        threads = (
            int(_typed(entry, "threads", (int,), where, "a number of threads"))
            if ("threads" in entry)
            else None
        )
        if threads is not None and threads < 1:
            raise CompileError(f"{where}: threads is {threads}, must be at least 1")
        return RigDevice(name, "cpu", "cpu", threads=threads, memory_bytes=memory, power=power)
    if "threads" in entry:
        raise CompileError(f"{where}: threads does not apply to an fpga; remove it")
    board_name = str(_typed(entry, "board", (str,), where, "the name of a board"))
    try:
        board = boards.get(board_name)
    except ValueError as e:
        raise CompileError(f"{where}: {e}") from e
    # A board names what it chose; parts of the engine that came later are as they are by default.
    engine = {**EngineConfig().to_dict(), **board.engine} if board.engine else {}
    engine.update(_table(entry, "engine", where))
    if not engine:
        raise CompileError(
            f"{where}: board {board_name!r} has no engine configuration yet; use ulx3s-85f"
        )
    try:
        config = EngineConfig.from_dict(engine)
    except ValueError as e:
        raise CompileError(f"{where}: {e}") from e
    clock = board.clock_hz
    status = board.clock_status
    if "clock_hz" in entry:
        clock, status = int(_number(entry, "clock_hz", where, above=0)), "given"
    if clock is None:
        raise CompileError(
            f"{where}: clock_hz is missing and board {board_name!r} has none planned"
        )
    attaches = sorted(point.name for point in entry_points(group=DEVICES))
    attach = _choice(entry, "attach", attaches, where, "virtual")
    return RigDevice(
        name,
        "fpga",
        attach,
        board=board_name,
        clock_hz=float(clock),
        clock_status=status,
        engine=config,
        memory_bytes=memory,
        power=power,
    )


def _power(entry: Any, where: str) -> Power:
    if not isinstance(entry, dict):
        raise CompileError(f"{where}: must be a table with busy, idle and source")
    _keys(entry, ("busy", "idle", "source"), where)
    source = _choice(entry, "source", SOURCES, where, "given")
    return Power(_number(entry, "busy", where), _number(entry, "idle", where), source)  # type: ignore[arg-type]


def _link(entry: Any, names: list[str], where: str) -> Link:
    if not isinstance(entry, dict):
        raise CompileError(f"{where}: must be a table, [[links]]")
    known = ("ends", "bandwidth_bytes_per_second", "latency_seconds", "shared", "source")
    _keys(entry, known, where)
    ends = _typed(entry, "ends", (list,), where, "two device names")
    if len(ends) != 2 or ends[0] == ends[1]:
        raise CompileError(f"{where}: ends is {ends!r}, must be two different device names")
    for end in ends:
        if end not in names:
            raise CompileError(
                f"{where}: leads to device {end!r}, which is not there; it has {', '.join(names)}"
            )
    shared = entry.get("shared")
    if shared is not None and not isinstance(shared, str):
        raise CompileError(f"{where}: shared is {shared!r}, must be a name")
    source = _choice(entry, "source", SOURCES, where, "given")
    return Link(
        (str(ends[0]), str(ends[1])),
        _number(entry, "bandwidth_bytes_per_second", where, above=0),
        _number(entry, "latency_seconds", where),
        source,  # type: ignore[arg-type]
        "rig file",
        shared,
    )


def _pins(table: Mapping[str, Any], names: list[str], where: str) -> tuple[tuple[str, str], ...]:
    for pattern, device in table.items():
        if device not in names:
            raise CompileError(
                f"{where}, pin {pattern!r}: device {device!r} is not there; "
                f"it has {', '.join(names)}"
            )
    return tuple((str(p), str(d)) for p, d in table.items())


def _planner(table: Mapping[str, Any], where: str) -> PlannerOptions:
    _keys(table, [f.name for f in fields(PlannerOptions)], where)
    objective = _choice(table, "objective", get_args(Objective), where, "throughput")
    overlap = table.get("overlap", False)
    if not isinstance(overlap, bool):
        raise CompileError(f"{where}: overlap is {overlap!r}, must be true or false")
    slack = _number(table, "slack", where) if "slack" in table else 0.0
    if slack and objective != "throughput":
        raise CompileError(
            f"{where}: slack {slack:g} is for objective 'throughput', not {objective!r}; drop it"
        )
    counts = {}
    for key in ("batch", "replicas", "shards"):
        counts[key] = int(_typed({key: table.get(key, 1)}, key, (int,), where, "a whole number"))
        if counts[key] < 1:
            raise CompileError(f"{where}: {key} is {counts[key]}, must be at least 1")
    place = _choice(table, "place", get_args(Place), where, "auto")
    execution = _choice(table, "execution", get_args(Execution), where, "sync")
    return PlannerOptions(
        objective,  # type: ignore[arg-type]
        place,  # type: ignore[arg-type]
        overlap,
        slack,
        execution=execution,  # type: ignore[arg-type]
        **counts,
    )


def _rules(table: Mapping[str, Any], where: str) -> dict[str, float]:
    _keys(table, RULES, where)
    return {name: _number(table, name, where) for name in table}
