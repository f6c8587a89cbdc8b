"""Messages that were read for a client that is gone before its answer is sent."""

import asyncio
from typing import Any

import pytest

from lisa_gateway import GatewaySettings, app, lifespan
from lisa_gateway.gateway import Gateway
from lisa_gateway.handover import Handover
from lisa_gateway.polls import Poller

_GROUP = "billing"


class _Client:
    """What a server says of a client that may hang up."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        """Waits until the client hangs up."""
        await self.gone.wait()
        return {"type": "http.disconnect"}


def _handover(gateway: Gateway, client: _Client) -> Handover:
    poller = Poller("orders", 10, 60.0, by_id=False)
    return Handover(gateway.desk(_GROUP).polls, poller, client.receive)


async def _fail_to_watch() -> dict[str, Any]:
    raise ZeroDivisionError


async def _fail(handover: Handover, wait_s: float) -> None:
    async with handover:
        assert [each.attempt for each in await handover.read(wait_s)] == [1]
        raise ZeroDivisionError


@pytest.mark.parametrize("wait_s", [0.0, 20.0])
async def test_messages_of_a_client_that_is_gone_come_again(redis_url: str, prefix: str, wait_s: float) -> None:
    """At once, and with no attempt spent; also where making the answer fails."""
    application = app(GatewaySettings(redis_url=redis_url, prefix=prefix))
    gateway: Gateway = application.state.gateway
    async with lifespan(application):
        await gateway.admin.create_topic("orders")
        await gateway.admin.create_group("orders", _GROUP)
        await gateway.producer.send("orders", "a", id="order-7")
        client = _Client()
        async with _handover(gateway, client) as handover:
            assert len(await handover.read(wait_s)) == 1
            client.gone.set()
        assert not await handover.claim()
        with pytest.raises(ZeroDivisionError):
            await _fail(_handover(gateway, _Client()), wait_s)
        async with _handover(gateway, _Client()) as handover:
            assert [each.attempt for each in await handover.read(wait_s)] == [1]
        claiming = asyncio.create_task(handover.claim())
        asyncio.get_running_loop().call_soon(claiming.cancel)
        await asyncio.wait((claiming,))
        assert claiming.cancelled()
        async with _handover(gateway, _Client()) as handover:
            assert [each.attempt for each in await handover.read(wait_s)] == [1]
        assert await handover.claim()
        poller = Poller("orders", 10, 60.0, by_id=False)
        async with Handover(gateway.desk(_GROUP).polls, poller, _fail_to_watch) as handover:
            assert not await handover.read(0)
        assert await handover.claim(), "a watch that failed does not say that the client is gone"
        assert not gateway.desk(_GROUP).polls.is_busy
        found = await gateway.producer.find("orders", "order-7")
        assert found
        assert found.state == "delivered"
