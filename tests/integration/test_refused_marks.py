"""Start marks that a server refuses."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from lisa_common.client.connection import Connection
from lisa_common.model.delivery import Delivery, Entry
from lisa_common.model.keys import ShardKeys
from lisa_consumer.delivery.core import Core
from lisa_producer import Message, Producer, ProducerSettings
from support import Server
from support.holding import read_all


class _LastInherits:
    """The mark of what is settled goes to one delivery, until the server has marked it."""

    heir: Delivery
    is_marked = False

    def choose(self, batches: Sequence[tuple[ShardKeys, list[Entry]]]) -> Mapping[ShardKeys, str]:  # noqa: ARG002
        return {}

    def heirs(self, settled: Sequence[Delivery]) -> list[Delivery]:  # noqa: ARG002
        return [] if self.is_marked else [self.heir]

    def inherit(self, heirs: Sequence[Delivery]) -> None:
        self.is_marked = self.heir in heirs


@pytest.mark.parametrize("refused", [True, False])
def test_a_refused_mark_is_not_set(own_server: Callable[..., Server], prefix: str, *, refused: bool) -> None:
    """The ack passes, and its heir is still to be marked."""
    server, core, marks = own_server(), Core(prefix, "billing"), _LastInherits()
    core.enable_marks(marks)
    with (
        Producer(settings=ProducerSettings(redis_url=server.url, prefix=prefix)) as producer,
        server.client() as client,
        Connection(server.url) as connection,
    ):
        producer.send_many("orders", [Message(body=number, id=f"m{number}") for number in range(2)])
        first, marks.heir = connection.run(read_all(core, ["orders"], limit=2))
        client.execute_command("ACL", "SETUSER", "default", *(["-xclaim"] if refused else []))
        assert connection.run(core.ack([first])) == ["acked"]
    assert marks.is_marked is not refused
