"""Remembers which optional commands a server refuses, and logs each loss once."""

import logging
from collections import defaultdict
from collections.abc import Iterator

from lisa_common.logs import event
from lisa_common.model.needs import LOSSES, Optional

__all__ = ["Refusals", "refusals_at"]

logger = logging.getLogger(__name__)


class Refusals:
    """Optional commands that one server or Cluster has refused to this process."""

    def __init__(self) -> None:
        self._refused: set[Optional] = set()
        self.sends_texts = False
        """Whether calls carry the texts of scripts in place of their SHAs. Kept, as each call asks for it."""

    def __contains__(self, refused: Optional) -> bool:
        return refused in self._refused

    def __iter__(self) -> Iterator[Optional]:
        return iter(self._refused)

    def note(self, refused: Optional, error: Exception | None = None) -> None:
        """Takes note of a refusal, and logs at the first one what is lost, and what to ask for."""
        if refused in self._refused:
            return
        self._refused.add(refused)
        self.sends_texts = Optional.EVALSHA in self._refused
        loss, reason = LOSSES[refused], str(error) if error else ""
        fields = event("server_refuses", command=refused.value, loss=loss.loss, error=reason)
        logger.warning("%s", loss.line(refused, reason), extra=fields)


_AT: defaultdict[str, Refusals] = defaultdict(Refusals)


def refusals_at(url: str) -> Refusals:
    """The refusals at a URL, which has no passwords. All connections of the process to it share them."""
    return _AT[url]
