"""A server that is full."""

from collections.abc import Callable

import httpx

from lisa_gateway import GatewaySettings, app, lifespan
from support import Server


async def test_a_delete_makes_room(own_server: Callable[..., Server]) -> None:
    """A full server refuses the note on the message, not its end."""
    server = own_server(maxmemory_policy="noeviction")
    application = app(GatewaySettings.load(redis_url=server.url, patience_s=0))
    transport, url = httpx.ASGITransport(application), "http://localhost/camellia/delayQueue"
    sent = {"topic": "orders", "msg": "a", "delayMillis": "60000", "msgId": "order-7"}
    async with lifespan(application), httpx.AsyncClient(transport=transport, base_url=url) as http:
        await http.post("/sendMsg", params=sent)
        with server.client() as raw:
            raw.config_set("maxmemory", 1)
            assert (await http.post("/sendMsg", params=sent | {"msgId": "order-8"})).json()["code"] == 500
            assert (await http.post("/deleteMsg", params=sent)).json() == {"code": 200, "msg": "success"}
            raw.config_set("maxmemory", 0)
        assert (await http.post("/getMsg", params=sent)).json()["code"] == 404
