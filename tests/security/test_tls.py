"""TLS: who is trusted and who is not, on real servers with an authority of our own."""

import shutil
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from lisa_common.client.connection import Connection
from lisa_common.client.tls import AsyncTlsConnection, TlsConnection
from lisa_common.errors import AccessDenied, InvalidInput, ServerError, Unreachable, Untrusted
from lisa_common.protocol.call import command
from lisa_common.tls import NO_TLS, Tls
from lisa_producer import Producer, ProducerSettings
from support import wait_until
from support.commands import Commands
from support.processes import Programs
from support.tls import Certificates, Ping, self_signed, serving_tls

DENIED = (AccessDenied, Unreachable)
"""Whether the reason of a server that hangs up arrives, is a matter of luck."""


def _text(path: Path) -> str:
    return path.read_text("ascii")


async def test_a_server_of_our_authority_is_trusted(tls_url: str, certificates: Certificates, ping: Ping) -> None:
    """The authority is named by a file, or given as text."""
    assert await ping(tls_url, Tls(ca=str(certificates.ca))) == b"PONG"
    assert await ping(tls_url, Tls(ca=_text(certificates.ca))) == b"PONG"


async def test_an_unknown_authority_is_refused(tls_url: str, foreign: Certificates, ping: Ping) -> None:
    """Another authority than the server's, or none, is one clear error, and not tried again."""
    for tls in (Tls(ca=str(foreign.ca)), NO_TLS):
        with pytest.raises(Untrusted, match="not trusted: self-signed certificate in certificate chain, at rediss://"):
            await ping(tls_url, tls)


async def test_a_named_authority_is_the_only_one(
    tls_url: str, certificates: Certificates, foreign: Certificates, ping: Ping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whom the system trusts is trusted only where no authority is named."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
    assert await ping(tls_url, NO_TLS) == b"PONG"
    with pytest.raises(Untrusted):
        await ping(tls_url, Tls(ca=str(foreign.ca)))


async def test_another_host_is_refused(tls_url: str, certificates: Certificates, ping: Ping) -> None:
    """The certificate must be for the host of the URL."""
    elsewhere = tls_url.replace("localhost", "127.0.0.1")
    with pytest.raises(Untrusted, match=r"certificate is not valid for '127\.0\.0\.1'"):
        await ping(elsewhere, Tls(ca=str(certificates.ca)))


async def test_a_server_that_wants_certificates_gets_ours(
    mutual_url: str, certificates: Certificates, ping: Ping
) -> None:
    """Certificate and key are two files or one, or their texts."""
    ca, own = str(certificates.ca), certificates.client
    assert await ping(mutual_url, Tls(ca, str(own.cert), str(own.key))) == b"PONG"
    assert await ping(mutual_url, Tls(ca, str(own.both))) == b"PONG"
    assert await ping(mutual_url, Tls(_text(certificates.ca), _text(own.cert), _text(own.key))) == b"PONG"


async def test_a_server_that_wants_certificates_takes_no_others(
    mutual_url: str, certificates: Certificates, foreign: Certificates, ping: Ping
) -> None:
    """Without one, or with one of an authority that it does not know, we are shown the door."""
    ca, own = str(certificates.ca), foreign.client
    with pytest.raises(DENIED, match=r"certificate"):
        await ping(mutual_url, Tls(ca), patience_s=0)
    with pytest.raises(DENIED):
        await ping(mutual_url, Tls(ca, str(own.cert), str(own.key)), patience_s=0)


def test_renewed_certificates_need_no_restart(
    tls_url: str, certificates: Certificates, foreign: Certificates, tmp_path: Path
) -> None:
    """Each connection that is made goes by what the files hold then."""
    ca = tmp_path / "ca.crt"
    shutil.copy(foreign.ca, ca)
    with Connection(tls_url, tls=Tls(str(ca))) as connection:
        with pytest.raises(Untrusted):
            connection.call(command("PING"))
        shutil.copy(certificates.ca, ca)
        assert connection.call(command("PING")) == b"PONG"


async def test_a_server_without_tls(redis_url: str, certificates: Certificates, ping: Ping) -> None:
    """A server that says nothing in TLS is no server that we trust."""
    plain = redis_url.replace("redis://", "rediss://") + "?socket_connect_timeout=0.3&socket_timeout=0.3"
    with pytest.raises(Unreachable, match="does it speak TLS"):
        await ping(plain, Tls(ca=str(certificates.ca)), patience_s=0)


@pytest.fixture
def locked_key(certificates: Certificates, tmp_path: Path) -> Path:
    """The client's key, with a passphrase."""
    path = tmp_path / "locked.key"
    key = load_pem_private_key(certificates.client.key.read_bytes(), password=None)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))
    return path


def test_bad_files_are_named(certificates: Certificates, foreign: Certificates, locked_key: Path) -> None:
    """What cannot be used is refused before anything is tried, by its setting's name, and without a key's value."""
    own = certificates.client
    cert, key = str(own.cert), str(own.key)
    cases = {
        Tls(ca="/nowhere"): "tls_ca must be .*No such file.*; got '/nowhere'",
        Tls(ca=key): "tls_ca must be a file of PEM certificates",
        Tls(ca="-----BEGIN CERTIFICATE-----\nrubbish"): "tls_ca ",
        Tls(key=_text(own.key)): r"tls_key must be set together with tls_cert, .*; got '\*\*\*'",
        Tls(cert="/nowhere", key=key): "tls_cert must be .*No such file.*; got '/nowhere'",
        Tls(cert=cert): "tls_cert .*key",
        Tls(cert=cert, key=str(foreign.client.key)): "tls_cert .*key values mismatch",
        Tls(cert=cert, key=_text(foreign.client.key)): "tls_cert .*key values mismatch",
        Tls(cert=cert, key=str(locked_key)): "tls_cert .*passphrase",
    }
    for tls, words in cases.items():
        with pytest.raises(InvalidInput, match=words) as caught:
            Connection("rediss://localhost:1", tls=tls)
        assert "PRIVATE KEY" not in f"{caught.value}{tls!r}"


@pytest.mark.parametrize(
    ("url", "tls", "words"),
    [
        (
            "redis://localhost:1",
            Tls(ca="ca.crt"),
            r"a rediss:// or rediss\+… URL when one of the settings tls_… is set",
        ),
        ("unix:///x", Tls(ca="ca.crt"), "a rediss:// or"),
        ("rediss://localhost:1?ssl_cert_reqs=none", NO_TLS, "without ssl_cert_reqs"),
    ],
)
def test_tls_is_not_weakened_in_silence(url: str, tls: Tls, words: str) -> None:
    """Settings of TLS with a URL that has none, and options of a URL that would go round them, are refused."""
    with pytest.raises(InvalidInput, match=words):
        Connection(url, tls=tls)


@pytest.mark.slow
def test_programs_over_mutual_tls(
    *, mutual_url: str, certificates: Certificates, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three programs, set up by the environment: files for one, texts for the others. No key is shown."""
    monkeypatch.setenv("LISA_TLS_CA", str(certificates.ca))
    monkeypatch.setenv("LISA_TLS_CERT", _text(certificates.client.cert))
    monkeypatch.setenv("LISA_TLS_KEY", _text(certificates.client.key))
    programs = Programs(mutual_url, prefix, tmp_path)
    try:
        manager = programs.manager("--log-level", "debug")
        worker = programs.worker("--log-level", "debug", "--processes", "2")
        with Producer(settings=ProducerSettings(redis_url=mutual_url, prefix=prefix)) as producer:
            sent = producer.send("orders", "x", delay=0.1)
            wait_until(lambda: programs.journal.ended()[sent.id] == 1, 20)
            wait_until(lambda: producer.find("orders", sent.id) is None)
        commands = Commands(mutual_url, prefix)
        told = [commands.manager(*words) for words in (["status", "--json"], ["doctor", "--json"])]
        assert [topic["topic"] for topic in told[0].document] == ["orders"]
        assert (manager.stop(), worker.stop()) == (0, 0)
    finally:
        programs.close()
    said = manager.log + worker.log + "".join(ran.out + ran.err for ran in told)
    assert _text(certificates.client.key).splitlines()[1] not in said


def test_a_command_says_why_it_does_not_connect(tls_url: str, foreign: Certificates, prefix: str) -> None:
    """One line, and exit code 2."""
    ran = Commands(tls_url, prefix).manager("status", LISA_TLS_CA=str(foreign.ca))
    assert (ran.code, ran.out) == (2, "")
    [line] = ran.err.splitlines()
    assert line.startswith("lisa-manager: Redis is not trusted: self-signed certificate")


def test_errors_of_tls_are_errors_of_the_server() -> None:
    """Whoever handles what a server may do to him handles this too."""
    assert issubclass(Untrusted, ServerError)


async def test_a_name_that_nobody_verified_is_refused(tmp_path: Path, ping: Ping) -> None:
    """A certificate without alternative names is for no host, whatever its subject is called."""
    ca, cert = self_signed(tmp_path, "localhost")
    with serving_tls(cert) as port, pytest.raises(Untrusted, match="not valid for 'localhost'"):
        await ping(f"rediss://localhost:{port}", Tls(ca=str(ca)), patience_s=0)


async def test_old_tls_is_not_trusted(certificates: Certificates, ping: Ping) -> None:
    """A server that speaks TLS 1.0 or 1.1 alone is told as that: it is not we who are not trusted."""
    cert, tls = certificates.server.both, Tls(ca=str(certificates.ca))
    said = pytest.raises(Untrusted, match=r"must speak TLS 1\.2 or newer")
    with serving_tls(cert, newest=ssl.TLSVersion.TLSv1_1) as port, said:
        await ping(f"rediss://localhost:{port}", tls, patience_s=0)


async def test_nothing_is_sent_without_tls(redis_url: str, ping: Ping, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should the client make its connections in another way one day, no password goes over one that is not TLS."""
    monkeypatch.delattr(TlsConnection, "_connect")
    monkeypatch.delattr(AsyncTlsConnection, "_connection_arguments")
    secret = redis_url.replace("redis://", "rediss://:secret@")
    with pytest.raises(Untrusted, match="not over TLS"):
        await ping(secret, NO_TLS, patience_s=0)
