"""Patterns of topics, in which "*" stands for any text."""

from lisa_common.validation import check_name

__all__ = ["TopicPattern", "is_pattern"]

_ANY = "*"


def is_pattern(topic: object) -> bool:
    """Returns True for a pattern, which contains a "*"; names of topics contain none."""
    return isinstance(topic, str) and _ANY in topic


class TopicPattern:
    """Topics by a pattern, as "orders.*"; a name fits itself. Raises InvalidInput."""

    def __init__(self, text: str) -> None:
        # The rest must be valid in a name.
        check_name("topic", text.replace(_ANY, "x") if is_pattern(text) else text)
        self.text = text
        self._first, *self._rest = text.split(_ANY)

    def fits(self, topic: str) -> bool:
        """Returns True for a topic that fits."""
        # Not by a regular expression, as stored patterns may be anybody's: some would take for ever.
        if not self._rest:
            return topic == self._first
        *middle, last = self._rest
        at, end = len(self._first), len(topic) - len(last)
        if not topic.startswith(self._first) or not topic.endswith(last):
            return False
        for part in middle:
            found = topic.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return at <= end
