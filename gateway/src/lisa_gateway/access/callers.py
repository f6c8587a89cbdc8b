"""Finds the caller of a request by its headers and its address."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from lisa_gateway.access.grants import ALL_TOPICS, ANY_USER, Grant, Role, hash_of
from lisa_gateway.access.quotas import Quota
from lisa_gateway.access.settings import AccessSettings, is_loopback
from lisa_gateway.problems import Forbidden, Unauthorized

__all__ = ["OPEN", "STRANGER", "Access", "Caller"]

_Headers = Sequence[tuple[bytes, bytes]]

_MAX_TOKEN = 1_024

_NO_LIMITS = Quota()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls. Without a grant, everything is allowed."""

    name: str
    grant: Grant | None = None
    quota: Quota = _NO_LIMITS
    """What all callers with this grant have used."""
    by_browser: bool = False
    """Whether a browser sends by itself what identifies the caller: then pages of other sites can have it sent, too."""

    def may(self, role: Role, topic: str | None = None) -> bool:
        """Whether the caller has a role: for a topic, for ALL_TOPICS, or with None for any topic."""
        grant = self.grant
        return grant is None or (role in grant.roles and (topic is None or grant.covers(topic)))

    def require(self, topic: str | None, *roles: Role) -> None:
        """Raises Forbidden unless the caller has one of these roles; for `topic` see `may`."""
        if not any(self.may(role, topic) for role in roles):
            place = {None: "", ALL_TOPICS: " for all topics (*)"}.get(topic, f" for topic {topic!r}")
            raise Forbidden(f"{self.name!r} must have the role {' or '.join(roles)}{place}")

    def require_target(self, topic: object) -> None:
        """Raises Forbidden unless dead letters may go to a topic for the caller: they become messages there."""
        if isinstance(topic, str):
            self.require(topic, Role.SEND, Role.ADMIN)


OPEN = Caller("anybody", by_browser=True)
"""The caller where access is open: a browser of this machine needs nothing to be one."""

STRANGER = Caller("nobody", Grant.model_construct(name="nobody", tokens=(), roles=(), topics=()))
"""The caller of public routes, and of requests that are refused. It may do nothing."""


class Access:
    """The grants of a gateway."""

    def __init__(self, settings: AccessSettings) -> None:
        self._quotas = {grant.name: Quota(grant) for grant in settings.grants}
        self._by_token = {
            token: Caller(grant.name, grant, self._quotas[grant.name])
            for grant in settings.grants
            for token in grant.tokens
        }
        self._by_name = {grant.name: grant for grant in settings.grants}
        self._settings = settings
        self._user_header = settings.proxy_user_header.lower().encode()
        self._open = not settings.grants
        self._anywhere = settings.insecure

    def identify(self, scope: Any, *, basic: bool = False) -> Caller:
        """Who sends a request, given as ASGI scope. Raises Unauthorized, Forbidden.

        With `basic`, also takes a token as the password of Basic authentication, for which browsers ask.
        """
        headers: _Headers = scope["headers"]
        if self._open:
            self._check_host(headers)
            return OPEN
        given = [value for name, value in headers if name == b"authorization"]
        if given:
            return self._bearer(given, basic=basic)
        client = scope.get("client")
        if self._settings.is_proxy(client[0] if client else None):
            return self._user([value for name, value in headers if name == self._user_header])
        raise Unauthorized("a bearer token is required")

    def _bearer(self, given: list[bytes], *, basic: bool) -> Caller:
        scheme, _, token = given[0].partition(b" ")
        by_browser = basic and scheme.lower() == b"basic"
        if by_browser:
            scheme, token = b"bearer", _password(token)
        if len(given) > 1 or scheme.lower() != b"bearer" or len(token) > _MAX_TOKEN:
            raise Unauthorized("authorization must be one bearer token")
        caller = self._by_token.get(hash_of(token.strip().decode("latin-1")))
        if caller is None:
            raise Unauthorized("the bearer token is not known")
        return replace(caller, by_browser=True) if by_browser else caller

    def _user(self, named: list[bytes]) -> Caller:
        if len(named) != 1 or not named[0].strip():
            raise Unauthorized("the proxy does not name one user")
        name = named[0].strip().decode("utf-8", "replace")
        grant = self._by_name.get(name) if name != ANY_USER else None
        grant = grant or self._by_name.get(ANY_USER)
        if grant is None:
            raise Forbidden(f"user {name!r} has no grant")
        return Caller(name, grant, self._quotas[grant.name], by_browser=True)

    def _check_host(self, headers: _Headers) -> None:
        """Refuses other hosts than this machine: a page can make its own host name resolve to a loopback address."""
        for name, value in headers:
            if name == b"host" and not self._anywhere and not _is_this_machine(value):
                host = value.decode("latin-1")
                raise Forbidden(f"host must be a loopback address where no token is required; got {host!r}")


def _password(encoded: bytes) -> bytes:
    """The password of Basic authentication; the name before it does not matter. Empty if it cannot be read."""
    try:
        return base64.b64decode(encoded.strip(), validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


@lru_cache(maxsize=256)
def _is_this_machine(authority: bytes) -> bool:
    text = authority.decode("latin-1")
    return is_loopback(text[: text.find("]") + 1] if text.startswith("[") else text.partition(":")[0])
