"""Groups that a gateway serves: callers may make names up, and each group has connections of its own."""

import asyncio

import pytest
import redis

from lisa_gateway import gateway as module
from lisa_gateway.gateway import Gateway
from lisa_gateway.settings import GatewaySettings
from support.waiting import wait_until_async
from support.wire import Wire


async def test_groups_take_up_a_bounded_number_of_connections(
    redis_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least recently used goes first; later all go that are not used, but the group of the settings."""
    settings = GatewaySettings.load(redis_url=redis_url, prefix=prefix)
    gateway = Gateway(settings)
    monkeypatch.setattr(module, "_MAX_GROUPS", 3)

    def connections() -> int:
        with redis.Redis.from_url(redis_url) as client:
            return sum(each["name"].startswith("lisa-lender") for each in client.client_list())

    try:
        before = connections()
        for group in (settings.group, "a", "b", "a", "c", "d"):
            await gateway.desk(group).polls.pull("orders", 1, 1, by_id=False)
        assert list(gateway._desks) == ["a", "c", "d"]
        await wait_until_async(lambda: connections() - before <= 3, 10, what="the connections of others are closed")
        gateway.desk()
        monkeypatch.setattr(module, "_IDLE_S", 0.0)
        gateway._close_idle()
        assert list(gateway._desks) == [settings.group]
        await asyncio.gather(*gateway._closing)
        await wait_until_async(lambda: connections() <= before, 10, what="all connections are closed")
    finally:
        await gateway.close()


def test_a_read_makes_no_other_group(wire: Wire, topic: str) -> None:
    """Nobody pulls in the group of the settings: it would keep the messages of this topic for ever."""
    for call in ("pullMsg", "longPollingMsg"):
        assert wire.post(call, topic=topic, group="audit", longPollingTimeoutMillis=1).code == 200
    reply = wire.request("POST", f"/v1/topics/{topic}/groups/billing/read")
    assert reply.status == 200
    groups = wire.request("GET", f"/v1/topics/{topic}/groups").content["groups"]
    assert {group["group"] for group in groups} == {"audit", "billing"}
