"""The compiler's error: where, what is wrong with the value, the bound, the way out."""

__all__ = ["CompileError"]


class CompileError(Exception):
    """A model, plan or option that cannot be compiled; its text is one line to act on."""
