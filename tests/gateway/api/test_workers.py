"""Workers over HTTP: a list, a pause and its end, a drain."""

import asyncio
from threading import Thread

import httpx

from lisa_consumer import ConsumerSettings, Delivery, Worker
from support.gateways import Gateways
from support.waiting import wait_until


def test_a_worker_is_listed_paused_resumed_and_drained(gateways: Gateways, http: httpx.Client, topic: str) -> None:
    """By its name; what is asked shows at once, and is done soon."""
    settings = ConsumerSettings(redis_url=gateways.url, prefix=gateways.prefix, release="7", block_s=0.1)
    worker = Worker("billing", name=topic, settings=settings)

    @worker.on(topic)
    async def handle(_: Delivery) -> None:
        """Does nothing."""

    def status() -> str | None:
        found = http.get("/v1/workers", params={"group": "billing"}).json()["workers"]
        return next((each["status"] for each in found if each["name"] == topic), None)

    thread = Thread(target=lambda: asyncio.run(worker.serve()))
    thread.start()
    wait_until(lambda: status() == "running")
    paused = http.post(f"/v1/workers/{topic}/pause").json()
    assert (paused["release"], paused["wish"], paused["topics"]) == ("7", "pause", [topic])
    wait_until(lambda: status() == "paused")
    assert http.post(f"/v1/workers/{topic}/resume").json() == {"resumed": True}
    assert http.post(f"/v1/workers/{topic}/resume").json() == {"resumed": False}
    wait_until(lambda: status() == "running")
    assert http.post(f"/v1/workers/{topic}/drain").json()["wish"] == "drain"
    thread.join(20)
    assert not thread.is_alive()
    assert status() is None
    gone = http.post(f"/v1/workers/{topic}/pause")
    assert (gone.status_code, gone.json()["type"]) == (404, "urn:lisa:problem:unknown-worker")
