"""Names of consumers, and of the topics that they read."""

import os
import re
import secrets
import socket
from collections.abc import Iterable

from lisa_common.errors import InvalidInput
from lisa_common.validation import MAX_NAME_LENGTH, check_name

__all__ = ["HANDLER", "TopicPattern", "consumer_name", "is_pattern", "topic_names"]

HANDLER = "lisa-handler"
"""The name of handler tasks, and the prefix of the names of handler threads."""

_ANY = "*"


def consumer_name() -> str:
    """A unique name: host, process id and a random part."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())
    return f"{host[: MAX_NAME_LENGTH - 40]}-{os.getpid()}-{secrets.token_hex(4)}"


def topic_names(topics: object) -> tuple[str, ...]:
    """A caller's topics, one name or several, as a tuple of at least one; raises InvalidInput."""
    if isinstance(topics, bytes) or not isinstance(topics, Iterable):
        raise InvalidInput("topics", topics, "a name, or a sequence of names")
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise InvalidInput("topics", topics, "at least one name")
    return tuple(check_name("topic", name) for name in names)


def is_pattern(topic: object) -> bool:
    """Whether a caller's topic stands for all topics that fit: names contain no "*"."""
    return isinstance(topic, str) and _ANY in topic


class TopicPattern:
    """Topics by a pattern in which "*" stands for any text, as in "orders.*". Raises InvalidInput."""

    def __init__(self, text: str) -> None:
        # The rest must be valid in a name.
        check_name("topic", text.replace(_ANY, "x"))
        self._fits = re.compile(".*".join(map(re.escape, text.split(_ANY)))).fullmatch
        self.text = text

    def fits(self, topic: str) -> bool:
        """Whether a topic fits."""
        return self._fits(topic) is not None
