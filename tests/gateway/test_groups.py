"""Groups that a gateway serves: callers may make names up, and each group has connections of its own."""

import asyncio
from typing import Any

import httpx
import pytest
import redis

from lisa_gateway import app, gateway as module, lifespan
from lisa_gateway.gateway import Gateway
from lisa_gateway.handover import Handover
from lisa_gateway.polls import Poller
from lisa_gateway.problems import Busy
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
        assert list(gateway._desks) == [settings.group, "a", "c", "d"]
        await wait_until_async(lambda: connections() - before <= 4, what="the connections of others are closed")
        monkeypatch.setattr(module, "_IDLE_S", 0.0)
        gateway._close_idle()
        assert list(gateway._desks) == [settings.group]
        await asyncio.gather(*gateway._closing)
        await wait_until_async(lambda: connections() <= before + 1, what="the connections of others are closed")
    finally:
        await gateway.close()


async def test_acks_of_more_groups_than_are_served_at_once(
    redis_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ends its message: acks need no connections of their groups, so that none is closed under them."""
    monkeypatch.setattr(module, "_MAX_GROUPS", 3)
    application = app(GatewaySettings.load(redis_url=redis_url, prefix=prefix))
    groups = [f"g{number}" for number in range(40)]
    client = httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://localhost", timeout=30)
    async with lifespan(application), client as http:

        async def call(name: str, **data: object) -> dict[str, Any]:
            answer = await http.post(f"/camellia/delayQueue/{name}", data={"topic": "orders"} | data)
            assert answer.status_code == 200, (name, data, answer.text)
            content: dict[str, Any] = answer.json()
            return content

        await http.put("/v1/topics/orders")
        for group in groups:
            await http.put(f"/v1/topics/orders/groups/{group}")
        await call("sendMsg", msg="x", delayMillis=0, msgId="m")
        for group in groups:
            assert len((await call("longPollingMsg", group=group, ackTimeoutMillis=60_000))["delayMsgList"]) == 1
        answers = await asyncio.gather(*(call("ackMsg", msgId="m", group=group) for group in groups))
        assert [answer["code"] for answer in answers] == [200] * len(groups)
        copies = (await http.get("/v1/topics/orders/messages/m")).json()["copies"]
        assert {copy["group"] for copy in copies}.isdisjoint(groups)


async def test_what_a_read_still_uses_stays_open(redis_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its answer is sent or its messages are released, however many other groups are asked for meanwhile."""
    monkeypatch.setattr(module, "_MAX_GROUPS", 1)
    gateway = Gateway(GatewaySettings.load(redis_url=redis_url, prefix=prefix))
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    try:
        await gateway.admin.create_topic("orders")
        await gateway.admin.create_group("orders", "a")
        await gateway.producer.send("orders", "x", id="m")
        async with Handover(gateway.desk("a").polls, Poller("orders", 1, 60.0, by_id=False), receive) as handover:
            assert len(await handover.read(20)) == 1
            with pytest.raises(Busy):
                gateway.desk("b")
        gone.set()
        assert not await handover.claim()
        gateway.desk("b")
        found = await gateway.producer.find("orders", "m")
        assert found
        assert found.state == "ready"
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
