"""What a server refuses that Lisa can do without: noted at the first refusal, and said once in the log."""

import logging
from collections import defaultdict
from collections.abc import Iterator

from lisa_common.logs import event
from lisa_common.model.needs import LOSSES, Optional

__all__ = ["Refusals", "refusals_at"]

logger = logging.getLogger(__name__)


class Refusals:
    """What one server, or Cluster, has refused to this process so far."""

    def __init__(self) -> None:
        self._refused: set[Optional] = set()
        self.sends_texts = False
        """Whether the text of a script goes with each call."""

    def __contains__(self, refused: Optional) -> bool:
        return refused in self._refused

    def __iter__(self) -> Iterator[Optional]:
        return iter(self._refused)

    def note(self, refused: Optional, error: Exception | None = None) -> None:
        """Takes note of a refusal, and logs at the first one what is lost, and what to ask for."""
        if refused in self._refused:
            return
        self._refused.add(refused)
        if refused is Optional.EVALSHA:
            self.sends_texts = True
        loss, reason = LOSSES[refused], str(error) if error else ""
        fields = event("server_refuses", command=refused.value, loss=loss.loss, error=reason)
        logger.warning("%s", loss.line(refused, reason), extra=fields)


_AT: defaultdict[str, Refusals] = defaultdict(Refusals)


def refusals_at(url: str) -> Refusals:
    """The refusals at a URL, which has no passwords. All connections of the process to it share them."""
    return _AT[url]
