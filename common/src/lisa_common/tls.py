"""The TLS settings of a connection: the certificates that it trusts, and the one that it shows."""

from dataclasses import dataclass, field

__all__ = ["NO_TLS", "Tls"]


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificates and key; each value is the name of a file, or the PEM text itself."""

    ca: str | None = None
    """The only trusted certificates; None: those that the system trusts."""
    cert: str | None = field(default=None, repr=False)
    """The certificate to show to a server that requests one; its chain may follow it."""
    key: str | None = field(default=None, repr=False)
    """The private key of `cert`, without a passphrase; None: `cert` contains it."""
    server_name: str | None = None
    """The name in the server's certificate; None: the host."""
    pin: str | None = None
    """SHA-256 of trusted certificates in hex, separated by commas; no authority has to have signed them."""

    def __bool__(self) -> bool:
        return any((self.ca, self.cert, self.key, self.server_name, self.pin))


NO_TLS = Tls()
"""Trusts the system's certificates, and shows none."""
