"""Old opsets are brought to one that has per-channel quantisation."""

from __future__ import annotations

import onnx.version_converter
import onnx_ir as ir

from trivet.compiler.errors import CompileError

__all__ = ["UpgradeOpset"]

_NEEDED = 13  # DequantizeLinear with an axis
_TARGET = 17


class UpgradeOpset(ir.passes.FunctionalPass):
    """Convert models below opset 13 to opset 17 with onnx's version converter.

    Requires: node names. Ensures: the same outputs. Left alone: models of opset 13 and up.
    CompileError: the converter does not know an operator of the model.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        version = model.opset_imports.get("", _TARGET)
        if version >= _NEEDED:
            # onnx_ir wants another object from a pass that may return another.
            return ir.passes.PassResult(model.clone(), False)
        copy = model.clone()
        ir.external_data.load_to_model(copy)
        try:
            proto = onnx.version_converter.convert_version(ir.to_proto(copy), _TARGET)
        except Exception as e:
            first = str(e).strip().splitlines()[0]
            raise CompileError(
                f"opset {version} is below {_NEEDED} and onnx cannot convert the model ({first}); "
                f"export it with opset {_TARGET}"
            ) from e
        return ir.passes.PassResult(ir.from_proto(proto), True)
