"""Trivet: an ONNX model over CPU, GPU and FPGA; a proven plan, the same bytes everywhere."""

from importlib.metadata import version as _version

__all__ = ["__version__"]

__version__ = _version("trivet")
