"""`embedded://PATH`: a server for development, in a directory, shared by the processes that use it.

Whoever connects makes sure that a keeper runs, which runs the server (`embedded`). Locks on files decide,
as the kernel drops them with the process that has them:

- users.lock: each process that has connected shares it, until it ends. Whom it falls to alone, the keeper, ends.
- start.lock: one process at a time looks whether there is a keeper, and starts one.
- keeper.lock: the keeper's, while it lives.
"""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import redis
import redis.asyncio
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

__all__ = ["KEEPER", "SOCKET", "USERS", "AsyncEmbeddedConnection", "EmbeddedConnection", "is_answered", "lock"]

SOCKET, USERS, KEEPER = "valkey.sock", "users.lock", "keeper.lock"
_START, _LOG = "start.lock", "keeper.log"
_PATIENCE_S = 20.0

_here = threading.Lock()
_used: dict[Path, int] = {}
"""Directories that this process uses, and the files that say so, which are open until it ends."""
_started: list["subprocess.Popen[bytes]"] = []
"""Keepers that this process has started; they may outlive it."""


class EmbeddedConnection(redis.UnixDomainSocketConnection):
    """A blocking connection to the server of a directory, which is started if it does not run."""

    def _connect(self) -> socket.socket:
        _use(Path(self.path).parent)
        connected: socket.socket = super()._connect()  # type: ignore[no-untyped-call]
        return connected


class AsyncEmbeddedConnection(redis.asyncio.UnixDomainSocketConnection):
    """The asyncio twin of `EmbeddedConnection`."""

    async def _connect(self) -> None:
        await asyncio.to_thread(_use, Path(self.path).parent)
        await super()._connect()  # type: ignore[no-untyped-call]


def _use(directory: Path) -> None:
    try:
        with _here:
            directory.mkdir(0o700, parents=True, exist_ok=True)
            if directory not in _used:
                # A keeper that ends holds it alone until its server has ended.
                _used[directory] = lock(directory / USERS, shared=True)
            starting = lock(directory / _START)
            try:
                if not _has_keeper(directory):
                    _start_keeper(directory)
            finally:
                os.close(starting)
    except OSError as error:
        raise redis.exceptions.ConnectionError(f"Error connecting to the server in {directory}: {error}") from error


def _has_keeper(directory: Path) -> bool:
    try:
        os.close(lock(directory / KEEPER, shared=True, wait=False))
    except BlockingIOError:
        return True
    return False


def _start_keeper(directory: Path) -> None:
    """Returns once the server answers; raises OSError when it does not."""
    if is_answered(directory / SOCKET):
        # Its keeper was killed.
        with redis.Redis(unix_socket_path=str(directory / SOCKET), retry=Retry(NoBackoff(), 0)) as left:
            left.shutdown()
    with os.fdopen(os.open(directory / _LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        # In a session of its own: Ctrl-C must not end it before those who use it.
        keeper = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", "lisa_common.client.embedded.server", str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _started.append(keeper)
    deadline = time.monotonic() + _PATIENCE_S
    while not is_answered(directory / SOCKET):
        if keeper.poll() is not None or time.monotonic() > deadline:
            raise OSError(f"it does not start; {_LOG} and valkey.log there say why")
        time.sleep(0.01)


def is_answered(path: Path) -> bool:
    """Whether a server on this socket answers PING with PONG, which it does not while it loads."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(str(path))
            asking.sendall(b"PING\r\n")
            return asking.recv(7) == b"+PONG\r\n"
        except OSError:
            return False


def lock(path: Path, *, shared: bool = False, wait: bool = True) -> int:
    """Locks a file, which is made if need be, until what is returned is closed, or the process ends.

    Raises BlockingIOError when another has it, and it is not to be waited for.
    """
    # Not with the others: the schemes that lock nothing are for systems, too, that do not have it.
    import fcntl  # noqa: PLC0415

    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(file)
        raise
    return file
