"""Kinds of faults that the checker knows by name."""

__all__ = ["CRASH", "STRANDED"]

CRASH = "a handler kills its process"
"""The kind of the fault that a handler itself writes down."""

STRANDED = "leave connections half-open"
"""The kind of the fault that shows when a connection is used, which may be long after."""
