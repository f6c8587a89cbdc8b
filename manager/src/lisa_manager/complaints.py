"""Says of each thing that goes wrong again and again that it does, once."""

import logging

from lisa_common.errors import LisaError

__all__ = ["Complaints"]


class Complaints:
    """A log in which the same complaint about the same subject appears once, until it was settled."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._open: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def about(self, subject: str, error: Exception) -> None:
        """Complains, unless that was said already. What is no error of ours is a fault, and told with where it was."""
        text = str(error) if isinstance(error, LisaError) else f"{type(error).__name__}: {error}"
        if self._open.get(subject) != text:
            self._open[subject] = text
            self._logger.error("%s: %s", subject, text, exc_info=None if isinstance(error, LisaError) else error)

    def settled(self, subject: str) -> None:
        """Notes that all is well with the subject."""
        if self._open.pop(subject, None) is not None:
            self._logger.info("%s: well again", subject)
