"""Patterns of topics, in which "*" stands for any text."""

import re

from lisa_common.validation import check_name

__all__ = ["TopicPattern", "is_pattern"]

_ANY = "*"


def is_pattern(topic: object) -> bool:
    """Whether a caller's topic stands for all topics that fit: names contain no "*"."""
    return isinstance(topic, str) and _ANY in topic


class TopicPattern:
    """Topics by a pattern, as "orders.*"; a name fits itself. Raises InvalidInput."""

    def __init__(self, text: str) -> None:
        # The rest must be valid in a name.
        check_name("topic", text.replace(_ANY, "x"))
        self._fits = re.compile(".*".join(map(re.escape, text.split(_ANY)))).fullmatch
        self.text = text

    def fits(self, topic: str) -> bool:
        """Whether a topic fits."""
        return self._fits(topic) is not None
