"""`embedded://PATH`: a server for development, in a directory, shared by the processes that use it.

Each connecting process makes sure that a keeper runs, which runs the server (`server`). They agree by file locks, which
the kernel drops when their process ends:

- users.lock: shared by each connected process until it ends. The keeper exits once nobody else holds it.
- start.lock: held by the one process that checks for a keeper and starts one.
- keeper.lock: held by the keeper while it lives.
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
_PATIENCE_S = 60.0
"""How long a keeper that lives may take to start its server: on a busy machine, half a minute. One that fails exits."""

_lock = threading.Lock()
_used: dict[Path, int] = {}
"""Directories that this process uses, with their locked files, which stay open until it ends."""
_started: list["subprocess.Popen[bytes]"] = []
"""Keepers that this process has started; they may outlive it."""


class EmbeddedConnection(redis.UnixDomainSocketConnection):
    """A blocking connection to the server of a directory; starts the server if needed."""

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
        with _lock:
            directory.mkdir(0o700, parents=True, exist_ok=True)
            if directory not in _used:
                # An exiting keeper holds it exclusively until its server has ended.
                _used[directory] = lock(directory / USERS, shared=True)
            start_lock = lock(directory / _START)
            try:
                if not _has_keeper(directory):
                    _start_keeper(directory)
            finally:
                os.close(start_lock)
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
        with redis.Redis(unix_socket_path=str(directory / SOCKET), retry=Retry(NoBackoff(), 0)) as server:
            server.shutdown()
    with os.fdopen(os.open(directory / _LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        # In a session of its own: Ctrl-C must not end it before its users.
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
        if keeper.poll() is not None:
            raise OSError(f"the server does not start; see {_LOG} and valkey.log there")
        if time.monotonic() > deadline:
            raise OSError(f"the server has not started within {_PATIENCE_S:.0f} s; see {_LOG} and valkey.log there")
        time.sleep(0.01)


def is_answered(path: Path) -> bool:
    """Whether a server on this socket answers PING with PONG; a loading server does not."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
            probe.sendall(b"PING\r\n")
            return probe.recv(7) == b"+PONG\r\n"
        except OSError:
            return False


def lock(path: Path, *, shared: bool = False, wait: bool = True) -> int:
    """Locks a file, created if missing, until the returned descriptor is closed or the process ends.

    Raises BlockingIOError when another process holds it and `wait` is false.
    """
    # Imported here: systems without it can use the other schemes.
    import fcntl  # noqa: PLC0415

    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(file)
        raise
    return file
