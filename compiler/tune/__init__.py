"""Picks the engine's parameters for a model and a board's budget."""
