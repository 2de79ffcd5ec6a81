"""The engine in Amaranth, its configuration and its instruction set."""
