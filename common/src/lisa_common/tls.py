"""What a connection over TLS trusts and shows, as settings name it."""

from dataclasses import dataclass, field

__all__ = ["NO_TLS", "Tls"]


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


NO_TLS = Tls()
"""Trusts whom the system trusts, and shows no certificate."""
