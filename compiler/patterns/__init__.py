"""Patterns of the QDQ form that have an integer specification, one a file."""
