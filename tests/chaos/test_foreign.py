"""Raw garbage in the keys that programs read: said once, set aside or skipped; never a loop, never a crash."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_consumer import Delivery
from lisa_producer import AsyncProducer, ProducerSettings
from support import idle_async, wait_until_async
from support.running import Handled, managed, new_worker, working

_PAST, _BAD = 1_000_000_000_000, b"\xff\xfe garbage"


def _foreign_entries(client: Any, keys: ShardKeys) -> None:
    for fields in (
        {"foreign": "entry"},
        {"id": "nobody"},
        {"id": "nobody", "due": "x", "n": "y"},
        {"id": _BAD, "due": "1", "n": "1"},
        {"id": "nobody", "due": "1", "n": "1", "g": "other"},
        {"id": "nobody", "due": "99999999999999999999", "n": "-1", "at": "never"},
    ):
        client.xadd(keys.of("ready"), fields)


def _unknown_records(client: Any, keys: ShardKeys) -> None:
    for number, record in enumerate((b"", b"\x01", b"\x02" + bytes(40), b"\x01" + b"\xff" * 13, _BAD)):
        client.hset(keys.of("messages"), f"bad{number}", record)
        client.xadd(keys.of("ready"), {"id": f"bad{number}", "due": _PAST, "n": 1})
        client.zadd(keys.of("expiring"), {f"bad{number}": _PAST})


def _unknown_waiting(client: Any, keys: ShardKeys) -> None:
    client.hset(keys.of("messages"), "bad", b"\x07 of a later release")
    client.zadd(keys.of("waiting"), {"bad": _PAST, "nobody": _PAST, _BAD: _PAST, "": _PAST})
    client.zadd(keys.of("expiring"), {"nobody": _PAST, _BAD: _PAST, "": _PAST})
    client.zadd(keys.of("finished"), {_BAD: _PAST, "": _PAST})


def _foreign_retries(client: Any, keys: ShardKeys) -> None:
    client.zadd(keys.of("retry"), {"noslash": _PAST, "/": _PAST, "nogroup/m": _PAST, _BAD: _PAST, "": _PAST})
    client.hset(keys.of("failures"), mapping={"noslash": "x", "nogroup/m": b"\xff", "billing/m": "1 2 3"})


def _foreign_garbage(client: Any, keys: ShardKeys) -> None:
    client.zadd(keys.of("garbage"), {"noslash": 1, "nogroup/m": 2, _BAD: 3, "": 4})
    client.hset(keys.of("owed"), mapping={"nobody": ",,,", _BAD: _BAD, "": ""})


def _broken_policy(client: Any, keys: ShardKeys) -> None:
    client.hset(topics_key(keys.prefix), keys.topic, b'{"max_retries": "many"')
    client.hset(topics_key(keys.prefix), b"no topic \xff", b"[]")


@pytest.mark.parametrize(
    "spoil",
    [_foreign_entries, _unknown_records, _unknown_waiting, _foreign_retries, _foreign_garbage, _broken_policy],
    ids=lambda spoil: spoil.__name__.strip("_"),
)
async def test_garbage_does_not_keep_messages_from_being_handled(
    redis_url: str, client: redis.Redis, prefix: str, spoil: Callable[[Any, ShardKeys], None], caplog: Any
) -> None:
    """Messages sent before and after are all handled, on time, also by retries; and the log does not fill up."""
    keys = ShardKeys(prefix, "orders")
    policy = Policy(visibility_ms=500, backoff="fixed", backoff_base_ms=50)
    client.hset(topics_key(prefix), "orders", policy.dump())
    handled = Handled()
    worker = new_worker(redis_url, prefix)

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None:
        handled.append(delivery)
        if delivery.attempt == 1:
            raise RuntimeError("once")

    async with AsyncProducer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as sender:
        await sender.send("orders", b"x", id="before", delay=0.3)
        spoil(client, keys)
        async with managed(redis_url, prefix), working(worker):
            for number in range(5):
                await sender.send("orders", b"x", id=f"m{number}", delay=number / 20)
            wanted = sorted(["before", *(f"m{number}" for number in range(5))] * 2)
            await wait_until_async(lambda: sorted(handled.ids) == wanted, what=f"{wanted}")
            said = len(caplog.records)
            await idle_async(1)
    told = [f"{record.name}: {record.getMessage()}" for record in caplog.records[said:] if record.levelno > 20]
    assert len(told) < 10, told
    assert sorted(handled.ids) == wanted
