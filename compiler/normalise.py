"""Normalise: a named list of passes that brings every model to one QDQ form."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from .errors import CompileError
from .load import Loaded
from .passes.expand_qoperator import ExpandQOperator
from .passes.fold_batch_norm import FoldBatchNorm
from .passes.fold_constants import FoldConstants
from .passes.fuse_matmul_bias import FuseMatMulBias
from .passes.mean_to_pool import MeanToPool
from .passes.names import NameNodes
from .passes.pad_into_conv import PadIntoConv
from .passes.remove_dropout import RemoveDropout
from .passes.shapes import InferShapes
from .passes.split_dequantise import SplitDequantise
from .passes.sum_to_add import SumToAdd
from .passes.upgrade_opset import UpgradeOpset
from .passes.views_on_integers import ViewsOnIntegers

__all__ = ["PASSES", "normalise"]

PASSES: tuple[ir.passes.PassBase, ...] = (
    UpgradeOpset(),
    FoldConstants(),
    InferShapes(),
    RemoveDropout(),
    FoldBatchNorm(),
    FuseMatMulBias(),
    ExpandQOperator(),
    InferShapes(),
    MeanToPool(),
    SumToAdd(),
    PadIntoConv(),
    SplitDequantise(),
    ViewsOnIntegers(),
    RemoveUnusedNodesPass(),  # and the constants that nothing reads any more
    NameNodes(),
    InferShapes(),
)


def normalise(loaded: Loaded) -> Loaded:
    """Run :data:`PASSES` on a copy of the model; CompileError names a pass that fails."""
    model = loaded.model.clone()
    for step in PASSES:
        try:
            model = step(model).model
        except CompileError as e:
            raise CompileError(f"{loaded.name}: {e}") from e
        except Exception as e:
            name = type(step).__name__
            raise CompileError(
                f"{loaded.name}: pass {name} failed ({type(e).__name__}: {e}); "
                "please report the model, it is a defect of the compiler"
            ) from e
    return dataclasses.replace(loaded, model=model)
