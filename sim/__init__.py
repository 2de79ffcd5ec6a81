"""The reference machine and the virtual board."""
