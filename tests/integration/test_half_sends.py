"""Sends, and changes of messages, that the server stops in the middle of their script."""

from collections.abc import Callable
from typing import Any

import pytest

from lisa_common.client.connection import Connection
from lisa_common.errors import AccessDenied, ServerError
from lisa_common.model.keys import ShardKeys
from lisa_common.protocol import producing
from lisa_manager import Admin
from lisa_producer import Message, PartialSend, Producer, SendOutcome
from support import Server
from support.queue import Queue, outgoing

_UNUSED = {("replace", "xack"), *((name, lacks) for name in ("reschedule", "update") for lacks in ("xadd", "xack"))}
_LATER, _NOW, _LIMITED = {"delay": 60}, {"delay": 0}, {"delay": 0, "ttl": 60}


@pytest.mark.parametrize(
    ("lacks", "limits"), [("zadd", _LATER), ("xadd", _NOW), ("zadd", _LIMITED)], ids=["waiting", "ready", "expiring"]
)
def test_a_user_who_lacks_a_right_leaves_no_part_of_a_message(
    own_server: Callable[..., Server], lacks: str, limits: dict[str, Any]
) -> None:
    """Once the user has it, the same sends are new: of one message, and of several."""
    server = own_server()
    with Producer(server.url) as producer, server.client() as client:
        several = [Message(body=b"x", id=id, **limits) for id in ("b", "c")]
        client.execute_command("ACL", "SETUSER", "default", f"-{lacks}")
        with pytest.raises(AccessDenied, match="script"):
            producer.send("orders", "x", id="a", **limits)
        with pytest.raises(PartialSend, match="script"):
            producer.send_many("orders", several)
        assert producer.find("orders", "a") is None
        client.execute_command("ACL", "SETUSER", "default", f"+{lacks}")
        assert producer.send("orders", "x", id="a", **limits).outcome is SendOutcome.SENT
        assert [each.outcome for each in producer.send_many("orders", several).results] == [SendOutcome.SENT] * 2


def test_a_send_to_several_groups_that_is_denied_leaves_nothing(own_server: Callable[..., Server]) -> None:
    """Not the names of the groups, either."""
    server = own_server()
    with Producer(server.url) as producer, Admin(server.url) as admin, server.client() as client:
        admin.create_topic("orders")
        for group in ("g", "h"):
            admin.create_group("orders", group)
        client.execute_command("ACL", "SETUSER", "default", "-xadd")
        with pytest.raises(AccessDenied, match="script"):
            producer.send("orders", "x", id="a")
        assert client.hlen(ShardKeys("lisa", "orders").of("owed")) == 0


def test_a_user_who_lacks_a_right_changes_no_part_of_a_message(own_server: Callable[..., Server]) -> None:
    """Whichever write of the script is denied, nothing is written before."""
    server, keys = own_server(), ShardKeys("lisa", "orders")
    with Connection(server.url) as connection, server.client() as client:
        queue = Queue(connection, keys)
        queue.join("g")
        queue.send("a")
        [delivery] = queue.read("g")
        queue.send("b", due="+9000", ttl_ms=50)
        update = producing.update(keys, [outgoing("b", due="+5")], now_ms=queue.now_ms)
        calls: dict[str, Callable[[], object]] = {
            "follow": lambda: queue.follow(delivery, outgoing("a", due="+5", body=b"next")),
            "replace": lambda: queue.replace("b", due="+0", body=b"new"),
            "reschedule": lambda: queue.reschedule(("b", "+5")),
            "update": lambda: connection.call(update),
        }
        before = queue.contents()
        for lacks in ("hset", "hdel", "zadd", "zrem", "xadd", "xack"):
            client.execute_command("ACL", "SETUSER", "default", f"-{lacks}")
            for name, call in calls.items():
                if (name, lacks) in _UNUSED:
                    continue
                with pytest.raises(AccessDenied, match="script"):
                    call()
            client.execute_command("ACL", "SETUSER", "default", f"+{lacks}")
            assert queue.contents() == before, lacks
        assert calls["follow"]() == "acked"


def test_a_key_of_another_type_leaves_no_part_of_a_message(own_server: Callable[..., Server]) -> None:
    """As an operator's mistake may leave it."""
    server = own_server()
    waiting = ShardKeys("lisa", "orders").of("waiting")
    with Producer(server.url) as producer, server.client() as client:
        client.set(waiting, "x")
        with pytest.raises(ServerError, match=r"^WRONGTYPE"):
            producer.send("orders", "x", id="a", delay=60)
        client.delete(waiting)
        assert producer.send("orders", "x", id="a", delay=60).outcome is SendOutcome.SENT
