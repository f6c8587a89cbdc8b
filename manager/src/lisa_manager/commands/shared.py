"""What the operator's commands share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

import typer

from lisa_common.cli import with_settings
from lisa_common.client.connection import Connection
from lisa_common.protocol.call import Flow
from lisa_manager.settings import ManagerSettings

__all__ = ["TopicName", "admin_command", "ask", "connected"]

T = TypeVar("T")

admin_command = with_settings(ManagerSettings, shared_only=True)
"""Makes a function an operator's command: it needs to know the server, and not how a daemon is tuned."""

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)]


@contextmanager
def connected(settings: ManagerSettings) -> Iterator[Connection]:
    """A connection without patience: an operator wants to know at once that there is no server."""
    with Connection.of(settings, name="lisa-operator") as connection:
        yield connection


def ask(settings: ManagerSettings, flow: Flow[T]) -> T:
    """The result of one flow."""
    with connected(settings) as connection:
        return connection.run(flow)
