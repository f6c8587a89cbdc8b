"""How people read and write the fields of a policy: durations have a unit in their value, and none in their name."""

from lisa_common.model.policy import Policy

__all__ = ["MS", "described", "plain_name"]

MS = "_ms"
"""Ends the names of durations."""

_OTHER_NAMES = {"expire_idle": "expire_idle_mode"}
"""Fields that people name otherwise: without its unit, another field has that name."""


def plain_name(name: str) -> str:
    """Returns the name of a field without its unit."""
    return _OTHER_NAMES.get(name, name.removesuffix(MS))


def described(name: str) -> str:
    """Returns the description of a field without its unit."""
    return (Policy.model_fields[name].description or name).replace(", in ms", "")
