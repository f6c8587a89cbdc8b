"""Names of consumers, and of the topics that they read."""

import os
import re
import secrets
import socket
from collections.abc import Iterable

from lisa_common.errors import InvalidInput
from lisa_common.validation import MAX_NAME_LENGTH, check_name

__all__ = ["HANDLER", "consumer_name", "topic_names"]

HANDLER = "lisa-handler"
"""The name of handler tasks, and the prefix of the names of handler threads."""


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
