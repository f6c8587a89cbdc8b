"""A worker that was frozen for three visibility timeouts; a server whose memory or disk is full. Real processes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from lisa_common.errors import Refused
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_producer import Message, Producer, ProducerSettings
from support import Server, idle, wait_until
from support.processes import Programs

pytestmark = pytest.mark.slow

VISIBILITY_S = 0.7
THREE_TIMEOUTS_S = 3 * VISIBILITY_S


@pytest.fixture
def server(own_server: Callable[..., Server], prefix: str) -> Server:
    """A server of the test's own, whose retries are a matter of `backoff`."""
    started = own_server(appendonly="yes", appendfsync="everysec")
    _declare(started, prefix, backoff_base_ms=10)
    return started


@pytest.fixture
def programs(server: Server, prefix: str, tmp_path: Path) -> Iterator[Programs]:
    """Programs on that server."""
    with ExitStack() as stack:
        started = Programs(server.url, prefix, tmp_path)
        stack.callback(started.close)
        yield started


@pytest.fixture
def producer(server: Server, prefix: str) -> Iterator[Producer]:
    """A producer on it, without patience."""
    settings = ProducerSettings(redis_url=server.url, prefix=prefix, patience_s=0)
    with Producer(settings=settings) as opened:
        yield opened


def _declare(server: Server, prefix: str, *, backoff_base_ms: int) -> None:
    policy = Policy(visibility_ms=int(VISIBILITY_S * 1000), backoff="fixed", backoff_base_ms=backoff_base_ms)
    with server.client() as client:
        client.hset(topics_key(prefix), "orders", policy.dump())


def _is_refused(producer: Producer, sent: set[str]) -> bool:
    try:
        sent.add(str(producer.send("orders", b"x", delay=1).id))
    except Refused as error:
        assert "MISCONF" in str(error)  # noqa: PT017 - until the server notices, sends are taken
        return True
    return False


def _is_drained(client: redis.Redis, prefix: str) -> bool:
    keys = ShardKeys(prefix, "orders")
    return not any(client.exists(keys.of(name)) for name in ("waiting", "messages", "retry", "failures", "garbage"))


def test_acks_of_a_frozen_worker_are_stale_where_another_was_given_its_messages(
    server: Server, programs: Programs, producer: Producer, prefix: str
) -> None:
    """Promises 4 and 5: what the thawed worker acks changes nothing, and nothing is delivered after an ack."""
    programs.hold.touch()
    programs.manager()
    frozen = programs.worker("--concurrency", "10", "--prefetch", "0")
    sent = {str(r.id) for r in producer.send_many("orders", [Message(body=b"x") for _ in range(10)]).results}
    wait_until(lambda: len(programs.journal.begun()) == 10)
    frozen.freeze()
    programs.hold.unlink()
    other = programs.worker()
    idle(THREE_TIMEOUTS_S)
    with server.client() as client:
        wait_until(lambda: _is_drained(client, prefix), what="the other worker to handle all")
        begun = programs.journal.begun()
        frozen.thaw()
        wait_until(lambda: len(programs.journal.ended()) == 10 and sum(programs.journal.ended().values()) == 20)
        assert frozen.stop() == 0
        assert frozen.log.count("was stale") + frozen.log.count("lost the lease of") >= 10, frozen.log
        assert programs.journal.begun() == begun, "nothing is delivered after an ack"
        assert _is_drained(client, prefix)
    assert {(h.id, h.attempt) for h in begun if h.process == other.pid} == {(id, 2) for id in sent}


def test_acks_of_a_frozen_worker_are_late_where_nobody_was_given_its_messages(
    server: Server, programs: Programs, producer: Producer, prefix: str
) -> None:
    """Promise 4: the retries that a manager has made meanwhile are withdrawn; the messages are done."""
    _declare(server, prefix, backoff_base_ms=60_000)
    programs.hold.touch()
    programs.manager()
    frozen = programs.worker("--concurrency", "10", "--prefetch", "0")
    producer.send_many("orders", [Message(body=b"x") for _ in range(10)])
    wait_until(lambda: len(programs.journal.begun()) == 10)
    frozen.freeze()
    with server.client() as client:
        wait_until(lambda: client.zcard(ShardKeys(prefix, "orders").of("retry")) == 10)
        idle(THREE_TIMEOUTS_S)
        programs.hold.unlink()
        frozen.thaw()
        wait_until(lambda: _is_drained(client, prefix))
    assert frozen.stop() == 0
    assert frozen.log.count("was late") == 10, frozen.log
    assert len(programs.journal.begun()) == 10


def test_a_server_without_memory_refuses_sends_and_drains(
    server: Server, programs: Programs, producer: Producer, prefix: str
) -> None:
    """Sends are refused with an error that says why; what was sent is delivered and acked, also by new programs."""
    first = programs.worker()
    sent = {str(r.id) for r in producer.send_many("orders", [Message(body=b"x", delay=0.5)] * 300).results}
    with server.client() as client:
        wait_until(lambda: client.exists(ShardKeys(prefix, "orders").of("ready")), what="the group")
        first.stop()
        client.config_set("maxmemory", "1mb")
        with pytest.raises(Refused, match="maxmemory"):
            producer.send("orders", b"x")
        programs.manager()
        programs.worker()
        wait_until(lambda: programs.journal.ended().keys() == sent, 20)
        wait_until(lambda: _is_drained(client, prefix))
        with pytest.raises(Refused, match="maxmemory"):
            producer.send("orders", b"x")
        client.config_set("maxmemory", "0")
    producer.send("orders", b"x", id="after")
    wait_until(lambda: programs.journal.ended()["after"] == 1)


def test_a_server_without_disk_refuses_sends_and_drains_as_soon_as_there_is_room(
    server: Server, programs: Programs, producer: Producer, prefix: str
) -> None:
    """Redis takes no write at all then: nothing is lost, nothing ends, and no program but waits."""
    worker, manager = programs.worker(), programs.manager()
    sent = {str(r.id) for r in producer.send_many("orders", [Message(body=b"x", delay=1)] * 300).results}
    server.fill_disk()
    wait_until(lambda: _is_refused(producer, sent))
    idle(THREE_TIMEOUTS_S)
    assert worker.runs
    assert manager.runs
    server.free_disk()
    with server.client() as client:
        wait_until(lambda: programs.journal.ended().keys() == sent, 20)
        wait_until(lambda: _is_drained(client, prefix), 20)
    assert (worker.stop(), manager.stop()) == (0, 0)
