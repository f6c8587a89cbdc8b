"""A server that is full."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx

from lisa_gateway import GatewaySettings, app, lifespan
from support import Server


@asynccontextmanager
async def _camellia(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    application = app(GatewaySettings.load(redis_url=server.url, patience_s=0))
    transport, url = httpx.ASGITransport(application), "http://localhost/camellia/delayQueue"
    async with lifespan(application), httpx.AsyncClient(transport=transport, base_url=url) as http:
        yield http


async def test_pulls_and_acks_make_room(own_server: Callable[..., Server]) -> None:
    """A full server lends what clients end by its id, to a gateway that begins only then, too."""
    server = own_server(maxmemory_policy="noeviction")
    sent = {"topic": "orders", "msg": "a", "delayMillis": "0"}
    async with _camellia(server) as http:
        await http.post("/pullMsg", params=sent)
        for id in ("order-7", "order-8"):
            await http.post("/sendMsg", params=sent | {"msgId": id})
    with server.client() as raw:
        raw.config_set("maxmemory", 1)
    async with _camellia(server) as http:
        for call in ("pullMsg", "longPollingMsg"):
            pulled = (await http.post(f"/{call}", params=sent)).json()
            assert (pulled["code"], len(pulled["delayMsgList"])) == (200, 1), pulled
            ended = {"topic": "orders", "msgId": pulled["delayMsgList"][0]["msgId"]}
            assert (await http.post("/ackMsg", params=ended)).json()["code"] == 200
        assert (await http.post("/pullMsg", params=sent)).json()["delayMsgList"] == []


async def test_a_delete_makes_room(own_server: Callable[..., Server]) -> None:
    """A full server refuses the note on the message, not its end."""
    server = own_server(maxmemory_policy="noeviction")
    sent = {"topic": "orders", "msg": "a", "delayMillis": "60000", "msgId": "order-7"}
    async with _camellia(server) as http:
        await http.post("/sendMsg", params=sent)
        with server.client() as raw:
            raw.config_set("maxmemory", 1)
            assert (await http.post("/sendMsg", params=sent | {"msgId": "order-8"})).json()["code"] == 500
            assert (await http.post("/deleteMsg", params=sent)).json() == {"code": 200, "msg": "success"}
            raw.config_set("maxmemory", 0)
        assert (await http.post("/getMsg", params=sent)).json()["code"] == 404
