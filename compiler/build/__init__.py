"""From an engine and a board to a bitstream, with pip's open tools."""
