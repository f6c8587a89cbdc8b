"""Logs each problem once when it begins, and once when it ends."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lisa_common.errors import OF_THE_SERVER, LisaError
from lisa_common.escaping import named_text
from lisa_common.logs import event

__all__ = ["ProblemLog"]


class ProblemLog:
    """The open problems of one logger, by subject."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._open: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    @contextmanager
    def watching(self, subject: str, *, node: object = "", **fields: Any) -> Iterator[None]:
        """Runs a block for one subject of many: an error is a problem of this subject alone, which ends without one.

        Give the node of a Cluster that the block asks. None is the one server that all subjects share: then errors that
        concern the server are raised, so that they are reported once.
        """
        try:
            yield
        except Exception as error:
            if node is None and isinstance(error, OF_THE_SERVER):
                raise
            self.report(subject, error, **fields)
        else:
            self.resolve(subject)

    def report(self, subject: str, error: Exception, **fields: Any) -> None:
        """Logs a problem unless the same one is open. An error that is no LisaError is logged with its traceback.

        `fields` name its subject, for example its topic.
        """
        text = str(error) if isinstance(error, LisaError) else named_text(error)
        if self._open.get(subject) != text:
            self._open[subject] = text
            trace = None if isinstance(error, LisaError) else error
            extra = event("job_failed", subject=subject, error=text, **fields)
            self._logger.error("%s failed: %s", subject, text, exc_info=trace, extra=extra)

    def resolve(self, subject: str) -> None:
        """Logs that a subject recovered, if it has an open problem."""
        if self._open.pop(subject, None) is not None:
            self._logger.info("%s recovered", subject, extra=event("job_recovered", subject=subject))
