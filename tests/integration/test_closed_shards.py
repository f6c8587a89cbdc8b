"""Current shards that are closed: the topic gets the layout for which they were."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from lisa_common.client.connection import Connection
from lisa_common.errors import Refused
from lisa_common.model.keys import ShardKeys, dropped_key, topics_key
from lisa_common.model.policy import Policy
from lisa_common.protocol.call import Flow
from lisa_manager import Admin, ManagerSettings
from lisa_manager.resharding import close_former, reshard
from lisa_producer import Producer, ProducerSettings
from support import wait_until_async
from support.running import managed
from support.stepping import interrupted


@pytest.fixture
def admin(redis_url: str, prefix: str) -> Iterator[Admin]:
    """An operator."""
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as opened:
        yield opened


@pytest.fixture
def producer(redis_url: str, prefix: str) -> Iterator[Producer]:
    """A blocking producer that retries nothing."""
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as opened:
        yield opened


@pytest.fixture
def close_late(redis_url: str, prefix: str, client: redis.Redis, admin: Admin) -> Iterator[Callable[..., None]]:
    """Has a program close shards of a topic that was dropped, and made again, while the program was suspended."""
    with Connection(redis_url, name="suspended") as suspended:

        def close(flow: Flow[Any], make_again: Callable[[], object]) -> None:
            def meanwhile() -> None:
                admin.drop_topic("orders", force=True)
                client.delete(dropped_key(prefix))  # as if a minute had passed
                make_again()

            suspended.run(interrupted(flow, "close_shard", meanwhile))

        yield close


def _policy(client: redis.Redis, prefix: str) -> Policy:
    stored: Any = client.hget(topics_key(prefix), "orders")
    return Policy.load(stored)


async def test_a_reshard_that_was_suspended(
    *,
    admin: Admin,
    producer: Producer,
    close_late: Callable[..., None],
    client: redis.Redis,
    prefix: str,
    redis_url: str,
) -> None:
    """A manager brings the topic to the layout of that reshard, and no id is taken twice."""
    admin.create_topic("orders")
    close_late(reshard(prefix, "orders", 2), lambda: producer.send("orders", b"x", id="m1", delay=60))
    with pytest.raises(Refused, match="the registry does not say where"):
        producer.send("orders", b"x", id="m2", delay=60)
    async with managed(redis_url, prefix):
        await wait_until_async(lambda: _policy(client, prefix) == Policy(shards=2, former=(1,)))
    assert producer.send("orders", b"x", id="m2", delay=60).outcome == "sent"
    assert producer.send("orders", b"x", id="m1", delay=60).outcome == "duplicate"


def test_a_manager_that_was_suspended(
    *, admin: Admin, producer: Producer, close_late: Callable[..., None], client: redis.Redis, prefix: str
) -> None:
    """`check` finds what its drainer has closed, and completes the reshard, too."""
    admin.create_topic("orders")
    producer.send("orders", b"x", delay=60)
    admin.reshard("orders", 2)
    close_late(close_former(prefix, "orders"), lambda: admin.create_topic("orders", priority=1))
    [finding] = admin.check("orders").findings
    assert (finding.topic, finding.problem.kind, bool(finding.problem.steps)) == ("orders", "closed", True)
    assert admin.check("orders", repair=True).is_clean
    assert _policy(client, prefix) == Policy(priority=1, shards=2, former=(1,))
    assert producer.send("orders", b"x", delay=60).outcome == "sent"
    assert admin.check("orders").findings == ()


async def test_a_reshard_that_the_server_lost(
    *, admin: Admin, producer: Producer, client: redis.Redis, prefix: str, redis_url: str
) -> None:
    """A fail-over may lose it, after a producer has sent to the new shards: these are served again."""
    admin.create_topic("orders")
    stored: Any = client.hget(topics_key(prefix), "orders")
    admin.reshard("orders", 4)
    producer.send("orders", b"x", id="m1", delay=60)
    client.hset(topics_key(prefix), "orders", stored)
    async with managed(redis_url, prefix):
        await wait_until_async(lambda: _policy(client, prefix) == Policy(shards=4, former=(1,)))
    assert admin.find("orders", "m1") is not None


@pytest.mark.parametrize(
    ("fields", "closed"),
    [
        pytest.param({"max_in_flight_per_key": 1}, "1,2", id="its limits forbid that layout"),
        pytest.param({}, "1", id="an earlier release closed it"),
        pytest.param({}, "2,4", id="for another layout"),
        pytest.param({}, "1,x,,99999999", id="damaged"),
    ],
)
def test_what_says_no_possible_layout_is_reported(
    admin: Admin, client: redis.Redis, prefix: str, fields: dict[str, Any], closed: str
) -> None:
    """And changes nothing, as messages may be in shards that are not known."""
    admin.create_topic("orders", **fields)
    client.set(ShardKeys(prefix, "orders").of("closed"), closed)
    before = _policy(client, prefix)
    report = admin.check("orders", repair=True)
    assert [finding.problem.kind for finding in report.findings] == ["closed"]
    assert not report.is_clean
    assert _policy(client, prefix) == before


async def test_a_manager_logs_that_closed_shards_name_no_possible_layout(
    admin: Admin, client: redis.Redis, prefix: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody but an operator can reshard the topic then."""
    admin.create_topic("orders")
    client.set(ShardKeys(prefix, "orders").of("closed"), "2,4")
    async with managed(redis_url, prefix):
        await wait_until_async(lambda: "shards of orders failed: closed of orders must be a layout" in caplog.text)
