"""Debian's RabbitMQ, on a port and in a directory of its own."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.peers.environments import broker_command
from support.waiting import wait_until

__all__ = ["running_rabbitmq"]


@contextmanager
def running_rabbitmq(port: int, directory: Path) -> Iterator[str]:
    """Runs the server until the block ends, and gives its URL; skips the test where it is not installed."""
    command, environment = broker_command("rabbitmq-server", port, directory)
    if not Path(command[-1].rpartition("exec ")[2]).exists():
        pytest.skip("Debian's rabbitmq-server is not installed")
    with (directory / "rabbitmq.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)
    try:
        wait_until(lambda: _speaks_amqp(port), 60, what="RabbitMQ answers")
        yield f"amqp://guest:guest@127.0.0.1:{port}//"
    finally:
        # The command makes a session, so that the port mapper ends with it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def _speaks_amqp(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"AMQP\0\0\x09\1")
        return bool(connection.recv(1))
    return False
