"""Errors of settings and of the server, for all commands: one clear line, exit code 2, no traceback."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
import redis

from support import Server, keys_left
from support.commands import Commands

COMMANDS = [
    ("lisa-producer", ("send", "orders", "body")),
    ("lisa-producer", ("load", "-", "--topic", "orders")),
    ("lisa-manager", ("status",)),
    ("lisa-manager", ("show", "orders", "m")),
    ("lisa-manager", ("cancel", "orders", "m")),
    ("lisa-manager", ("garbage", "list", "orders")),
    ("lisa-manager", ("garbage", "replay", "orders", "--all")),
    ("lisa-manager", ("garbage", "purge", "orders", "--all", "--yes")),
    ("lisa-manager", ("topic", "list")),
    ("lisa-manager", ("topic", "set", "orders", "--priority", "1")),
    ("lisa-manager", ("topic", "drop", "orders", "--yes")),
    ("lisa-manager", ("group", "list", "orders")),
    ("lisa-manager", ("group", "drop", "orders", "billing", "--yes")),
    ("lisa-manager", ("check",)),
    ("lisa-manager", ("doctor",)),
]
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
each_command = pytest.mark.parametrize(("program", "words"), COMMANDS, ids=lambda part: " ".join(part) if part else "")


def _fails(commands: Commands, program: str, words: tuple[str, ...], **env: str) -> str:
    """The line that the command prints on stderr."""
    run = commands.producer if program == "lisa-producer" else commands.manager
    ran = run(*words, stdin='{"body": 1}\n', **env)
    assert ran.code == 2, ran.out
    assert ran.err.count("\n") == 1, ran.err
    assert ran.err.startswith(f"{program}: ")
    return ran.err


_TYPER = tuple(map(int, metadata.version("typer").split(".")[:2]))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("acl", "nosuch"), "role must be one of producer, consumer, manager, reader, gateway; got 'nosuch'"),
        (("list", "orders", "waiting", "--limit", "0"), "limit must be at least 1; got '0'"),
        (("garbage", "list", "orders", "--limit", "x"), "limit must be a valid integer; got 'x'"),
        (("status", "--watch", "soon"), "watch must be a valid number; got 'soon'"),
    ],
)
def test_wrong_values_of_options(commands: Commands, words: tuple[str, ...], told: str) -> None:
    """As all errors about a value, but where an older typer has words of its own."""
    message = _fails(commands, "lisa-manager", words)
    assert message == f"lisa-manager: {told}\n" or (_TYPER < (0, 29) and "Invalid value for '" in message)


def test_help_shows_what_a_value_is(commands: Commands) -> None:
    """Roles once; empty defaults not at all."""
    text = " ".join(commands.manager("acl", "--help").out.split())
    assert text.count("producer") <= 1
    assert "default {}" not in text
    text = " ".join(commands.gateway("run", "--help").out.split())
    assert "default ()" not in text
    assert "--redis-url URL" in text
    assert "--tls-server-name TEXT" in text
    assert "--receipt-key TEXT" in text
    assert "--role ROLE What it allows: send, consume" in " ".join(commands.gateway("token", "--help").out.split())


@each_command
def test_unreachable_server(commands: Commands, program: str, words: tuple[str, ...]) -> None:
    """The error comes at once, or after the given patience, without the password."""
    url = "redis://user:secret@localhost:1/0"
    message = _fails(commands, program, words, LISA_REDIS_URL=url, LISA_PATIENCE_S="0")
    assert "cannot reach Redis at redis://user:***@localhost:1/0" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    "url",
    ["http://localhost", "localhost:6379", "", "redis://[", "redis://localhost:port", "redis://h/db", "redis://h?x=1"],
)
def test_wrong_url(commands: Commands, url: str) -> None:
    """The error shows what a URL must be."""
    for program, words in COMMANDS[0], COMMANDS[2]:
        message = _fails(commands, program, words, LISA_REDIS_URL=url)
        assert "redis_url" in message
        assert "redis://" in message


def test_a_url_without_a_scheme_does_not_show_its_password(commands: Commands) -> None:
    """A URL is never shown with its password."""
    assert "secret" not in _fails(commands, *COMMANDS[2], LISA_REDIS_URL="user:secret@localhost:6379")


def test_wrong_password(commands: Commands, own_server: Callable[..., Server]) -> None:
    """The error contains the server's words, without the password."""
    server = own_server()
    with server.client() as admin:
        admin.config_set("requirepass", "right")
    for program, words in COMMANDS[0], COMMANDS[2]:
        message = _fails(commands, program, words, LISA_REDIS_URL=f"redis://:wrong@127.0.0.1:{server.port}")
        assert "Redis denies access" in message
        assert "wrong@" not in message
        assert "denies" in _fails(commands, program, words, LISA_REDIS_URL=server.url)


def test_unknown_settings_in_lisa_toml(commands: Commands, client: redis.Redis, prefix: str, tmp_path: Path) -> None:
    """The error names the setting, the file and the known settings; nothing is written."""
    path = tmp_path / "lisa.toml"
    path.write_text("redis_ulr = 'redis://localhost'\n")
    for program, words in COMMANDS:
        message = _fails(commands, program, words, LISA_CONFIG=str(path))
        assert f"{path}: setting must be one of redis_url, " in message
        assert message.rstrip().endswith("; got 'redis_ulr'")
    assert keys_left(client, prefix) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[manager]\npol_s = 1\n", "got 'pol_s'"),
        ("[manager]\npoll_s = 0\n", "setting poll_s must be at least 0.01; got 0"),
        ("manager = 1\n", "must be a table"),
        ("= 1\n", "lisa.toml is no TOML: "),
        ("\ufefftimeout_s = 0\n", "setting timeout_s must be at least 0.1"),
        ("timeout_s = 'long'\n", "setting timeout_s must be a valid number; got 'long'"),
    ],
)
def test_bad_lisa_toml(commands: Commands, tmp_path: Path, content: str, message: str) -> None:
    """Errors in the program's own table are reported, also by commands without the option."""
    path = tmp_path / "lisa.toml"
    path.write_text(content)
    assert message in _fails(commands, "lisa-manager", ("status",), LISA_CONFIG=str(path))


def test_a_missing_lisa_toml(commands: Commands) -> None:
    """A missing file is an error only if `LISA_CONFIG` names it."""
    told = _fails(commands, "lisa-manager", ("status",), LISA_CONFIG="nowhere.toml")
    assert told == "lisa-manager: cannot read settings from nowhere.toml: No such file or directory\n"


def test_all_bad_settings_are_reported(commands: Commands) -> None:
    """Each error has its own line."""
    ran = commands.manager("run", "--poll-s", "0", "--timeout-s", "x", "--prefix", "a b")
    assert ran.code == 2
    assert [line.split()[2] for line in ran.err.splitlines()] == ["prefix", "timeout_s", "poll_s"]


def test_flags_win_over_environment(commands: Commands, redis_url: str) -> None:
    """The environment wins over the file."""
    ran = commands.manager("status", "--redis-url", redis_url, LISA_REDIS_URL="redis://localhost:1")
    assert ran.code == 0


def test_help_shows_settings_with_bounds_defaults_and_variables(commands: Commands) -> None:
    """Commands that do not run the daemon show only their own settings."""
    message = " ".join(commands.manager("run", "--help", COLUMNS="300", TERMINAL_WIDTH="300").out.split())
    assert "--poll-s" in message
    assert "in seconds, 0.01 to 60; default 1.0 (env LISA_POLL_S)" in message
    assert "--poll-s" not in commands.manager("status", "--help").out


@pytest.mark.parametrize("program", ["lisa-manager", "lisa-producer"])
def test_version_and_no_command(commands: Commands, program: str) -> None:
    """--version prints one line; without a command the help appears."""
    run = commands.producer if program == "lisa-producer" else commands.manager
    assert run("--version").out == f"{program} 0.1.0\n"
    assert run().code == 2
    assert "No such command" in run("nonsense").err


def test_real_processes_end_like_this(redis_url: str, prefix: str) -> None:
    """A process of its own prints one line, no traceback, and exits with the code."""
    code = "import sys; from lisa_manager.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "status", "nope", "--redis-url", redis_url, "--prefix", prefix],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "lisa-manager: there is no topic 'nope'\n")


BROKEN = {
    "full": ("manager", "--version", ">/dev/full", 1, "cannot write to standard output: No space left on device"),
    "no output": ("consumer", "--help", ">&-", 1, "cannot write to standard output: it is closed"),
    "no body": ("producer", "send t -", "<&-", 2, "body must be readable standard input [(]it is closed[)]; got '-'"),
    "no lines": (
        "producer",
        "load - --topic t",
        "<&-",
        2,
        "stopped before the end: file must be .* [(]it is closed[)]",
    ),
    "no disk": ("producer", "load /proc/self/mem --topic t", "", 2, "stopped before .*[(]Input/output error[)]"),
}


@pytest.mark.parametrize(("name", "words", "redirection", "code", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_streams_that_break_end_a_program(
    redis_url: str, *, name: str, words: str, redirection: str, code: int, message: str
) -> None:
    """A closed or full standard stream, or a file that fails while being read, is reported in one line."""
    program = f"from lisa_{name}.cli import main; main()"
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -c "$1" {words} {redirection}', sys.executable, program],
        capture_output=True,
        text=True,
        env={**BUFFERED, "LISA_REDIS_URL": redis_url},
    )
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert re.match(f"lisa-{name}: {message}", done.stderr)


def test_a_closed_pipe_ends_a_program_silently() -> None:
    """`head` closes its pipe like this."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:  # noqa: PTH123 - a descriptor
        program = "from lisa_manager.cli import main; main()"
        command = [sys.executable, "-c", program, "--version"]
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, env=BUFFERED)
    assert (done.returncode, done.stderr) == (1, b"")


def test_doctor_reports_problems(commands: Commands, own_server: Callable[..., Server]) -> None:
    """Exit code 1 and a line for each problem; 0 without problems."""
    bad, good = own_server(), own_server(appendonly="yes")
    ran = commands.manager("doctor", LISA_REDIS_URL=bad.url)
    assert (ran.code, "no persistence" in ran.out) == (1, True)
    assert commands.manager("doctor", "--json", LISA_REDIS_URL=bad.url).document
    ran = commands.manager("doctor", LISA_REDIS_URL=good.url)
    assert ran.code == 0
    # Redis 7.0 has no WAITAOF: the line for producers names the version that has it.
    assert ("WAITAOF" in ran.out) == ("it needs Redis ≥ 7.2" in ran.out)
    first, *roles, _ = ran.out.splitlines()
    assert first == "nothing is wrong with the server"
    assert [line.split(":")[0] for line in roles] == ["as producer", "as consumer", "as manager"]
    assert all(": works" in line for line in roles)
