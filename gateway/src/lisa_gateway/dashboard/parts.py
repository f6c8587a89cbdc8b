"""What a live part of a page is."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

__all__ = ["Part"]


class Part(NamedTuple):
    """A part of a page that is sent anew as it changes."""

    key: str
    """Views with the same key show the same; it holds all that the part depends on."""
    topics: Callable[[], list[str]]
    """The topics that it shows now."""
    make: Callable[[], Awaitable[str]]
    """Renders it."""
