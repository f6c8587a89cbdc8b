"""An error of a program that cannot be put into words."""

__all__ = ["Unspeakable"]


class Unspeakable(Exception):
    """Its text raises, and not even an Exception."""

    def __str__(self) -> str:
        raise SystemExit("no words")
