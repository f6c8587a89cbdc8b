"""Certificates of an authority of our own, and servers that speak TLS."""

import socketserver
import ssl
import subprocess
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.protocol.call import command
from lisa_common.tls import Tls
from support.engines import binary
from support.ports import reserved_port
from support.server import Server
from support.twins import InThread

__all__ = ["Certificates", "Identity", "Ping", "self_signed", "serving_tls", "tls_binary", "tls_config", "tls_server"]

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, in two files and in one."""

    cert: Path
    key: Path
    both: Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """Of an authority: its own, that of the server `localhost`, and a client's."""

    ca: Path
    server: Identity
    client: Identity

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Makes an authority, which certifies the others."""
        authority, ca = trustme.CA(), directory / "ca.crt"
        authority.cert_pem.write_to_path(str(ca))
        return cls(ca, *(_identity(authority, name, directory) for name in ("localhost", "producer@example.org")))


def _identity(authority: trustme.CA, name: str, directory: Path) -> Identity:
    files = Identity(*(directory / f"{name}.{kind}" for kind in ("crt", "key", "pem")))
    issued = authority.issue_cert(name)
    issued.cert_chain_pems[0].write_to_path(str(files.cert))
    issued.private_key_pem.write_to_path(str(files.key))
    issued.private_key_and_cert_chain_pem.write_to_path(str(files.both))
    return files


def self_signed(directory: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate that has its name in the subject alone; return it, and it with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number(), now, now + _DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    ca, both = directory / "own.crt", directory / "own.pem"
    ca.write_bytes(cert)
    both.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + cert)
    return ca, both


@contextmanager
def serving_tls(cert: Path, newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED) -> Iterator[int]:
    """Shake hands with clients, and no more. Returns the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of versions that are old
        context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, newest
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.load_cert_chain(cert)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError), context.wrap_socket(self.request, server_side=True) as secure:
                secure.recv(1)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def tls_binary() -> Path:
    """Return a server program that was built with TLS, as the embedded one is not, or skip the test."""
    program = binary("redis-server")
    words = [str(program), "--port", "0", "--tls-port", "1", "--save", ""]
    said = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False).stdout
    if "No tls-cert-file configured" not in said:
        pytest.skip("the redis-server on this machine was built without TLS")
    return program


def tls_config(certificates: Certificates, port: int, *, mutual: bool = False) -> dict[str, str]:
    """Return settings of a server that speaks TLS on a port."""
    return {
        "tls-port": str(port),
        "tls-ca-cert-file": str(certificates.ca),
        "tls-cert-file": str(certificates.server.cert),
        "tls-key-file": str(certificates.server.key),
        "tls-auth-clients": "yes" if mutual else "no",
    }


@contextmanager
def tls_server(directory: Path, certificates: Certificates, *, mutual: bool) -> Iterator[str]:
    """Run a server that speaks TLS as `localhost`, and give its URL. A mutual one wants its clients' certificates."""
    with reserved_port() as port:
        config = tls_config(certificates, port, mutual=mutual)
        with closing(Server(tls_binary(), directory, config=config)) as server:
            server.start()
            yield f"rediss://localhost:{port}"


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks a server for a PONG over a connection of either kind: `await ping(url, tls)`."""

    kind: str

    async def __call__(self, url: str, tls: Tls, *, patience_s: float = 60) -> bytes:
        """Return the answer, or raise the error."""
        asynchronous = self.kind == "asyncio"
        connection: Any = AsyncConnection(url, tls=tls) if asynchronous else InThread(Connection(url, tls=tls))
        try:
            pong: bytes = await connection.call(command("PING"), patience_s=patience_s)
        finally:
            await connection.close()
        return pong
