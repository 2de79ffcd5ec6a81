"""Trivet: an ONNX model over CPU, GPU and FPGA; a proven plan, the same bytes everywhere."""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING
from typing import Any as _Any

if TYPE_CHECKING:
    from trivet.compiler.errors import CompileError
    from trivet.runtime.bundle import Bundle, BundleError
    from trivet.runtime.device import DeviceError
    from trivet.runtime.session import Session

__all__ = ["Bundle", "BundleError", "CompileError", "DeviceError", "Session", "__version__"]

__version__ = _version("trivet")

# Loaded when first asked for: `import trivet` stays fast, and needs no part that is not used.
_LAZY = {
    "Bundle": "trivet.runtime.bundle",
    "BundleError": "trivet.runtime.bundle",
    "CompileError": "trivet.compiler.errors",
    "DeviceError": "trivet.runtime.device",
    "Session": "trivet.runtime.session",
}


def __getattr__(name: str) -> _Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'trivet' has no attribute '{name}'")
    return getattr(_import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
