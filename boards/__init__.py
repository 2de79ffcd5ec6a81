"""Boards: one a file."""
