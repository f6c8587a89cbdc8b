"""Kinds of faults that the checker knows by name."""

__all__ = ["CRASH", "STRANDED"]

CRASH = "a handler kills its process"
"""The kind of the fault that a handler itself notes."""

STRANDED = "leave connections half-open"
"""The kind of the fault that shows on the next use of a connection, perhaps much later."""
