"""Replies to sends of a gateway that are lost."""

from collections.abc import Callable

import httpx
import pytest

from lisa_gateway import GatewaySettings, app, lifespan
from lisa_gateway.gateway import Gateway
from support import Server
from support.proxy import Proxy


@pytest.mark.parametrize("given", [{"msgId": "order-7"}, {}], ids=["named", "without an id"])
@pytest.mark.parametrize("ack", ["true", "false"])
async def test_a_message_that_ends_before_the_reply_is_sent_once(
    own_server: Callable[..., Server], prefix: str, given: dict[str, str], ack: str
) -> None:
    """The reply to its send is lost, and it was acked, or has died, before the send is repeated."""
    async with Proxy(own_server().port) as proxy:
        application = app(GatewaySettings.load(redis_url=proxy.url, prefix=prefix))
        gateway: Gateway = application.state.gateway
        transport, handled = httpx.ASGITransport(application), list[str]()
        url = "http://localhost/camellia/delayQueue"
        async with lifespan(application), httpx.AsyncClient(transport=transport, base_url=url) as http:

            async def handle() -> None:
                for message in (await http.post("/pullMsg", params={"topic": "orders"})).json()["delayMsgList"]:
                    handled.append(message["msg"])
                    ended = {"topic": "orders", "msgId": message["msgId"], "ack": ack}
                    await http.post("/ackMsg", params=ended)

            await handle()
            await gateway.producer.send("mails", b"so that the script is loaded")
            proxy.lose_reply_to(b"a body to find")
            proxy.at_loss = handle
            sent = {"topic": "orders", "msg": "a body to find", "delayMillis": "0", "maxRetry": "0"} | given
            answer = (await http.post("/sendMsg", params=sent)).json()
            await handle()
        assert (answer["code"], proxy.lost, handled) == (200, 1, ["a body to find"])
