"""Grants: what the bearer of a token, or a user that a proxy names, may do."""

import hashlib
import re
import secrets
from enum import StrEnum
from functools import cached_property
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from lisa_common.errors import InvalidInput
from lisa_common.validation import MAX_NAME_LENGTH, check_name
from lisa_gateway.access.quotas import Quotas

__all__ = ["ALL_TOPICS", "ANY_USER", "Grant", "Role", "hash_of", "new_token"]

_RANDOM_BYTES = 32
_PREFIX = "lisa_"
"""Begins each token, so that scanners of repositories and logs recognise one."""

ANY_USER = "*"
"""The name of the grant for all users of a proxy who have no grant of their own."""

ALL_TOPICS = "*"
"""Stands for all topics, also for those that come later. It is not the name of a topic."""

_HASH = re.compile(r"sha256:[0-9a-f]{64}")


class Role(StrEnum):
    """A kind of calls. No role includes another."""

    SEND = "send"
    """Send, find, cancel and reschedule messages."""
    CONSUME = "consume"
    """Read messages, and settle them; find messages."""
    ADMIN = "admin"
    """Look into topics, groups and dead letters, and change them; find, cancel and reschedule messages."""
    VIEW = "view"
    """See the pages of the dashboard, and change nothing."""


def _check_topics(value: str) -> str:
    """A name of a topic, the beginning of names with a trailing `*`, or `*` alone."""
    try:
        return value if value == ALL_TOPICS else check_name("topics", value.removesuffix("*")) and value
    except InvalidInput:
        expected = "a name of a topic, the beginning of names and *, as in orders*, or * for all topics"
        raise InvalidInput("topics", value, expected) from None


class Grant(Quotas):
    """The rights of one name: its roles, for its topics, and its quotas."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH, description="who it is, for logs")]
    tokens: Annotated[
        tuple[str, ...], Field(description="SHA-256 of each bearer token, as `lisa-gateway token` prints it")
    ] = ()
    roles: Annotated[tuple[Role, ...], Field(description="send, consume, admin, view")]
    topics: Annotated[
        tuple[Annotated[str, AfterValidator(_check_topics)], ...],
        Field(description="names of topics, the beginning of names and *, as in orders*, or * for all"),
    ] = (ALL_TOPICS,)

    @field_validator("roles", "topics")
    @classmethod
    def _is_not_empty(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        # A bound of the field would add a second error to that of an unknown role.
        if not given:
            raise ValueError("a list of at least one")
        return given

    @field_validator("tokens")
    @classmethod
    def _tokens_are_hashes(cls, tokens: tuple[str, ...]) -> tuple[str, ...]:
        if not all(map(_HASH.fullmatch, tokens)):
            raise ValueError("'sha256:' and 64 hexadecimal digits each, as `lisa-gateway token` prints them")
        return tokens

    @cached_property
    def _prefixes(self) -> tuple[str, ...]:
        return tuple(each.removesuffix("*") for each in self.topics if each.endswith("*"))

    def covers(self, topic: str) -> bool:
        """Whether a topic is one of its topics; with ALL_TOPICS, whether every topic is."""
        # No beginning but that of "*", which is empty, begins ALL_TOPICS.
        return topic in self.topics or topic.startswith(self._prefixes)


def new_token() -> str:
    """A new bearer token: 256 random bits as text."""
    return _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def hash_of(token: str) -> str:
    """The form in which settings hold a token.

    A plain hash suffices, since nobody can guess 256 random bits; a slow one would let strangers keep the gateway busy.
    """
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
