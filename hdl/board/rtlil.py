"""What yosys reads, from platforms whose own tools read Verilog."""

__all__ = ["WithRtlil"]


class WithRtlil:
    """A mixin for vendor platforms: the design as ``NAME.il``, too."""

    @property
    def file_templates(self):
        return {**super().file_templates, "{{name}}.il": "{{emit_rtlil()}}"}
