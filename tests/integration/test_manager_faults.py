"""A fault in one job, or one topic, is logged once, and ends neither the manager nor the other jobs."""

import logging
from typing import Any

import pytest
import redis

from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_manager.jobs.promoter import Promoter
from lisa_manager.jobs.trimmer import Trimmer
from lisa_manager.problem_log import ProblemLog
from lisa_manager.shard_table import WatchedShard
from lisa_producer import AsyncProducer, ProducerSettings
from support import wait_until_async
from support.commands import Commands
from support.running import managed


async def test_a_fault_is_logged_once_and_ends_nothing(
    *, redis_url: str, client: redis.Redis, prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """In a job that fails in each turn, and in a loop, which restarts."""
    caplog.set_level(logging.ERROR)
    ready, turns = ShardKeys(prefix, "orders").of("ready"), []

    async def fail(*_: Any) -> None:
        turns.append(1)
        raise ZeroDivisionError("of the trimmer")

    look, looks = Promoter._look, []

    async def fail_twice(promoter: Promoter, shards: list[WatchedShard]) -> None:
        looks.append(1)
        if len(looks) <= 2:
            raise ZeroDivisionError("of the promoter")
        await look(promoter, shards)

    monkeypatch.setattr(Trimmer, "turn", fail)
    monkeypatch.setattr(Promoter, "_look", fail_twice)
    settings = ProducerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncProducer(settings=settings) as producer, managed(redis_url, prefix):
        await producer.send("orders", b"x", delay=0.05)
        await wait_until_async(lambda: client.exists(ready) and len(turns) > 5)
    problems = [record.getMessage() for record in caplog.records if record.exc_info]
    assert sorted(problems) == [
        "promote failed: ZeroDivisionError: of the promoter",
        "trim failed: ZeroDivisionError: of the trimmer",
    ]


def test_a_problem_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    """However often it is reported or resolved; another error of the same subject is another problem."""
    caplog.set_level(logging.INFO)
    problems = ProblemLog(logging.getLogger("lisa_manager"))
    for text in ("away", "away", "full"):
        problems.report("sweep of orders", LisaError(text))
    problems.resolve("trim of orders")
    for _ in range(2):
        problems.resolve("sweep of orders")
    lines = ["sweep of orders failed: away", "sweep of orders failed: full", "sweep of orders recovered"]
    assert [record.getMessage() for record in caplog.records] == lines
    assert not problems


def test_numbers_beyond_json(redis_url: str, client: redis.Redis, prefix: str) -> None:
    """`show --json` prints JSON even for a body that is not."""
    commands = Commands(redis_url, prefix)
    body = b'{"a": NaN, "b": [Infinity, -Infinity, 1e999, 1.5], "c": 1}'
    for id, sent in (("odd", body), ("long", b"[" + b"9" * 5_000 + b"]"), ("deep", b"[" * 900 + b"NaN" + b"]" * 900)):
        assert commands.producer("send", "orders", "-", "--id", id, "--delay", "60", stdin=sent.decode()).code == 0
        ran = commands.manager("show", "orders", id, "--json")
        assert (ran.code, "NaN" in ran.out, "Infinity" in ran.out) == (0, False, False)
    document = commands.manager("show", "orders", "odd", "--json").document
    assert document["body"] == {"json": {"a": None, "b": [None, None, None, 1.5], "c": 1}}
    assert client.hkeys(topics_key(prefix)) == [b"orders"]


def test_twenty_thousand_entries_of_one_id(redis_url: str, client: redis.Redis, prefix: str) -> None:
    """A check finds them, and repairs what it can."""
    keys, commands = ShardKeys(prefix, "orders"), Commands(redis_url, prefix)
    assert commands.producer("send", "orders", "x", "--id", "m", "--delay", "60").code == 0
    script = "for i = 1, 20000 do redis.call('XADD', KEYS[1], '*', 'id', 'm', 'due', 7, 'n', 1) end"
    client.eval(script, 1, keys.of("ready"))
    client.hset(keys.of("failures"), "g/m", "1 1-0 - " + "9" * 5_000 + " 5 nack no")
    assert commands.manager("show", "orders", "m").code == 0
    assert commands.manager("check", "orders").code == 1
    assert commands.manager("check", "orders", "--repair").code == 0
    assert (client.xlen(keys.of("ready")), client.zcard(keys.of("waiting"))) == (0, 1)
