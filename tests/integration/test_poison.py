"""Messages that kill the process of their worker: they end in garbage, and nothing ends there with them."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from lisa_common.model.keys import ShardKeys, split_copy
from lisa_common.model.policy import Policy
from lisa_producer import Message, Producer, ProducerSettings
from support import wait_until
from support.processes import Process, Programs

pytestmark = pytest.mark.slow

TOPIC = "orders"
POISON = "poison"
WORKER = "support.programs.poisoned_worker:worker"
INNOCENTS = 500


@pytest.fixture
def programs(redis_url: str, prefix: str, tmp_path: Path) -> Iterator[Programs]:
    """Programs on the server of the run."""
    started = Programs(redis_url, prefix, tmp_path)
    yield started
    started.close()


@pytest.fixture
def send(redis_url: str, prefix: str, declare: Callable[..., Policy]) -> Iterator[Callable[[int], None]]:
    """Sends innocents and, among them, poison."""
    declare(TOPIC, visibility_ms=2_000, backoff="fixed", backoff_base_ms=10)
    messages = [Message(id=f"{n}", body=b"x") for n in range(INNOCENTS)]
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:

        def send(max_retries: int) -> None:
            for at in (INNOCENTS // 2, 10):
                messages.insert(at, Message(id=f"{POISON}-{at}", body=POISON.encode()))
            fitted = [Message(id=m.id, body=m.body, max_retries=max_retries) for m in messages]
            producer.send_many(TOPIC, fitted)

        yield send


@pytest.mark.parametrize(("max_retries", "concurrency"), [(0, 1), (2, 32)])
def test_poison_dies_alone(
    *,
    programs: Programs,
    send: Callable[[int], None],
    client: redis.Redis,
    prefix: str,
    concurrency: int,
    max_retries: int,
) -> None:
    """Innocents that ran beside it are handled again, one by one; those that had not begun have lost no attempt."""
    keys = ShardKeys(prefix, TOPIC)
    programs.manager()
    send(max_retries)
    programs.worker("--processes", "2", "--concurrency", f"{concurrency}", target=WORKER)
    wait_until(lambda: client.hlen(keys.of("messages")) == client.zcard(keys.of("garbage")), 60)
    dead = {split_copy(copy.decode())[1] for copy in client.zrange(keys.of("garbage"), 0, -1)}
    assert dead == {f"{POISON}-10", f"{POISON}-{INNOCENTS // 2}"}
    attempts = defaultdict(list)
    for handling in programs.journal.begun():
        attempts[handling.id].append(handling.attempt)
    deaths = sum(len(attempts[id]) for id in dead)
    assert deaths <= len(dead) * (max_retries + 2)
    innocent = {id: made for id, made in attempts.items() if id not in dead}
    assert len(innocent) == len(programs.journal.ended()) == INNOCENTS
    # A handler that ended just before its process did may not have been acked.
    charged = [id for id, made in innocent.items() if made[-1] > 1]
    assert len(charged) <= concurrency * deaths
    if concurrency == 1:
        assert all(made == list(range(1, len(made) + 1)) for made in innocent.values())


def test_a_successor_of_the_same_name_charges_nothing_that_had_not_begun(
    programs: Programs, declare: Callable[..., Policy], redis_url: str, client: redis.Redis, prefix: str
) -> None:
    """A crash leaves what had begun and what had not; what its successor begins does not count for either."""
    declare(TOPIC, visibility_ms=2_000, backoff="fixed", backoff_base_ms=10)
    ready = ShardKeys(prefix, TOPIC).of("ready")
    programs.hold.touch()

    def start() -> Process:
        return programs.worker("--concurrency", "1", environment={"LISA_TEST_NAME": "billing-1"})

    def begun(id: str) -> list[int]:
        return [handling.attempt for handling in programs.journal.begun() if handling.id == id]

    first = start()
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
        producer.send_many(TOPIC, [Message(id=id, body=b"x") for id in ("runs", "waits")])
        wait_until(lambda: begun("runs") and client.xpending(ready, "billing")["pending"] == 2, 20)
        first.kill()
        left = [each["message_id"] for each in client.xpending_range(ready, "billing", "-", "+", 9)]
        start()
        producer.send(TOPIC, b"x", id="next")
    wait_until(lambda: begun("next"), 20)
    programs.manager()
    wait_until(lambda: not client.xpending_range(ready, "billing", left[0], left[-1], 9), 20)
    programs.hold.unlink()
    wait_until(lambda: len(programs.journal.ended()) == 3, 20)
    assert (begun("runs"), begun("waits"), begun("next")) == ([1, 2], [1], [1])
