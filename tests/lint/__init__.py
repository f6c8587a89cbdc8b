"""Checks of our own, for `make check`."""
