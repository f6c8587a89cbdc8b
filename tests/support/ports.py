"""Ports of the loopback interface for servers that go down and come back."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["reserved_port"]


@contextmanager
def reserved_port() -> Iterator[int]:
    """Keeps a port of 127.0.0.1 until the block ends: nobody else is given it, also while no server listens at it.

    Linux lets a server listen there meanwhile if it sets SO_REUSEADDR, as servers do.
    """
    # Below the range from which the kernel takes ports for clients: one of those could take the port while its server
    # is down, or, polling for the server, even connect to itself.
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as holder:
            try:
                holder.bind(("127.0.0.1", port))
            except OSError:
                continue
            # Not before: with it, two could hold the same port.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            yield port
        return
