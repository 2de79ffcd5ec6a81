"""Devices that need nothing but the base installation."""
