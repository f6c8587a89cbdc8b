"""Closes clients, and other holders of resources, when their `with` block ends."""

from abc import ABC, abstractmethod
from typing import Self

__all__ = ["AsyncClosing", "Closing"]


class Closing(ABC):
    """Closes at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Closes what this holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClosing(ABC):
    """Closes at the end of an `async with` block."""

    @abstractmethod
    async def close(self) -> None:
        """Closes what this holds."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
