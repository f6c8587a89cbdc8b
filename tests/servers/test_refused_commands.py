"""The matrix: a message's whole life while the server refuses one program one command, or several.

Each program either works, or says in one line at its start which command it needs. `docs/servers.md` has the table.
"""

import asyncio
import itertools
import logging
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis

from lisa_common.client.address import masked
from lisa_common.client.refusals import refusals_at
from lisa_common.errors import AccessDenied
from lisa_common.model.needs import LOSSES, NEEDED, Optional
from lisa_common.model.rights import RoleName
from lisa_common.protocol.user_rights import OPTIONAL, commands_of
from lisa_producer import PartialSend
from support import Server
from support.engines import own_binary
from support.life import Life
from support.refusing import WORDS, refusing

ROLES = (RoleName.PRODUCER, RoleName.CONSUMER, RoleName.MANAGER)
PASSWORD = "pw"  # noqa: S105 - of users on a server of the test's own
PAGE = Path(__file__).parents[2] / "docs" / "servers.md"
AT_ONCE = 12
"""Lives side by side: they wait most of the time."""

COMMANDS = sorted(set().union(*map(commands_of, ROLES)))
UNASKED = {"script|load", "wait", "waitaof"}
"""What a producer loses only once it asks for it."""
SILENT = {"client|setinfo", "cluster|info", "eval", "ping"}
"""Commands without which nothing is lost."""


@dataclass
class Users:
    """A server, and users who may do everything but some commands."""

    server: Server
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def make(self, *rules: str) -> str:
        """Makes a user with further rules; returns the URL."""
        name = f"user{next(self.numbers)}"
        with self.server.client() as client:
            client.execute_command("ACL", "SETUSER", name, "on", f">{PASSWORD}", "~*", "&*", "+@all", *rules)
        return f"redis://{name}:{PASSWORD}@127.0.0.1:{self.server.port}"

    def life(self, urls: dict[RoleName, str]) -> Life:
        """A life whose programs connect by these URLs; the others may do everything."""
        return Life(
            f"p{next(self.numbers)}", {role: urls.get(role, self.server.url) for role in ROLES}, self.server.url
        )

    def knows(self, command: str) -> bool:
        """Whether the server has a command."""
        with self.server.client() as client:
            try:
                client.execute_command("ACL", "SETUSER", "nobody", f"-{command}")
            except redis.ResponseError:
                return False
        return True


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Users]:
    """One server for all."""
    with closing(Server(own_binary(), tmp_path_factory.mktemp("refusing"))) as server:
        yield Users(server.start())


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of refusals; each line says what to do."""
    told = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "server_refuses"]
    assert all("ask the provider" in text for text in told)
    return told


def _lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The commands whose loss the log says, each as often as it says it."""
    return sorted(record.command for record in caplog.records if hasattr(record, "command"))


async def _outcome(users: Users, role: RoleName, command: str, caplog: pytest.LogCaptureFixture) -> str:
    """What becomes of a life: "needs", "loses", "works in part" or "works"."""
    url = users.make(f"-{command}")
    shown = command.replace("|", " ").upper()
    try:
        await users.life({role: url}).live()
    except (AccessDenied, PartialSend) as error:
        # Redis 7.0 does not name what a script may not run.
        is_named = command in str(error).lower() or shown in str(error) or "`lisa-manager doctor` names" in str(error)
        return "needs" if is_named else f"is not named: {error}"
    except TimeoutError:
        # On a busy machine an expired message may need the very call that is refused.
        if role is not RoleName.MANAGER:
            raise
    # A command on hashes is refused on those of workers and of drops, too.
    if refused := {*refusals_at(masked(url))} - {Optional.WORKERS, Optional.DROPPED}:
        assert refused == {OPTIONAL[command]}
        return "loses"
    return "works in part" if any(f"refuses {shown}: calls of a {role}" in text for text in _told(caplog)) else "works"


def _expected(role: RoleName, command: str) -> str:
    if command in NEEDED[role]:
        return "needs"
    if command in OPTIONAL:
        return "works" if role is RoleName.PRODUCER and command in UNASKED else "loses"
    return "works" if command in SILENT or role is RoleName.PRODUCER else "works in part"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("role", ROLES)
async def test_one_program_is_refused_one_command(
    users: Users, role: RoleName, caplog: pytest.LogCaptureFixture
) -> None:
    """Each command of each program, with the outcome that the table has."""
    room, outcomes = asyncio.Semaphore(AT_ONCE), dict[str, str]()

    async def live(command: str) -> None:
        async with room:
            outcomes[command] = await _outcome(users, role, command, caplog)

    commands = [command for command in sorted(commands_of(role)) if users.knows(command)]
    async with asyncio.TaskGroup() as tasks:
        for command in commands:
            tasks.create_task(live(command))
    assert outcomes == {command: _expected(role, command) for command in commands}
    tracebacks = [record for record in caplog.records if record.exc_info and "first attempt" not in record.getMessage()]
    assert not tracebacks


@pytest.mark.parametrize(
    ("rules", "losses"),
    [
        ("resetchannels", {Optional.PUBLISH, Optional.SUBSCRIBE}),
        ("-@dangerous", {Optional.INFO}),
        ("-@admin -@dangerous -client -script", {Optional.INFO, Optional.NAME, Optional.LOAD, Optional.SCRIPTS}),
        ("-script -evalsha", {Optional.LOAD, Optional.SCRIPTS, Optional.EVALSHA}),
        ("-@pubsub -@connection +auth", {Optional.PUBLISH, Optional.SUBSCRIBE, Optional.NAME}),
    ],
)
async def test_rules_that_people_write(
    users: Users, rules: str, losses: set[Optional], caplog: pytest.LogCaptureFixture
) -> None:
    """All programs share one user; each loss is said once, with what to ask for."""
    with users.server.client() as client:
        client.script_flush()
    url = users.make(*rules.split())
    await users.life(dict.fromkeys(ROLES, url)).live()
    assert _lost(caplog) == sorted(losses)
    assert len(_told(caplog)) == len(losses)
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert all("now garbage" in text for text in errors), errors


@pytest.mark.parametrize("word", WORDS)
async def test_a_proxy_refuses(users: Users, word: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever its words: names, INFO, Pub/Sub and scripts by their SHA."""
    with users.server.client() as client:
        client.script_flush()
    refused = ("CLIENT", "INFO", "CONFIG", "PUBLISH", "SUBSCRIBE", "SCRIPT", "EVALSHA", "PING", "WAIT")
    async with refusing(users.server.port, *refused, word=WORDS[word]) as proxy:
        await users.life(dict.fromkeys(ROLES, proxy.url)).live()
    losses = (Optional.NAME, Optional.INFO, Optional.PUBLISH, Optional.SUBSCRIBE, Optional.SCRIPTS, Optional.EVALSHA)
    assert _lost(caplog) == sorted(losses)


@contextmanager
def _renamed(directory: Path, *commands: str) -> Iterator[Users]:
    """A server of its own whose commands bear no name any more, also in scripts."""
    renamings = directory / "renamings.conf"
    renamings.write_text("".join(f'rename-command {command} ""\n' for command in commands))
    with closing(Server(own_binary(), directory / "server", config={"include": str(renamings)})) as server:
        yield Users(server.start())


async def test_renamed_commands(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Programs work without optional commands that `rename-command` has removed, and log each loss once."""
    taken = "ACL CLIENT CONFIG DEBUG EVALSHA FLUSHALL FLUSHDB INFO KEYS MONITOR PUBLISH SCAN SCRIPT SUBSCRIBE WAIT"
    with _renamed(tmp_path, *taken.split()) as users:
        await users.life({}).live()
    assert {*_lost(caplog)} == {
        *(Optional.NAME, Optional.INFO, Optional.PUBLISH, Optional.SUBSCRIBE),
        *(Optional.SCRIPTS, Optional.LOAD, Optional.EVALSHA),
    }


async def test_a_needed_command_is_renamed(tmp_path: Path) -> None:
    """One line of the manager says it at its start, though a script calls the command."""
    with (
        _renamed(tmp_path, "XACK") as users,
        pytest.raises(AccessDenied, match="a manager needs XACK"),
    ):
        await users.life({}).live(patience_s=2)


async def test_a_server_that_does_not_wait_is_asked_seldom(users: Users, caplog: pytest.LogCaptureFixture) -> None:
    """Ten times a second, not as often as it answers."""
    async with refusing(users.server.port, waits=False) as proxy, AsyncExitStack() as stack:
        life = users.life({RoleName.CONSUMER: proxy.url})
        await life.live()
        asked = proxy.reads
        consumer = await stack.enter_async_context(life.consumer())
        assert await consumer.read(wait=2) == []
        assert proxy.reads - asked <= 25
    assert _lost(caplog) == [Optional.BLOCK]


def test_the_table_of_the_documentation() -> None:
    """It says of each command what the matrix shows."""
    page = PAGE.read_text("utf-8")
    for table in (_commands(), _losses()):
        assert table in page, f"the table must be:\n{table}"


def _commands() -> str:
    lines = ["| command | producer | consumer | manager |", "| --- | --- | --- | --- |"]
    for command in COMMANDS:
        cells = [_cell(role, command) for role in ROLES]
        lines.append(f"| `{command.replace('|', ' ').upper()}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _losses() -> str:
    rows = [f"| `{each}` | {loss.loss} | {loss.remedy(each)} |" for each, loss in LOSSES.items()]
    return "\n".join(["| without | what is lost | what to do |", "| --- | --- | --- |", *rows])


def _cell(role: RoleName, command: str) -> str:
    if command not in commands_of(role):
        return ""
    outcome = "loses" if command in OPTIONAL else _expected(role, command)
    return {"needs": "**needed**", "loses": "loss", "works in part": "some calls"}.get(outcome, "not missed")
