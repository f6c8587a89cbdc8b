"""Grants: what the bearer of a token, or a user that a proxy names, may do."""

import hashlib
import re
import secrets
from enum import StrEnum
from fnmatch import translate
from functools import cached_property
from typing import Annotated

from pydantic import Field, field_validator

from lisa_common.validation import MAX_NAME_LENGTH
from lisa_gateway.access.quotas import Quotas

__all__ = ["ALL_TOPICS", "ANY_USER", "Grant", "Role", "hash_of", "new_token"]

_RANDOM_BYTES = 32
_PREFIX = "lisa_"
"""Begins each token, so that scanners of repositories and logs recognise one."""

ANY_USER = "*"
"""The name of the grant for all users of a proxy who have no grant of their own."""

ALL_TOPICS = "*"
"""The glob of every topic. It is not a valid topic name, so no other glob matches it."""

_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_GLOB = re.compile(r"[A-Za-z0-9_.:*?\[\]!-]+")


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


class Grant(Quotas):
    """The rights of one name: its roles, for the topics that one of its globs matches, and its quotas."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH, description="who it is, for logs")]
    tokens: Annotated[
        tuple[str, ...], Field(description="SHA-256 of each bearer token, as `lisa-gateway token` prints it")
    ] = ()
    roles: Annotated[tuple[Role, ...], Field(description="send, consume, admin, view")]
    topics: Annotated[tuple[str, ...], Field(min_length=1, description="globs of topics, as in orders*")] = ("*",)

    @field_validator("roles")
    @classmethod
    def _has_a_role(cls, roles: tuple[Role, ...]) -> tuple[Role, ...]:
        # A bound of the field would add a second error to that of an unknown role.
        if not roles:
            raise ValueError("at least one of send, consume, admin, view")
        return roles

    @field_validator("tokens")
    @classmethod
    def _tokens_are_hashes(cls, tokens: tuple[str, ...]) -> tuple[str, ...]:
        if not all(map(_HASH.fullmatch, tokens)):
            raise ValueError("'sha256:' and 64 hexadecimal digits each, as `lisa-gateway token` prints them")
        return tokens

    @field_validator("topics")
    @classmethod
    def _topics_are_globs(cls, globs: tuple[str, ...]) -> tuple[str, ...]:
        if not all(map(_GLOB.fullmatch, globs)):
            raise ValueError("globs of names: letters, digits, _ . : - and * ? [ ]")
        return globs

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches each topic that it covers."""
        return re.compile("|".join(translate(glob) for glob in self.topics))


def new_token() -> str:
    """A new bearer token: 256 random bits as text."""
    return _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)


def hash_of(token: str) -> str:
    """The form in which settings hold a token.

    A plain hash suffices, since nobody can guess 256 random bits; a slow one would let strangers keep the gateway busy.
    """
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"
