"""Flows whose calls several callers may share, without I/O."""

from collections.abc import Callable, Generator, Hashable
from typing import Any, NamedTuple, TypeVar

from lisa_common.protocol.call import Flow

__all__ = ["Request", "SharedFlow"]

T = TypeVar("T")


class Request(NamedTuple):
    """One item of a call that may carry the items of other callers as well."""

    key: Hashable
    """Requests of equal keys may share a call: they go to the same place, with the same promises."""
    item: Any
    make: Callable[[list[Any]], Flow[list[Any]]]
    """Returns the flow for several items. Its result has one value for each item; some may be LisaErrors."""
    size: int = 0
    """Bytes."""
    repeatable: bool = True
    """Whether making the request twice has the effect of making it once."""
    again: Callable[[Any, float], Any] | None = None
    """Returns the item for a call that repeats one whose reply was lost, and which began at that moment."""


SharedFlow = Generator[Request, Any, T]
"""A flow of shared requests."""
