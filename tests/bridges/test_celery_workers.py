"""The bridge with workers of Celery as processes, on Redis and on RabbitMQ."""

import importlib.util
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError

from lisa_manager import Admin
from lisa_testing.live import running_manager
from support import Server
from support.processes import Process
from support.rabbitmq import running_rabbitmq
from support.waiting import wait_until

pytestmark = [
    # Celery's result backend calls an old function of the Redis client.
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]

PROGRAMS = Path(__file__).parents[1] / "support/programs"
BIN = Path(sys.executable).parent


class Shop:
    """The application in this process, with workers and forwarders as others."""

    def __init__(self, server: Server, directory: Path, environment: dict[str, str]) -> None:
        self.server = server
        self._directory = directory
        self._environment = {**os.environ, **environment, "PYTHONPATH": str(PROGRAMS)}
        self._processes: list[Process] = []
        spec = importlib.util.spec_from_file_location("celery_shop", PROGRAMS / "celery_shop.py")
        assert spec
        assert spec.loader
        self.tasks: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.tasks)

    def start(self, *command: str) -> Process:
        """Starts a program, which ends with the shop."""
        log = self._directory / f"{len(self._processes)}.log"
        self._processes.append(Process([str(BIN / command[0]), *command[1:]], self._environment, log))
        return self._processes[-1]

    def start_worker(self) -> Process:
        """Starts a worker of Celery with two processes."""
        options = ("--concurrency", "2", "--queues", "celery,mail", "--loglevel", "info")
        return self.start("python", "-W", "ignore", "-m", "celery", "-A", "celery_shop", "worker", *options)

    def start_forwarder(self) -> Process:
        """Starts a forwarder."""
        return self.start("lisa-consumer", "run", "celery_shop:forwarder")

    def journal(self) -> list[list[str]]:
        """What ran: words, task id, retries, moment, route, eta."""
        with self.server.client() as client:
            return [line.decode().split("\t") for line in client.lrange("journal", 0, -1)]

    def close(self) -> None:
        """Ends all processes."""
        for process in self._processes:
            if process.runs:
                process.kill()
        # Results unsubscribe as they are deleted, which may be in a later test, when the server has ended.
        self.tasks.app.backend.result_consumer.subscribed_to.clear()
        self.tasks.app.close()


@contextmanager
def _opened(
    server: Server, broker: str, directory: Path, monkeypatch: pytest.MonkeyPatch, **more: str
) -> Iterator[Shop]:
    environment = {"LISA_REDIS_URL": server.url, "SHOP_BROKER": broker, "C_FORCE_ROOT": "1", **more}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    shop = Shop(server, directory, environment)
    try:
        yield shop
    finally:
        shop.close()


@pytest.fixture(params=["redis", "rabbitmq"])
def shop(
    request: pytest.FixtureRequest,
    own_server: Callable[..., Server],
    reserve_port: Callable[[], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shop]:
    """A bridged shop on each broker, with a worker, a forwarder and a manager."""
    server = own_server(appendonly="yes")
    broker = running_rabbitmq(reserve_port(), tmp_path) if request.param == "rabbitmq" else _plain(f"{server.url}/1")
    with (
        broker as url,
        _opened(server, url, tmp_path, monkeypatch, SHOP_BEYOND="0.5") as opened,
        running_manager(server.url, "lisa", {}),
    ):
        opened.start_worker().wait_for("ready.", 60)
        opened.start_forwarder()
        yield opened


@contextmanager
def _plain(url: str) -> Iterator[str]:
    yield url


@pytest.mark.slow
def test_tasks_run_as_they_were_sent(shop: Shop) -> None:
    """Routes, priorities, serializers, chains, groups, chords and retries, each once, and none too early."""
    note, total = shop.tasks.note, shop.tasks.total
    mail = {
        "queue": "mail",
        "exchange": "shop",
        "routing_key": "mail.eu",
        "priority": 3,
        "serializer": "yaml",
        "compression": "zlib",
    }
    begun = time.time()
    results = {
        "plain": note.apply_async(("plain",), countdown=2),
        "retried": note.apply_async(("retried",), {"fail": 2}, countdown=1),
        "mail": note.apply_async(("mail",), countdown=1, expires=60, **mail),
        "link": note.apply_async(("first",), countdown=1, link=note.s("second").set(countdown=1)).children,
        "p-q": chain(note.s("p"), note.s("q").set(countdown=1)).apply_async(countdown=1),
        "x+y": chord([note.s("x").set(countdown=1), note.s("y").set(countdown=2)])(total.s().set(countdown=1)),
    }
    grouped = group(note.s("g1"), note.s("g2")).apply_async(countdown=1)
    for wanted, result in results.items():
        if wanted != "link":
            assert result.get(timeout=30) == wanted
    assert grouped.get(timeout=30) == ["g1", "g2"]
    wait_until(lambda: any(row[0] == "first second" for row in shop.journal()), 20)
    rows = shop.journal()
    assert Counter(row[0] for row in rows) == Counter(
        ["plain", "mail", "first", "first second", "p", "p q", "x", "y", "x+y", "g1", "g2", *["retried"] * 3]
    )
    assert [row[2] for row in rows if row[0] == "retried"] == ["0", "1", "2"]
    at = {row[0]: float(row[3]) - begun for row in rows}
    least = {"plain": 2, "mail": 1, "first second": 2, "p q": 2, "y": 2, "x+y": 3, "g2": 1, "retried": 3}
    assert {name: at[name] for name, least_s in least.items() if at[name] < least_s} == {}
    assert {row[4] for row in rows if row[0] == "mail"} == {"shop/mail.eu/3"}
    assert {row[5] for row in rows} == {"None"}


@pytest.mark.slow
def test_what_was_revoked_never_runs(shop: Shop) -> None:
    """A task, a retry, and the header of a chord: its body fails, as in Celery."""
    note, total = shop.tasks.note, shop.tasks.total
    waiting = note.apply_async(("never",), countdown=600)
    retried = note.apply_async(("retried",), {"fail": 1, "countdown": 600})
    wait_until(lambda: retried.state == "RETRY", 20)
    chorded = chord([note.s("quick"), note.s("lost").set(countdown=600)])(total.s())
    wait_until(lambda: any(row[0] == "quick" for row in shop.journal()), 20)
    lost = chorded.parent.results[1]
    for result in (waiting, retried, lost):
        result.revoke()
        with pytest.raises(TaskRevokedError):
            result.get(timeout=10)
    with pytest.raises(Exception, match="revoked"):
        chorded.get(timeout=20)
    with shop.server.client() as client:
        assert client.zcard("lisa:{celery}:waiting") == 0


@pytest.mark.slow
def test_tasks_outlast_an_outage_of_the_broker(
    own_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait in Lisa, without an attempt, and each runs once."""
    server, broker = own_server(appendonly="yes"), own_server(appendonly="yes")
    with (
        _opened(server, broker.url, tmp_path, monkeypatch, SHOP_BEYOND="0.5") as shop,
        running_manager(server.url, "lisa", {}),
    ):
        forwarder = shop.start_forwarder()
        results = [shop.tasks.note.apply_async((n,), countdown=1) for n in range(50)]
        broker.stop()
        forwarder.wait_for("Celery's broker", 30)
        broker.start()
        shop.start_worker()
        assert [result.get(timeout=60) for result in results] == [str(n) for n in range(50)]
        assert len(shop.journal()) == 50


@pytest.mark.slow
def test_a_killed_forwarder_repeats_few_tasks_and_loses_none(
    own_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It repeats what it had published and not acked: what 32 handlers had, and acks on their way."""
    server = own_server(appendonly="yes")
    with (
        _opened(server, f"{server.url}/1", tmp_path, monkeypatch, SHOP_BEYOND="0.5") as shop,
        running_manager(server.url, "lisa", {}),
        server.client() as client,
    ):
        with Admin(server.url) as admin:
            admin.set_policy("celery", visibility_ms=1_000)
        due = datetime.now(UTC) + timedelta(seconds=3)
        sent = [shop.tasks.note.apply_async((n,), eta=due, ignore_result=True).id for n in range(500)]
        first = shop.start_forwarder()
        wait_until(lambda: 500 - client.zcard("lisa:{celery}:waiting") > 0, 30)
        with redis.Redis.from_url(f"{server.url}/1") as broker:
            wait_until(lambda: broker.llen("celery") > 20, 30)
        first.kill()
        shop.start_forwarder()
        wait_until(lambda: not client.hlen("lisa:{celery}:messages"), 60)
        shop.start_worker()
        wait_until(lambda: {row[1] for row in shop.journal()} == set(sent), 60)
        assert len(shop.journal()) <= 500 + 100


@pytest.mark.long
@pytest.mark.parametrize("alone", [False, True], ids=["bridged", "alone"])
def test_each_task_runs_once_though_the_visibility_timeout_is_short(
    alone: bool,  # noqa: FBT001
    own_server: Callable[..., Server],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tasks of 2 to 20 s, a visibility timeout of 2 s, and a sweep each second: Celery alone runs many twice."""
    count, latest_s, visibility_s = (int(n) for n in os.environ.get("LISA_TEST_CELERY", "500,20,2").split(","))
    server = own_server(appendonly="yes")
    more = {"SHOP_VISIBILITY": str(visibility_s)} | ({} if alone else {"SHOP_BEYOND": "0.5"})
    with (
        _opened(server, f"{server.url}/1", tmp_path, monkeypatch, **more) as shop,
        running_manager(server.url, "lisa", {}),
    ):
        shop.start_worker().wait_for("ready.", 60)
        shop.start_worker().wait_for("ready.", 60)
        shop.start_forwarder().wait_for("reads celery", 60)
        due = {}
        for n in range(count):
            countdown = visibility_s + (latest_s - visibility_s) * n / count
            due[str(n)] = time.time() + countdown
            shop.tasks.note.apply_async((n,), countdown=countdown, ignore_result=True)
        wait_until(lambda: {row[0] for row in shop.journal()} == set(due), 4 * latest_s)
        rows = shop.journal()
        lags = sorted(float(row[3]) - due[row[0]] for row in rows)
        sys.stdout.write(
            f"{len(rows)} runs of {count}; lag: median {lags[len(lags) // 2]:.3f} s, most {lags[-1]:.3f} s\n"
        )
        assert lags[0] > -0.01, "too early"
        assert len(rows) > count if alone else len(rows) == count
