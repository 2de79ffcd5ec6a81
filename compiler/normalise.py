"""Normalise: a named list of passes that brings every model to one QDQ form."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from .errors import CompileError
from .load import Loaded
from .passes.fold_constants import FoldConstants
from .passes.shapes import InferShapes
from .passes.split_dequantise import SplitDequantise
from .passes.views_on_integers import ViewsOnIntegers

__all__ = ["PASSES", "normalise"]

PASSES: tuple[ir.passes.PassBase, ...] = (
    FoldConstants(),
    InferShapes(),
    SplitDequantise(),
    ViewsOnIntegers(),
    InferShapes(),
)


def normalise(loaded: Loaded) -> Loaded:
    """Run :data:`PASSES` on a copy of the model; CompileError names a pass that fails."""
    model = loaded.model.clone()
    for step in PASSES:
        try:
            step(model)
        except CompileError:
            raise
        except Exception as e:
            name = type(step).__name__
            raise CompileError(
                f"{loaded.name}: pass {name} failed ({type(e).__name__}: {e}); "
                "please report the model, it is a defect of the compiler"
            ) from e
    return dataclasses.replace(loaded, model=model)
