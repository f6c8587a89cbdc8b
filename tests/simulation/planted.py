"""Faults to plant in the product, to see that the simulation finds them. Most were real ones once."""

from dataclasses import dataclass

__all__ = ["PLANTED", "Plant"]


@dataclass(frozen=True, slots=True)
class Plant:
    """A change of one file of the product."""

    name: str
    about: str
    file: str
    """The end of its path."""
    old: str
    new: str


PLANTED: dict[str, Plant] = {}
