"""TLS connections of both Redis clients, and the context that they share."""

import hashlib
import re
import socket
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import redis
import redis.asyncio

from lisa_common.errors import CannotCombine, InvalidInput, Untrusted
from lisa_common.tls import Tls

__all__ = ["AsyncTlsConnection", "TlsConnection", "tls_context"]

_PEM = "-----BEGIN "
_HIDDEN = "***"


def tls_context(tls: Tls) -> ssl.SSLContext:
    """A context that verifies the server's certificate and name. Reads the files anew.

    Raises InvalidInput, which never shows a key.
    """
    if tls.key and not tls.cert:
        raise InvalidInput("tls_key", _HIDDEN, "set together with tls_cert, or not at all")
    context = _trusting(tls)
    # Only the alternative names of a certificate count; nobody has verified its common name.
    context.hostname_checks_common_name = False
    if tls.cert:
        _identify(context, tls.cert, tls.key)
    return context


def _trusting(tls: Tls) -> ssl.SSLContext:
    if tls.pin is not None:
        _pins(tls.pin)
        for name, value in (("tls_ca", tls.ca), ("tls_server_name", tls.server_name)):
            if value:
                raise CannotCombine(name, value, "tls_pin")
        context = ssl.create_default_context()
        # The pin is checked instead, before anything is sent.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    if tls.ca is None:
        return ssl.create_default_context()
    try:
        if _is_text(tls.ca):
            return ssl.create_default_context(cadata=tls.ca)
        return ssl.create_default_context(cafile=tls.ca)
    except (OSError, ValueError) as error:
        raise InvalidInput("tls_ca", tls.ca, f"a file of PEM certificates, or their text ({_reason(error)})") from None


def _pins(text: str) -> list[str]:
    pins = [pin.strip().replace(":", "").lower() for pin in text.split(",")]
    if not all(re.fullmatch("[0-9a-f]{64}", pin) for pin in pins):
        raise InvalidInput("tls_pin", text, "the SHA-256 of a certificate in 64 hexadecimal digits")
    return pins


def _check_peer(tls: Tls, connection: Any) -> None:
    """Raises unless a connection is over TLS, and its certificate is pinned, where pins are set.

    The Redis client expects errors of its own; their causes are ours, which `lisa_error` unwraps.
    """
    if not isinstance(connection, ssl.SSLSocket | ssl.SSLObject):
        error = redis.ConnectionError("the connection is not over TLS")
        raise error from Untrusted("the connection that the Redis client made is not over TLS; nothing was sent")
    if tls.pin is None:
        return
    seen = hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest()
    if seen not in _pins(tls.pin):
        error = redis.ConnectionError("another certificate")
        raise error from Untrusted(f"Redis is not trusted: tls_pin must be that of its certificate, {seen}")


def _identify(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    with ExitStack() as files:
        cert_file = files.enter_context(_as_file(cert))
        key_file = files.enter_context(_as_file(key)) if key else None
        try:
            context.load_cert_chain(cert_file, key_file, password=_no_passphrase)
        except (OSError, ValueError) as error:
            expected = f"a PEM certificate that matches the key in tls_key, each a file or the text ({_reason(error)})"
            raise InvalidInput("tls_cert", _HIDDEN if _is_text(cert) else cert, expected) from None


def _is_text(value: str) -> bool:
    return _PEM in value


@contextmanager
def _as_file(value: str) -> Iterator[str]:
    """The name of a file with the value, while the block runs: OpenSSL reads keys from files only."""
    if not _is_text(value):
        yield value
        return
    with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:  # readable by its owner alone
        file.write(value)
        file.flush()
        yield file.name


def _no_passphrase() -> str:
    # Without this function OpenSSL would ask at the terminal.
    raise ValueError("the key has a passphrase")


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


class TlsConnection(redis.Connection):
    """A blocking connection over TLS. It reads the files anew, so renewed certificates need no restart."""

    def __init__(self, *, tls: Tls, **options: Any) -> None:
        self._tls = tls
        super().__init__(**options, redis_connect_func=type(self).greet_over_tls)  # type: ignore[no-untyped-call]

    def greet_over_tls(self) -> None:
        """Sends the password over TLS only, even if a later Redis client no longer calls `_connect`."""
        _check_peer(self._tls, getattr(self, "_sock", None))
        self.on_connect()  # type: ignore[no-untyped-call]

    def _connect(self) -> socket.socket:
        context = tls_context(self._tls)
        plain: socket.socket = super()._connect()  # type: ignore[no-untyped-call]
        return context.wrap_socket(plain, server_hostname=self._tls.server_name or self.host)


class AsyncTlsConnection(redis.asyncio.Connection):
    """The asyncio twin of `TlsConnection`."""

    def __init__(self, *, tls: Tls, **options: Any) -> None:
        self._tls = tls
        super().__init__(**options, redis_connect_func=type(self).greet_over_tls)

    async def greet_over_tls(self) -> None:
        """See `TlsConnection.greet_over_tls`."""
        writer = getattr(self, "_writer", None)
        _check_peer(self._tls, writer and writer.get_extra_info("ssl_object"))
        await self.on_connect()

    def _connection_arguments(self) -> Mapping[str, Any]:
        arguments = {**super()._connection_arguments(), "ssl": tls_context(self._tls)}
        if self._tls.server_name:
            arguments["server_hostname"] = self._tls.server_name
        return arguments
