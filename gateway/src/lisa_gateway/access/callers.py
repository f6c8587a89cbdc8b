"""Finds the caller of a request by its headers and its address."""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lisa_common.errors import LisaError
from lisa_gateway.access.grants import ANY_USER, Grant, Role, hash_of
from lisa_gateway.access.quotas import Quota
from lisa_gateway.access.settings import AccessSettings, is_loopback

__all__ = ["OPEN", "Access", "Caller", "Forbidden", "Unauthorized"]

_Headers = Sequence[tuple[bytes, bytes]]

_MAX_TOKEN = 1_024

_NO_LIMITS = Quota()


class Unauthorized(LisaError):
    """A request does not say who calls, or a token is not known."""


class Forbidden(LisaError):
    """The caller may not do this."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls. Without a grant, everything is allowed."""

    name: str
    grant: Grant | None = None
    quota: Quota = _NO_LIMITS
    """What all callers with this grant have used."""

    def may(self, role: Role, topic: str | None = None) -> bool:
        """Whether the caller has a role: for one topic, or with None for any."""
        grant = self.grant
        return grant is None or (role in grant.roles and (topic is None or bool(grant.pattern.fullmatch(topic))))

    def require(self, topic: str | None, *roles: Role) -> None:
        """Raises Forbidden unless the caller has one of these roles for a topic."""
        if self.grant is not None and not any(self.may(role, topic) for role in roles):
            place = "" if topic is None else f" for topic {topic!r}"
            raise Forbidden(f"{self.name!r} must have the role {' or '.join(roles)}{place}")


OPEN = Caller("anybody")
"""The caller where access is open."""


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

    def identify(self, scope: Any, *, by_browser: bool = False) -> Caller:
        """Who sends a request, given as ASGI scope. Raises Unauthorized, Forbidden.

        `by_browser` is for pages: they also take a token as the password of Basic authentication, since browsers ask
        for one, and links of other sites may lead to them.
        """
        headers: _Headers = scope["headers"]
        if self._open:
            self._check_page(headers, is_link=by_browser and _is_link(scope))
            return OPEN
        given = [value for name, value in headers if name == b"authorization"]
        if given:
            return self._bearer(given, basic=by_browser)
        client = scope.get("client")
        if self._settings.is_proxy(client[0] if client else None):
            return self._user([value for name, value in headers if name == self._user_header])
        raise Unauthorized("a bearer token is required")

    def _bearer(self, given: list[bytes], *, basic: bool) -> Caller:
        scheme, _, token = given[0].partition(b" ")
        if basic and scheme.lower() == b"basic":
            scheme, token = b"bearer", _password(token)
        if len(given) > 1 or scheme.lower() != b"bearer" or len(token) > _MAX_TOKEN:
            raise Unauthorized("authorization must be one bearer token")
        caller = self._by_token.get(hash_of(token.strip().decode("latin-1")))
        if caller is None:
            raise Unauthorized("the bearer token is not known")
        return caller

    def _user(self, named: list[bytes]) -> Caller:
        if len(named) != 1 or not named[0].strip():
            raise Unauthorized("the proxy does not name one user")
        name = named[0].strip().decode("utf-8", "replace")
        grant = self._by_name.get(name) if name != ANY_USER else None
        grant = grant or self._by_name.get(ANY_USER)
        if grant is None:
            raise Forbidden(f"user {name!r} has no grant")
        return Caller(name, grant, self._quotas[grant.name])

    def _check_page(self, headers: _Headers, *, is_link: bool) -> None:
        """Refuses requests that web pages of other sites make through a browser of this machine.

        A page can send forms to any address. It can also make its own host name resolve to a loopback address.
        """
        given = dict(headers)
        if len(given) < len(headers) and any(_count(headers, name) > 1 for name in (b"host", b"origin")):
            raise Forbidden("host and origin must be given once each; got several")
        host, is_local = _host(given.get(b"host", b"localhost"))
        if not self._anywhere and not is_local:
            raise Forbidden(f"host must be a loopback address where no token is required; got {host!r}")
        if is_link:
            return
        origin = given.get(b"origin")
        is_foreign = origin is not None and _host_of(origin.rpartition(b"/")[2]) != host
        # A page may also name the gateway as an image, which browsers ask for without an origin.
        if is_foreign or given.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            raise Forbidden("pages of other sites may not call a gateway that requires no token")


def _count(headers: _Headers, name: bytes) -> int:
    return sum(given == name for given, _ in headers)


def _is_link(scope: Any) -> bool:
    """Whether a browser follows a link to a page. The site with the link cannot read the page."""
    given = dict(scope["headers"])
    return (
        scope["method"] in ("GET", "HEAD")
        and given.get(b"sec-fetch-mode") == b"navigate"
        and given.get(b"sec-fetch-dest") == b"document"
    )


def _password(encoded: bytes) -> bytes:
    """The password of Basic authentication; the name before it does not matter. Empty if it cannot be read."""
    try:
        return base64.b64decode(encoded.strip(), validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


@lru_cache(maxsize=256)
def _host(authority: bytes) -> tuple[str, bool]:
    """The host of a request, and whether it is a loopback one."""
    host = _host_of(authority)
    return host, is_loopback(host)


def _host_of(authority: bytes) -> str:
    text = authority.decode("latin-1")
    return text[: text.find("]") + 1] if text.startswith("[") else text.partition(":")[0]
