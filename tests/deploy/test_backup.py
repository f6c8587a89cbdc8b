"""Back-up and restore, and the size of waiting messages, as docs/deploy.md describes them."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import redis

from lisa_consumer import Consumer
from lisa_manager import Admin
from lisa_producer import Message, Producer
from support import Server, wait_until
from support.commands import Commands


def test_a_snapshot_comes_back(own_server: Callable[..., Server]) -> None:
    """Waiting, delivered and dead messages are there again, later ones are not, and the audit is clean."""
    server = own_server()
    with Producer(server.url) as producer, Consumer("orders", "billing", url=server.url) as consumer:
        producer.send("orders", "waits", id="waiting", delay=3_600)
        producer.send("orders", "is read", id="delivered")
        producer.send("orders", "is rejected", id="dead")
        read = {delivery.id: delivery for delivery in consumer.read(wait=5)}
        consumer.reject(read["dead"], error="no such order")
        _save(server)
        consumer.ack(read["delivered"])
        producer.send("orders", "too late", id="forgotten")
    server.stop()
    restored = own_server(appendonly="no")
    restored.stop()
    shutil.copy(server.directory / "dump.rdb", restored.directory)
    restored.start()
    with restored.client() as client:
        client.config_set("appendonly", "yes")
        wait_until(lambda: _is_written(client), 30, what="the append-only file")
    restored.config["appendonly"] = "yes"
    restored.restart()
    checked = Commands(restored.url, "lisa").manager("check")
    assert checked.code == 0, checked.out
    with Producer(restored.url) as producer, Admin(restored.url) as admin:
        found = {id: _state(producer, id) for id in ("waiting", "delivered", "dead", "forgotten")}
        assert found == {"waiting": "waiting", "delivered": "delivered", "dead": "garbage", "forgotten": None}
        again = producer.send("orders", "waits", id="waiting", delay=3_600)
        assert again.outcome == "duplicate"
        assert admin.replay("orders", ["dead"]).done == 1
    with Consumer("orders", "billing", url=restored.url) as consumer:
        assert [delivery.body for delivery in consumer.read(wait=30)] == [b"is rejected"]


def _save(server: Server) -> None:
    with server.client() as client:
        client.bgsave()
        wait_until(lambda: not client.info("persistence")["rdb_bgsave_in_progress"], 30, what="the snapshot")
        assert client.info("persistence")["rdb_last_bgsave_status"] == "ok"


def _is_written(client: redis.Redis) -> bool:
    now = client.info("persistence")
    return not now["aof_rewrite_in_progress"] and not now["aof_rewrite_scheduled"] and bool(now["aof_enabled"])


def _state(producer: Producer, id: str) -> Any:
    found = producer.find("orders", id)
    return found and found.state


@pytest.mark.parametrize("body", [200, 1_000])
def test_waiting_messages_take_what_the_page_says(own_server: Callable[..., Server], body: int) -> None:
    """At most 230 bytes, the body and the id; not far less, as servers and the sizes of their tables differ."""
    count = 20_000
    with own_server().client() as client, Producer(f"redis://127.0.0.1:{_port(client)}") as producer:
        producer.send("orders", "x", delay=3_600)
        before = client.info("memory")["used_memory"]
        producer.send_many("orders", [Message(body=b"x" * body, delay=3_600) for _ in range(count)])
        each = (client.info("memory")["used_memory"] - before) / count
    planned = 230 + body + 20
    assert 0.7 * planned < each <= planned


def _port(client: redis.Redis) -> int:
    return int(client.connection_pool.connection_kwargs["port"])
