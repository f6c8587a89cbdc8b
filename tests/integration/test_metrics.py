"""Metrics of real programs: what they count is what happened."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from prometheus_client import CollectorRegistry

from lisa_common.errors import InvalidInput
from lisa_common.model.keys import ShardKeys, topics_key
from lisa_common.model.policy import Policy
from lisa_common.observing.catalog import MAX_TOPICS, METRICS, OTHER, Kind, Program
from lisa_common.observing.metrics import MetricSet
from lisa_manager import Admin, ManagerSettings
from lisa_producer import Message, Producer, ProducerSettings, metrics as producer_metrics
from support import wait_until
from support.commands import Commands
from support.metrics import metrics_url, probe, scrape, total
from support.processes import Programs

Declare = Callable[..., Policy]
pytestmark = pytest.mark.slow

_FAILING = "support.programs.failing_worker:worker"
_ANYWHERE = ("--metrics", "127.0.0.1:0")


@pytest.fixture
def programs(redis_url: str, prefix: str, tmp_path: Path) -> Iterator[Programs]:
    """Programs on the server of the run."""
    with closing(Programs(redis_url, prefix, tmp_path)) as started:
        yield started


@pytest.fixture
def producer(redis_url: str, prefix: str) -> Iterator[Producer]:
    """A producer in the test's own process."""
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as opened:
        yield opened


@pytest.fixture
def sent() -> Iterator[CollectorRegistry]:
    """A registry of the user's with the producer's metrics, which stop with the test."""
    registry = CollectorRegistry()
    producer_metrics.register(registry)
    yield registry
    producer_metrics.METRICS.on = False


@pytest.mark.long
def test_counts_of_two_managers_and_four_workers_are_the_ledgers(
    *,
    programs: Programs,
    producer: Producer,
    sent: CollectorRegistry,
    client: redis.Redis,
    prefix: str,
    declare: Declare,
) -> None:
    """What was sent, promoted, delivered, acked, retried and dead, also where a worker process is killed in between.

    Of four worker processes two share a supervisor, and one of those is killed while it is idle: nothing that it has
    counted is lost.
    """
    declare(max_retries=2, backoff="fixed", backoff_base_ms=50, visibility_ms=5_000)
    managers = [programs.manager(*_ANYWHERE, "--sample-s", "1") for _ in range(2)]
    workers = [
        *(programs.worker(*_ANYWHERE, target=_FAILING) for _ in range(2)),
        programs.worker(*_ANYWHERE, "--processes", "2", target=_FAILING),
    ]
    of_managers, of_workers = list(map(metrics_url, managers)), list(map(metrics_url, workers))
    wait_until(lambda: probe(of_workers[2], "/readyz")[0] == 200, 20, what="both processes are ready")

    # Others may have counted in this process before.
    already = sent.get_sample_value(*_sent("sent")) or 0

    def count(name: str, **labels: str) -> float:
        return total(of_workers, name, **labels)

    # Per turn: 60 fine, 20 fail once, 10 fail always (3 deliveries), 10 are rejected.
    bodies = ["0"] * 60 + ["1"] * 20 + ["9"] * 10 + ["-1"] * 10
    for turn in (1, 2):
        producer.send_many("orders", [Message(body=body, delay=at % 3 / 5) for at, body in enumerate(bodies)])
        assert sent.get_sample_value(*_sent("sent")) == already + 100 * turn
        wait_until(lambda turn=turn: _dead(client, prefix) == 20 * turn, 20, what="all are dead that should be")
        wait_until(lambda turn=turn: count("lisa_settled_total", outcome="acked") == 80 * turn, 20, what="acks")
        # A worker tells the durations of its handlers once a second.
        wait_until(lambda turn=turn: count("lisa_handler_seconds_count") == 140 * turn, what="durations")
        if turn == 1:
            victim = workers[2].children[0]
            os.kill(victim, signal.SIGKILL)
            workers[2].wait_for(f"worker process {victim} exited")

    assert count("lisa_deliveries_total", attempt="first") == 200
    assert count("lisa_deliveries_total", attempt="again") == 2 * (20 + 10 * 2)
    assert count("lisa_settled_total", outcome="retry") == 2 * (20 + 10 * 2)
    assert count("lisa_settled_total", outcome="garbage") == 2 * 20
    assert count("lisa_settled_total") == 280
    assert count("lisa_delivery_lag_seconds_count", topic="orders", group="billing") == 280
    assert count("lisa_handler_seconds_count", outcome="rejected") == 20
    assert count("lisa_handlers_running") == 0
    # Each third message was due at once. All retries are promoted.
    due_later = 2 * sum(at % 3 > 0 for at in range(100))
    assert total(of_managers, "lisa_promoted_total") == due_later + 80
    assert total(of_managers, "lisa_promotion_lag_seconds_count", topic="orders") == due_later + 80
    for url in of_managers:
        wait_until(lambda url=url: scrape(url).sum("lisa_messages", state="garbage") == 40, what="a sample")
        assert scrape(url).sum("lisa_ready_entries_total", topic="orders") == 280
        assert scrape(url).sum("lisa_read_entries_total", topic="orders", group="billing") == 280


def _sent(outcome: str) -> tuple[str, dict[str, str]]:
    return "lisa_sent_total", {"topic": "orders", "outcome": outcome}


def _dead(client: redis.Redis, prefix: str) -> int:
    return int(client.zcard(ShardKeys(prefix, "orders").of("garbage")))


def test_a_program_exports_the_catalog_and_nothing_else(
    programs: Programs, producer: Producer, declare: Declare
) -> None:
    """Each metric of a manager and of a worker is in the catalog with those labels; the user's own are there too."""
    declare()
    urls = {
        Program.MANAGER: metrics_url(programs.manager(*_ANYWHERE, "--sample-s", "1")),
        Program.CONSUMER: metrics_url(programs.worker(*_ANYWHERE, target=_FAILING)),
    }
    producer.send_many("orders", [Message(body="0"), Message(body="0", delay=0.1), Message(body="0", delay=900)])
    wait_until(lambda: scrape(urls[Program.CONSUMER]).sum("app_handled_total") == 2, 20, what="both are handled")
    wait_until(
        lambda: scrape(urls[Program.MANAGER]).sum("lisa_waiting_due_in", horizon="30m") == 1, 20, what="a sample"
    )
    for program, url in urls.items():
        catalog = {metric.name: metric for metric in METRICS if program in metric.programs}
        exported = [sample for sample in scrape(url).samples if sample.name.startswith("lisa_")]
        for sample in exported:
            name = sample.name
            for suffix in ("_bucket", "_count", "_sum"):
                base = name.removesuffix(suffix)
                name = base if base in catalog and catalog[base].kind is Kind.HISTOGRAM else name
            labels = set(sample.labels) - ({"le"} if name != sample.name else set())
            assert labels == set(catalog[name].labels), sample
        assert any(sample.name == "process_cpu_seconds_total" for sample in scrape(url).samples)


def test_gauges_are_sampled_once_for_all_scrapes_and_beside_damage(
    programs: Programs, producer: Producer, client: redis.Redis, declare: Declare, prefix: str
) -> None:
    """Scrapes take no samples; a topic with a key of a wrong type does not hide the others."""
    declare()
    declare("broken")
    client.set(ShardKeys(prefix, "broken").of("waiting"), "text")
    client.hset(topics_key(prefix), b"\xff\xfe", "{}")
    url = metrics_url(programs.manager(*_ANYWHERE, "--sample-s", "600"))
    producer.send("orders", b"x", delay=60)
    second = metrics_url(programs.manager(*_ANYWHERE, "--sample-s", "1"))
    wait_until(lambda: scrape(second).sum("lisa_messages", state="waiting") == 1, 20, what="a sample")
    topics = {sample.labels["topic"] for sample in scrape(second).samples if sample.name == "lisa_messages"}
    assert "orders" in topics
    assert "broken" not in topics
    for _ in range(20):
        assert scrape(url).sum("lisa_manager_turn_seconds_count", job="sample") <= 1


def test_pauses_and_moved_dead_letters(programs: Programs, producer: Producer, redis_url: str, prefix: str) -> None:
    """A paused topic has a value, others have none; what went to a dead letter topic is counted."""
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as admin:
        admin.set_policy("still", paused=True)
        admin.set_policy("orders", dead_letter_topic="dead")
    producer.send("orders", b"x", ttl=0.001)
    url = metrics_url(programs.manager(*_ANYWHERE, "--sample-s", "1"))
    wait_until(lambda: scrape(url).sum("lisa_topic_paused", topic="still") == 1, 20, what="a sample")
    wait_until(lambda: scrape(url).sum("lisa_dead_letters_moved_total", topic="orders") == 1, 20, what="a dead letter")
    assert scrape(url).sum("lisa_topic_paused") == 1


def test_functions_that_outlast_their_timeout_are_counted(
    programs: Programs, producer: Producer, redis_url: str, prefix: str
) -> None:
    """A thread cannot be stopped; metrics show it while it runs."""
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as admin:
        admin.create_topic("orders", visibility_ms=300)
    url = metrics_url(programs.worker(*_ANYWHERE, target="support.programs.thread_worker:worker"))
    programs.hold.touch()
    producer.send("orders", b"x")
    wait_until(lambda: scrape(url).sum("lisa_handler_overruns_total", topic="orders") == 1)
    programs.hold.unlink()


def test_parked_messages(programs: Programs, producer: Producer, redis_url: str, prefix: str) -> None:
    """Messages behind one of their key are counted; topics without limits have no value."""
    with Admin(settings=ManagerSettings(redis_url=redis_url, prefix=prefix)) as admin:
        admin.set_policy("orders", max_in_flight_per_key=1)
    for _ in range(3):
        producer.send("orders", b"x", key="customer-7")
    producer.send("open", b"y", key="customer-7")
    url = metrics_url(programs.manager(*_ANYWHERE, "--sample-s", "1"))
    wait_until(lambda: scrape(url).sum("lisa_parked_messages", topic="orders") == 2, 20, what="a sample")
    assert {sample.labels["topic"] for sample in scrape(url).samples if sample.name == "lisa_parked_messages"} == {
        "orders"
    }


@pytest.mark.parametrize("address", ["here", "127.0.0.1:", "127.0.0.1:65536", "::1:9100", "127.0.0.1:-1"])
def test_a_bad_address_is_refused(commands: Commands, address: str) -> None:
    """With one line that says what it must be, before anything runs."""
    ran = commands.manager("run", "--metrics", address)
    assert ran.code == 2
    assert f"setting metrics must be HOST:PORT, with a port from 0 to 65535; got '{address}'" in ran.err


def test_an_address_in_use_is_refused(programs: Programs, commands: Commands) -> None:
    """With one line."""
    url = metrics_url(programs.manager(*_ANYWHERE))
    ran = commands.manager("run", "--metrics", url.removeprefix("http://"))
    assert ran.code == 2
    assert "metrics must be an address to listen at (Address already in use)" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.long
def test_thousands_of_topics_are_affordable(programs: Programs, client: redis.Redis, prefix: str) -> None:
    """A scrape takes a manager less than 1 s of one core; all beyond 1,000 topics are one, and nothing is left out."""
    topics = [f"topic-{number:05}" for number in range(3_000)]
    client.hset(topics_key(prefix), mapping=dict.fromkeys(topics, "{}"))
    with client.pipeline(transaction=False) as pipeline:
        for topic in topics:
            pipeline.zadd(ShardKeys(prefix, topic).of("waiting"), {"id": (time.time() + 86_400 * 20) * 1000})
        pipeline.execute()
    manager = programs.manager(*_ANYWHERE, "--sample-s", "600", "--poll-s", "60", "--quiet-poll-s", "600")
    url = metrics_url(manager)
    wait_until(lambda: scrape(url).sum("lisa_messages", state="waiting") == 3_000, 90, what="a sample of all")
    exported = scrape(url)
    assert exported.sum("lisa_waiting_due_in", topic=OTHER, horizon="30d") == 3_000 - MAX_TOPICS
    assert len({s.labels["topic"] for s in exported.samples if s.name == "lisa_messages"}) == MAX_TOPICS + 1
    used_s = manager.cpu_s()
    for _ in range(5):
        scrape(url)
    assert (manager.cpu_s() - used_s) / 5 < 1


def test_topics_beyond_the_limit_share_a_label() -> None:
    """In counters as well; topics within it keep theirs."""
    registry, metrics = CollectorRegistry(), MetricSet(Program.CONSUMER)
    metrics.register(registry)
    before = registry.get_sample_value("lisa_deliveries_total", {"topic": OTHER, "group": "g", "attempt": "first"}) or 0
    for number in range(MAX_TOPICS + 5):
        for _ in range(2):
            metrics.count("lisa_deliveries_total", f"limit-{number}", "g", "first")
    labels = {"group": "g", "attempt": "first"}
    assert registry.get_sample_value("lisa_deliveries_total", {"topic": "limit-0", **labels}) == 2
    assert registry.get_sample_value("lisa_deliveries_total", {"topic": OTHER, **labels}) == before + 10


def test_registering_twice_and_in_two_registries(producer: Producer, sent: CollectorRegistry, declare: Declare) -> None:
    """The same registry may be registered again, and several programs share one."""
    declare()
    other = CollectorRegistry()
    for registry in (sent, sent, other):
        producer_metrics.register(registry)
    MetricSet(Program.CONSUMER).register(other)
    value = sent.get_sample_value(*_sent("duplicate")) or 0
    failed = sent.get_sample_value(*_sent("failed")) or 0
    for _ in range(2):
        producer.send("orders", b"x", id="one")
    with pytest.raises(InvalidInput):
        producer.send("orders", b"x", delay=-1)
    for registry in (sent, other):
        assert registry.get_sample_value(*_sent("duplicate")) == value + 1
        assert registry.get_sample_value(*_sent("failed")) == failed + 1


def test_without_the_extra_nothing_is_imported_and_the_request_is_refused() -> None:
    """A program that only sends and handles imports no package; one that asks for metrics hears what to do."""
    code = (
        "import sys; sys.modules['prometheus_client'] = sys.modules['opentelemetry'] = None\n"
        "import lisa_producer, lisa_consumer, lisa_manager, lisa_consumer.worker, lisa_manager.daemon\n"
        "assert lisa_producer.Producer()._tracing is None\n"
        "from lisa_consumer import metrics\n"
        "try:\n    metrics.register()\nexcept lisa_producer.LisaError as error:\n    print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "a registry of metrics needs more packages: pip install 'lisa-consumer[metrics]'\n"
