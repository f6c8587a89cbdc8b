"""Ready and delivered messages of a shard, page by page, without Spark."""

from collections.abc import Sequence

import pytest
import redis

from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol.producing import State
from lisa_producer.spark.ready_messages import EntrySpan, list_entries, read_groups
from support import count_calls
from support.queue import Queue

COUNT = 60


def _delivered(queue: Queue) -> list[str]:
    part = queue.connection.run(read_groups(queue.keys, EntrySpan(State.DELIVERED, "0-0", "+")))[0]
    listed: list[str] = []
    after = part.after
    while True:
        rows, last = queue.connection.run(list_entries("orders", part, after))
        listed += [row.id for row in rows]
        if last is None:
            return listed
        after = last


@pytest.mark.parametrize("kept", [range(COUNT), range(0, COUNT, 2), (0, 1, COUNT - 1), (COUNT - 1,)])
def test_delivered_messages_are_listed_however_far_apart(
    redis_url: str, prefix: str, client: redis.Redis, kept: Sequence[int]
) -> None:
    """This group has acked some, another one keeps all entries. Those that follow each other are read together."""
    with Connection(redis_url) as connection:
        queue = Queue(connection, ShardKeys(prefix, "orders"))
        queue.join("g", "other")
        ids = [f"m{number:02}" for number in range(COUNT)]
        for id in ids:
            queue.send(id)
        deliveries = queue.read("g", limit=COUNT)
        if done := [each for number, each in enumerate(deliveries) if number not in kept]:
            queue.ack(*done)
        client.config_resetstat()
        assert _delivered(queue) == [ids[number] for number in kept]
        assert count_calls(client, "xrange") <= 2


@pytest.mark.parametrize("state", [State.READY, State.DELIVERED])
def test_a_topic_in_which_nothing_was_ready_yet(redis_url: str, prefix: str, state: State) -> None:
    """It has no stream, and no rows."""
    with Connection(redis_url) as connection:
        parts = connection.run(read_groups(ShardKeys(prefix, "orders"), EntrySpan(state, "0-0", "+")))
        rows = [row for part in parts for row in connection.run(list_entries("orders", part, part.after))[0]]
    assert rows == []


@pytest.mark.parametrize("state", [State.READY, State.DELIVERED])
def test_records_that_cannot_be_read(redis_url: str, prefix: str, client: redis.Redis, state: State) -> None:
    """The read fails: rows that are missing look like messages that are not there."""
    with Connection(redis_url) as connection:
        queue = Queue(connection, ShardKeys(prefix, "orders"))
        queue.join("g")
        queue.send("a")
        queue.send("b")
        assert queue.read("g", limit=1)
        client.delete(queue.keys.of("messages"))
        client.set(queue.keys.of("messages"), "x")
        [part] = connection.run(read_groups(queue.keys, EntrySpan(state, "0-0", "+")))
        with pytest.raises(LisaError, match="cannot fetch 1 messages of orders: WRONGTYPE"):
            connection.run(list_entries("orders", part, part.after))
