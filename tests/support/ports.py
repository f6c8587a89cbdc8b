"""Ports of the loopback interface for servers that go down and come back."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from lisa_common.client.embedded.server import free_port

__all__ = ["reserved_port"]


@contextmanager
def reserved_port() -> Iterator[int]:
    """Keeps a port of 127.0.0.1 until the block ends: nobody else is given it, also while no server listens at it.

    Linux lets a server listen there meanwhile if it sets SO_REUSEADDR, as servers do.
    """
    while True:
        port = free_port()
        with socket.socket() as holder:
            try:
                holder.bind(("127.0.0.1", port))
            except OSError:
                # Another process was given it, too, and was quicker.
                continue
            # Not before: with it, two could hold the same port.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            yield port
        return
