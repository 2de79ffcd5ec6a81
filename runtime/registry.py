"""Finds devices by the name of what stands behind them: "cpu", "model", "uart", ...

Packages offer devices through the entry-point group ``trivet.devices``, so the runtime imports
none of them by itself, and a machine without the simulator still runs bundles.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Final

from .device import Device, DeviceError

__all__ = ["GROUP", "Factory", "create", "names", "register"]

GROUP: Final = "trivet.devices"
Factory = Callable[[str, dict[str, str]], Device]

_registered: dict[str, Factory] = {}


def register(attach: str, factory: Factory) -> None:
    """Offer a device in this process, before those of installed packages (notebooks, tests)."""
    _registered[attach] = factory


def names() -> list[str]:
    """Every known attach name, sorted; that a name is known does not say that it imports."""
    return sorted({*_registered, *(point.name for point in entry_points(group=GROUP))})


def create(attach: str, name: str, options: dict[str, str]) -> Device:
    """A new device of the rig's ``name``.

    :class:`DeviceError` for an unknown ``attach``, or when its package cannot be imported.
    """
    factory = _registered.get(attach)
    if factory is None:
        points = tuple(entry_points(group=GROUP, name=attach))
        if not points:
            raise DeviceError(
                f"device '{name}': nothing is called '{attach}'; known are {', '.join(names())}"
            )
        try:
            factory = points[0].load()
        except (ImportError, AttributeError) as error:
            raise DeviceError(
                f"device '{name}': '{attach}' cannot be loaded ({error}); install its package "
                f"(virtual and model: pip install 'trivet[compile]'), or choose the CPU fallback "
                f"with --device {name}=cpu"
            ) from error
    return factory(name, options)
