"""Sends that the server stops in the middle of their script."""

from collections.abc import Callable
from typing import Any

import pytest

from lisa_common.errors import AccessDenied, ServerError
from lisa_common.model.keys import ShardKeys
from lisa_manager import Admin
from lisa_producer import Message, PartialSend, Producer, SendOutcome
from support import Server

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
