"""Passwords and keys are in no error, no log, no `--json` and no repr, however they were given."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lisa_common.client.address import masked
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.errors import InvalidInput, InvalidSettings
from lisa_common.settings import Settings
from lisa_producer import AccessDenied, Producer, ProducerSettings, Unreachable
from support import Server, wait_until
from support.commands import Commands
from support.processes import Programs

SECRET = "s3cret"  # noqa: S105 - it is what we look for
WARNING = "warning: others can read the secret in --redis-url; set LISA_REDIS_URL instead"

GOOD = [
    f"redis://:{SECRET}@localhost:1",
    f"redis://jo:{SECRET}@localhost:1/0",
    f"redis://localhost:1?password={SECRET}",
    f"redis://localhost:1?db=0&username=jo&password={SECRET}",
    f"rediss://jo:{SECRET}@localhost:1",
    f"unix://jo:{SECRET}@/nowhere/redis.sock?db=0",
    f"unix:///nowhere/redis.sock?password={SECRET}",
]
BAD = [
    f"redis://jo:{SECRET}",
    f"redis://:{SECRET}",
    f"redis://:a/{SECRET}@localhost:1",
    f"redis://jo/hn:{SECRET}@localhost:1",
    f"redis://:a#{SECRET}@localhost:1",
    f"redis://:a@{SECRET}@localhost:port",
    f"http://jo:{SECRET}@localhost:1",
    f"jo:{SECRET}@localhost:1",
    f":{SECRET}@localhost",
    f"redis://jo:{SECRET}@localhost:1/zero",
    f"redis://jo:{SECRET}@localhost:1?colour={SECRET}",
    f"redis://localhost:1?db={SECRET}",
    f"rediss://jo:{SECRET}@localhost:1?ssl_password={SECRET}",
    f"rediss://localhost:1?SSL_PASSWORD={SECRET}&ssl_cert_reqs=none",
]


@pytest.mark.parametrize("url", GOOD + BAD)
def test_urls_are_shown_without_passwords(url: str) -> None:
    """Of a URL, or of what was meant to be one, everything else may be shown."""
    shown = masked(url).replace(f"colour={SECRET}", "").replace(f"db={SECRET}", "")
    assert SECRET not in shown


@pytest.mark.parametrize("url", BAD)
@pytest.mark.parametrize("kind", [Connection, AsyncConnection])
def test_bad_urls_are_refused_without_passwords(url: str, kind: type[Connection]) -> None:
    """The reason is one of ours: those of parsers quote what they could not read."""
    with pytest.raises(InvalidInput, match="redis_url") as caught:
        kind(url)
    said = str(caught.value).replace(f"colour={SECRET}", "").replace(f"db={SECRET}", "")
    assert SECRET not in said


@pytest.mark.parametrize("url", GOOD + BAD)
def test_commands_fail_without_passwords(url: str, prefix: str) -> None:
    """What a command says of a URL that leads nowhere, on both streams."""
    url = url.replace(f"colour={SECRET}", "colour=red").replace(f"db={SECRET}", "db=zero")
    for words in (["doctor"], ["doctor", "--json"], ["status", "--json", "--redis-url", url]):
        ran = Commands(url, prefix).manager(*words)
        assert (ran.code, ran.out) == (2, "")
        *warnings, _ = ran.err.splitlines()
        assert set(warnings) <= {WARNING}
        assert SECRET not in ran.err


@pytest.mark.parametrize(
    ("flag", "value", "warned"),
    [
        ("--redis-url", f"redis://jo:{SECRET}@localhost:1", True),
        ("--redis-url", f"redis+sentinel://localhost:1/x?sentinel_password={SECRET}", True),
        ("--redis-url", "redis://jo@localhost:1", False),
        ("--redis-url", "redis://localhost:1/0?db=1", False),
        ("--tls-key", f"-----BEGIN PRIVATE KEY-----{SECRET}", True),
        ("--tls-key", "/etc/key.pem", False),
    ],
)
def test_secrets_of_a_command_line_are_warned_of(flag: str, value: str, *, warned: bool) -> None:
    """Whoever lists processes can read them there; without showing them once more."""
    ran = Commands("redis://localhost:1", "lisa").manager("doctor", flag, value)
    name = flag.removeprefix("--").replace("-", "_").upper()
    said = f"warning: others can read the secret in {flag}; set LISA_{name} instead"
    assert (said in ran.err.splitlines(), SECRET in ran.err) == (warned, False)


def test_settings_are_shown_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repr, a dump and the errors about `lisa.toml` hold no secrets."""
    given = Settings(redis_url=f"redis://:{SECRET}@h", tls_cert=f"{SECRET}.pem", tls_key=SECRET)
    assert SECRET not in f"{given!r} {given} {given.model_dump()} {given.model_dump_json()} {given.tls!r}"
    path = tmp_path / "lisa.toml"
    monkeypatch.setenv("LISA_CONFIG", str(path))
    for line, error in (
        (
            f'[producer]\nredis_pasword = "{SECRET}"\n',
            r"\[producer\] must be one of redis_url, .*; got 'redis_pasword'",
        ),
        (f'tls_key = ["{SECRET}"]\n', "setting tls_key must be a valid string"),
    ):
        path.write_text(line, "utf-8")
        with pytest.raises(InvalidSettings, match=error) as caught:
            ProducerSettings.load()
        assert SECRET not in str(caught.value)


@pytest.fixture
def locked(own_server: Callable[..., Server]) -> Iterator[tuple[Server, str]]:
    """A server with a password, and its URL with that."""
    server = own_server()
    with server.client() as client:
        client.acl_setuser("jo", enabled=True, passwords=[f"+{SECRET}"], keys=["*"], channels=["*"], commands=["+@all"])
        yield server, f"redis://jo:{SECRET}@127.0.0.1:{server.port}"


def test_a_wrong_password_is_not_shown(locked: tuple[Server, str]) -> None:
    """Whom the server does not know is told so, without the password."""
    wrong = locked[1].replace(SECRET, f"{SECRET}!")
    with (
        Producer(wrong) as producer,
        pytest.raises(AccessDenied, match="denies access: ") as caught,
    ):
        producer.send("orders", "x")
    assert SECRET not in str(caught.value)


@pytest.mark.slow
def test_programs_log_no_passwords(locked: tuple[Server, str], prefix: str, tmp_path: Path) -> None:
    """Manager and workers, at their most talkative, while the server goes and comes back."""
    server, url = locked
    programs = Programs(url, prefix, tmp_path)
    try:
        manager = programs.manager("--log-level", "debug")
        worker = programs.worker("--log-level", "debug", "--processes", "2")
        # One that is about to start would end by a wrong password.
        wait_until(lambda: worker.log.count(" of group billing reads ") == 2, 20)
        server.kill()
        wait_until(lambda: "not woken by sends" in manager.log, 20)
        hasty = Producer(settings=ProducerSettings(redis_url=url, patience_s=0))
        with hasty as producer, pytest.raises(Unreachable, match=r"redis://jo:\*\*\*@") as caught:
            producer.send("orders", "x")
        server.start()  # without the user
        wait_until(lambda: "denies access" in manager.log and "denies access" in worker.log, 20)
        assert (manager.stop(), worker.stop()) == (0, 0)
    finally:
        programs.close()
    assert SECRET not in f"{manager.log}{worker.log}{caught.value}"
