"""TLS: whom a connection trusts, and by what it shows who it is."""

import socket
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis
import redis.asyncio

from lisa_common.errors import InvalidInput, Untrusted

__all__ = ["NO_TLS", "AsyncTlsConnection", "Tls", "TlsConnection"]

_PEM = "-----BEGIN "
_HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class Tls:
    """Each value is the name of a file, or the PEM text itself."""

    ca: str | None = None
    """Certificates of those whom we trust, and of nobody else; None: whom the system trusts."""
    cert: str | None = field(default=None, repr=False)
    """Our certificate, for a server that wants one; its chain may follow it."""
    key: str | None = field(default=None, repr=False)
    """Its private key, without a passphrase; None: it is in `cert` too."""

    def __bool__(self) -> bool:
        return any((self.ca, self.cert, self.key))

    def context(self) -> ssl.SSLContext:
        """A context that verifies the server's certificate and name, with what the files hold now.

        Raises InvalidInput, which never shows a key.
        """
        if self.key and not self.cert:
            raise InvalidInput("tls_key", _HIDDEN, "only together with tls_cert a key is")
        context = self._trusting()
        # Names stand among the alternative names of a certificate; what else it calls itself nobody has verified.
        context.hostname_checks_common_name = False
        if self.cert:
            self._identify(context, self.cert)
        return context

    def _trusting(self) -> ssl.SSLContext:
        if self.ca is None:
            return ssl.create_default_context()
        try:
            if _is_text(self.ca):
                return ssl.create_default_context(cadata=self.ca)
            return ssl.create_default_context(cafile=self.ca)
        except (OSError, ValueError) as error:
            limit = f"a file of certificates in PEM, or its text, is ({_why(error)})"
            raise InvalidInput("tls_ca", self.ca, limit) from None

    def _identify(self, context: ssl.SSLContext, cert: str) -> None:
        with ExitStack() as files:
            cert_file = files.enter_context(_as_file(cert))
            key_file = files.enter_context(_as_file(self.key)) if self.key else None
            try:
                context.load_cert_chain(cert_file, key_file, password=_no_passphrase)
            except (OSError, ValueError) as error:
                limit = f"with tls_key, files of a certificate and its key in PEM, or their texts, are ({_why(error)})"
                shown = _HIDDEN if _is_text(cert) else cert
                raise InvalidInput("tls_cert", shown, limit) from None


NO_TLS = Tls()
"""Trusts whom the system trusts, and shows no certificate."""


def _is_text(value: str) -> bool:
    return _PEM in value


@contextmanager
def _as_file(value: str) -> Iterator[str]:
    """The name of a file that holds the value, for as long as the block runs: OpenSSL reads keys from files only."""
    if not _is_text(value):
        yield value
        return
    with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:  # readable by its owner alone
        file.write(value)
        file.flush()
        yield file.name


def _no_passphrase() -> str:
    # Without this OpenSSL would ask at the terminal.
    raise ValueError("the key has a passphrase")


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _not_tls() -> redis.ConnectionError:
    """One of the client's errors, as it expects; its cause is ours, which lisa_error finds."""
    error = redis.ConnectionError("the connection is not over TLS")
    error.__cause__ = Untrusted("the connection that the Redis client made is not over TLS; nothing was sent")
    return error


class TlsConnection(redis.Connection):
    """A blocking connection over TLS; it reads the files anew, so that renewed certificates need no restart."""

    def __init__(self, *, tls: Tls, **options: Any) -> None:
        self._tls = tls
        super().__init__(**options, redis_connect_func=type(self).greet_over_tls)  # type: ignore[no-untyped-call]

    def greet_over_tls(self) -> None:
        """Goes on, with the password, on TLS alone: that the client calls `_connect` is no promise of its own."""
        if not isinstance(getattr(self, "_sock", None), ssl.SSLSocket):
            raise _not_tls()
        self.on_connect()  # type: ignore[no-untyped-call]

    def _connect(self) -> socket.socket:
        context = self._tls.context()
        plain: socket.socket = super()._connect()  # type: ignore[no-untyped-call]
        return context.wrap_socket(plain, server_hostname=self.host)


class AsyncTlsConnection(redis.asyncio.Connection):
    """The asyncio twin of `TlsConnection`."""

    def __init__(self, *, tls: Tls, **options: Any) -> None:
        self._tls = tls
        super().__init__(**options, redis_connect_func=type(self).greet_over_tls)

    async def greet_over_tls(self) -> None:
        """As that of its twin."""
        writer = getattr(self, "_writer", None)
        if writer is None or writer.get_extra_info("ssl_object") is None:
            raise _not_tls()
        await self.on_connect()

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "ssl": self._tls.context()}
