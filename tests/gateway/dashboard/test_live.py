"""Live parts: one sampler for all who look; pages while the server is silent; below a path of another application."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from starlette.applications import Starlette
from starlette.routing import Mount

from lisa_gateway import GatewaySettings, app, lifespan
from lisa_producer import Message, Producer, ProducerSettings
from support import Server
from support.gateways import Gateways
from support.pages import Browser
from support.prefix_proxy import below_prefix, served
from support.waiting import wait_until

_LINKS = ("href", "src", "action", "sse-connect", "data-src")


async def _parts(client: httpx.AsyncClient, url: str) -> AsyncIterator[str]:
    async with client.stream("GET", url) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        part: list[str] = []
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                part.append(line.removeprefix("data: "))
            elif not line and part:
                yield "\n".join(part)
                part = []


async def test_a_change_is_seen(base_url: str, producer: Producer, topic: str) -> None:
    """And nothing is sent while nothing changes."""
    await asyncio.to_thread(producer.send, topic, "x", delay=3_600)
    async with httpx.AsyncClient(base_url=f"{base_url}/dashboard/", timeout=30) as client:
        parts = _parts(client, f"live?page=topic&topic={topic}")
        assert "<b>1</b> waiting" in await anext(parts)
        await asyncio.to_thread(producer.send, topic, "x", delay=3_600)
        async with asyncio.timeout(30):
            async for part in parts:
                if "<b>2</b> waiting" in part:
                    break
        await parts.aclose()


@pytest.mark.slow
async def test_a_hundred_viewers_cost_one_sampler(
    base_url: str, producer: Producer, topic: str, client: redis.Redis
) -> None:
    """The server does the same work for one viewer as for a hundred."""
    await asyncio.to_thread(producer.send, topic, "x", delay=3_600)

    def calls() -> int:
        stats = client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("xlen", "hlen"))

    async def see(stream: AsyncIterator[str], count: int) -> None:
        while f"<b>{count}</b> waiting" not in await anext(stream):
            pass

    async def cost(viewers: int, first: int) -> int:
        """Calls until all have seen three messages come."""
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(base_url=f"{base_url}/dashboard/", timeout=60, limits=limits) as http,
            contextlib.AsyncExitStack() as stack,
        ):
            streams = [_parts(http, f"live?page=topic&topic={topic}") for _ in range(viewers)]
            for stream in streams:
                stack.push_async_callback(stream.aclose)
            await asyncio.gather(*(anext(stream) for stream in streams))
            before = calls()
            for count in range(first, first + 3):
                await asyncio.to_thread(producer.send, topic, "x", delay=3_600)
                await asyncio.gather(*(see(stream, count) for stream in streams))
            return calls() - before

    one = await cost(1, 2)
    many = await cost(100, 5)
    assert many < 10 * one, (one, many)


@pytest.mark.slow
def test_pages_of_a_hung_server_show_what_is_known(
    own_server: Callable[..., Server], tmp_path: Path, topic: str
) -> None:
    """Each page is answered in time, with what was known before, and says so; afterwards all goes on by itself."""
    server = own_server()
    gateways = Gateways(server.url, tmp_path)
    try:
        gateways.manager("--history-s", "1")
        _, url = gateways.gateway("--dashboard", "--dashboard-wait-s", "1", "--timeout-s", "2")
        with (
            Producer(settings=ProducerSettings(redis_url=server.url, prefix=gateways.prefix)) as producer,
            httpx.Client(base_url=f"{url}/dashboard/", timeout=30) as client,
        ):
            producer.send(topic, "x", id="a", delay=3_600)
            browser = Browser(client)
            wait_until(lambda: "1 waiting" in browser.get("topic", topic=topic).text, 20)
            server.freeze()
            try:
                silent = wait_until(lambda: (p := browser.get()) and "does not answer" in p.text and p, 20)
                assert topic in silent.text
                for path in ("", f"topic?topic={topic}", f"messages?topic={topic}", "server", "activity", "find?id=a"):
                    began = time.monotonic()
                    page = browser.get(path)
                    assert time.monotonic() - began < 20, path
                    assert page.status in (200, 503, 504), path
                    assert "not answer" in page.text, path
                assert "1 waiting" in browser.get("topic", topic=topic).text
            finally:
                server.thaw()
            wait_until(lambda: "does not answer" not in browser.get().text, 30)
            assert browser.get("message", topic=topic, id="a").status == 200
    finally:
        gateways.close()


def test_mounted_in_another_application(redis_url: str, gateways: Gateways, producer: Producer, topic: str) -> None:
    """With its gateway, below any path; forms, links, static files and live parts work there as well."""
    made = app(GatewaySettings(redis_url=redis_url, prefix=gateways.prefix, dashboard=True))
    outer = Starlette(routes=[Mount("/deep/queue", app=made)], lifespan=lambda _: lifespan(made))
    with served(outer) as url:
        _use_below(f"{url}/deep/queue", producer, topic)


def test_behind_a_proxy_that_cuts_a_prefix(base_url: str, producer: Producer, topic: str) -> None:
    """Links, forms, redirects, static files and live parts stay below the prefix."""
    with below_prefix(base_url, "/tools/queue") as url:
        _use_below(url, producer, topic)


def test_behind_a_proxy_that_keeps_a_prefix(gateways: Gateways, producer: Producer, topic: str) -> None:
    """The same, by the setting `root_path`."""
    url = gateways.gateway("--dashboard", "--root-path", "/tools/queue")[1]
    _use_below(f"{url}/tools/queue", producer, topic)


def _use_below(url: str, producer: Producer, topic: str) -> None:
    producer.send(topic, "x", id="a", delay=3_600)
    with httpx.Client(base_url=url, timeout=30) as client:
        answer = client.get(f"{url}/dashboard")
        assert client.get(f"{url}/{answer.headers['location']}".replace("/queue//", "/queue/")).status_code == 200
        pages = httpx.Client(base_url=f"{url}/dashboard/", timeout=30)
        browser = Browser(pages)
        page = browser.get("message", topic=topic, id="a")
        assert "due now" in browser.send(page, page.form("do-due-now")).text
        for each in (browser.get(), browser.get("topic", topic=topic)):
            assert all(not given.get(name, "").startswith("/") for _, given in each.tags for name in _LINKS)
            for name in [given["src"] for tag, given in each.tags if tag == "script"]:
                assert pages.get(name).status_code == 200
        with pages.stream("GET", "live", params={"page": "topic", "topic": topic}) as stream:
            assert any("waiting" in line for line in stream.iter_lines())
        pages.close()


def test_the_example_of_the_docs(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages are below the path of the gateway."""
    page = (Path(__file__).parents[3] / "docs/dashboard.md").read_text("utf-8")
    monkeypatch.setenv("LISA_REDIS_URL", redis_url)
    monkeypatch.setenv("LISA_PREFIX", "example")
    names: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)  # noqa: S102 - that is the test
    with served(names["app"]) as url:
        assert httpx.get(f"{url}/queue/dashboard/").status_code == 200


@pytest.mark.slow
def test_ten_thousand_topics(own_server: Callable[..., Server], tmp_path: Path) -> None:
    """The first page shows a part of them in time, and a name is found among all."""
    server = own_server()
    gateways = Gateways(server.url, tmp_path)
    try:
        with redis.Redis.from_url(server.url) as client:
            client.hset(f"{gateways.prefix}:topics", mapping={f"topic-{n:05}": "{}" for n in range(10_000)})
        with Producer(settings=ProducerSettings(redis_url=server.url, prefix=gateways.prefix)) as producer:
            producer.send_many("topic-07777", [Message(body="x", delay=3_600)])
        process, url = gateways.gateway("--dashboard")
        with httpx.Client(base_url=f"{url}/dashboard/", timeout=30) as client:
            browser = Browser(client)
            # Seconds of a processor: other programs do not count.
            used_s = process.cpu_s()
            page = browser.get()
            assert process.cpu_s() - used_s < 1
            assert "of 10,000 topics" in page.text
            assert sum(tag == "tr" for tag, _ in page.tags) == 101
            used_s = process.cpu_s()
            assert "topic-07777" in browser.get(q="07777").text
            assert process.cpu_s() - used_s < 1
            assert "1 waiting" in wait_until(
                lambda: (p := browser.get("topic", topic="topic-07777").text) and "1 waiting" in p and p, 60
            )
            assert json.loads(client.get("data", params={"topic": "topic-07777"}).text)["at"] == []
    finally:
        gateways.close()
