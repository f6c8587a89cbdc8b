"""Where the server is: what a URL says of it, and how a URL is shown."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from redis.connection import parse_url

from lisa_common.errors import InvalidInput
from lisa_common.tls import Tls

__all__ = ["Address", "masked", "read_url"]

_SCHEMES = ("redis", "rediss", "unix")
_SECRET_OPTION = re.compile(r"([?&][^=&]*password=)[^&]*", re.IGNORECASE)
# "user:password" where the host was forgotten: what follows the first colon is no port.
_NO_PORT = re.compile(r"^(?!\[)([^:/?#]*):(?!\d+(?:[,/?#]|$)).+$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Address:
    """A checked URL."""

    scheme: str
    shown: str
    """The URL, without passwords."""
    options: Mapping[str, Any] = field(repr=False)
    """For a connection of the client: where to connect, as whom, to which database."""


def read_url(url: str, tls: Tls) -> Address:
    """Takes a URL apart; raises InvalidInput, without its passwords, for one that is none of ours."""
    parts = _split(url)
    if parts.scheme not in _SCHEMES:
        raise _refusal(url, f"{'://, '.join(_SCHEMES)}:// are")
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        raise _refusal(url, "with a path, the number of a database is")
    try:
        options = dict(parse_url(url))  # type: ignore[no-untyped-call]
    except ValueError as error:
        # A port was judged before, and of options the error says no more than their names.
        raise _refusal(url, f"with options, those of the client are ({error})") from None
    if named := [name for name in options if name.startswith("ssl_")]:
        raise _refusal(url, f"without {', '.join(named)} a URL is: TLS is set by tls_ca, tls_cert and tls_key")
    options.pop("connection_class", None)
    if parts.scheme == "rediss":
        tls.context()
        options["tls"] = tls
    elif tls:
        raise _refusal(url, "with tls_ca, tls_cert or tls_key, a rediss:// URL is")
    return Address(parts.scheme, masked(url), options)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise _refusal(url, "as the port, a number up to 65535 is (in a password, %XX stands for : / ? # @)") from None
    return parts


def _refusal(url: str, limit: str) -> InvalidInput:
    return InvalidInput("redis_url", masked(url), limit)


def masked(url: str) -> str:
    """The URL, or what was meant to be one, without its passwords."""
    login, at, rest = _SECRET_OPTION.sub(r"\1***", url).rpartition("@")
    if not at:
        scheme, slashes, host = rest.rpartition("://")
        return scheme + slashes + _NO_PORT.sub(r"\1:***", host)
    scheme, slashes, login = login.rpartition("://")
    user, colon, _ = login.partition(":")
    return f"{scheme}{slashes}{user}{colon and ':***'}@{rest}" if slashes else f"***@{rest}"
