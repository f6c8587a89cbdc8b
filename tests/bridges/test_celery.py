"""The bridge of Celery in one process: what it sends to Lisa, and what stays with Celery."""

import asyncio
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.schedules import crontab
from celery.signals import after_task_publish, before_task_publish
from kombu.exceptions import OperationalError

from lisa_common.celery_task import message_id, unpack
from lisa_consumer import ConsumerSettings
from lisa_consumer.celery import beat, forwarder
from lisa_producer import InvalidInput, Producer, ProducerSettings
from lisa_producer.celery import bridge
from lisa_testing.live import running_manager
from support import Server
from support.waiting import wait_until_async


@pytest.fixture
def app() -> Iterator[Celery]:
    """An application whose broker and results are in this process; not bridged yet."""
    made = Celery(secrets.token_hex(4), broker="memory://", backend="cache+memory://")
    # Brokers in memory share their queues.
    made.conf.update(
        task_default_queue=secrets.token_hex(4), task_publish_retry_policy={"max_retries": 1, "interval_start": 0}
    )

    @made.task(name="add", shared=False)  # type: ignore[untyped-decorator]
    def add(*numbers: int) -> int:
        return sum(numbers)

    yield made
    made.close()


@pytest.fixture
def settings(redis_url: str, prefix: str) -> ProducerSettings:
    """Those of a producer on the keys of this test."""
    return ProducerSettings(redis_url=redis_url, prefix=prefix)


@pytest.fixture
def producer(settings: ProducerSettings) -> Iterator[Producer]:
    """Looks at what the bridge has sent."""
    with Producer(settings=settings) as made:
        yield made


def _stored(producer: Producer, id: str) -> tuple[bytes, dict[str, Any], int]:
    found = producer.find("celery", id)
    assert found
    assert found.record
    return *unpack(found.record.body), found.record.due_ms


def _in_broker(app: Celery) -> list[Any]:
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(app.amqp.queues[app.conf.task_default_queue])
        return list(iter(lambda: _next(queue), None))


def _next(queue: Any) -> Any:
    try:
        return queue.get_nowait()
    except queue.Empty:
        return None


def _add(app: Celery, *numbers: int, **options: Any) -> Any:
    return app.tasks["add"].apply_async(numbers, **options)


def test_only_tasks_further_away_go_to_lisa(app: Celery, settings: ProducerSettings, producer: Producer) -> None:
    """The limit is that of `beyond`, for countdown and eta, and for tasks that are sent by their names."""
    bridge(app, beyond=timedelta(seconds=30), settings=settings)
    near = [
        _add(app, 1),
        _add(app, 2, countdown=20),
        _add(app, 3, countdown=-60),
        _add(app, 4, eta=datetime.now(UTC) - timedelta(days=1)),
        app.send_task("elsewhere", eta=datetime.now(UTC) + timedelta(seconds=20)),
    ]
    far = [
        _add(app, 5, countdown=40),
        _add(app, 6, eta=datetime.now(UTC) + timedelta(seconds=40)),
        app.send_task("elsewhere", countdown=40),
        app.signature("add", (7,)).set(countdown=40).delay(),
    ]
    assert [message.headers["id"] for message in _in_broker(app)] == [result.id for result in near]
    assert [producer.find("celery", result.id) for result in near] == [None] * len(near)
    assert all(_stored(producer, result.id)[1]["headers"]["eta"] is None for result in far)
    assert [result.state for result in far] == ["PENDING"] * len(far)


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_an_eta_means_what_it_means_to_celery(
    app: Celery, settings: ProducerSettings, producer: Producer, zone: str | None
) -> None:
    """Without a time zone it is UTC, whatever the application's; text is read as well."""
    app.conf.timezone = zone
    bridge(app, settings=settings)
    hour = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
    etas = [hour.replace(tzinfo=None), hour.astimezone(timezone(timedelta(hours=5))), hour.isoformat()]
    sent = [_add(app, eta=eta) for eta in etas]
    assert {_stored(producer, result.id)[2] for result in sent} == {hour.timestamp() * 1000}


def test_what_lisa_cannot_keep_is_one_clear_error(app: Celery, settings: ProducerSettings) -> None:
    """Nothing is sent then, to neither."""
    bridge(app, settings=settings)
    with pytest.raises(InvalidInput, match=r"^eta must be a time from 1970 to "):
        _add(app, eta=datetime.now(UTC) + timedelta(days=36_600))
    with pytest.raises(InvalidInput, match=r"^body must be at most \d+ bytes; got \d+ bytes$"):
        app.send_task("elsewhere", ["x" * 2_000_000], countdown=60)
    assert _in_broker(app) == []


def test_a_retry_that_lisa_cannot_keep_goes_to_celery(
    app: Celery, settings: ProducerSettings, producer: Producer
) -> None:
    """Celery's workers drop a task whose retry raises. A long id is no reason: Lisa keeps the retry by another one."""
    bridge(app, settings=settings)
    app.send_task("elsewhere", ["x" * 2_000_000], countdown=60, retries=1)
    [message] = _in_broker(app)
    assert message.headers["eta"]
    long = _add(app, countdown=60, retries=1, task_id="x" * 195)
    assert _in_broker(app) == []
    assert producer.find("celery", message_id(long.id, 1))
    app.control.revoke(["y" * 201, "a\nb", long.id])
    assert (long.state, producer.find("celery", message_id(long.id, 1))) == ("REVOKED", None)


def test_while_lisa_is_away_callers_see_the_error_of_a_broker(app: Celery, reserve_port: Any) -> None:
    """It is raised after the retries of Celery's policy; near tasks do not need Lisa."""
    bridge(app, url=f"redis://127.0.0.1:{reserve_port()}")
    _add(app, 1)
    for retry in (True, False):
        with pytest.raises(OperationalError):
            _add(app, 2, countdown=60, retry=retry)
    assert len(_in_broker(app)) == 1


def test_a_retry_policy_outlasts_an_outage(app: Celery, own_server: Any) -> None:
    """With more patience, the caller notices nothing; the task is stored once."""
    server: Server = own_server(appendonly="yes")
    with server.client() as client:
        bridge(app, url=server.url)
        _add(app, 1, countdown=60)
        server.stop()
        threading.Timer(0.5, server.start).start()
        _add(app, 2, countdown=60, retry_policy={"max_retries": None, "interval_start": 0.1})
        assert client.zcard("lisa:{celery}:waiting") == 2


def test_eager_tasks_stay_eager(app: Celery, reserve_port: Any) -> None:
    """They run at once, as Celery has it."""
    bridge(app, url=f"redis://127.0.0.1:{reserve_port()}")
    app.conf.task_always_eager = True
    assert _add(app, 1, 2, countdown=600).get() == 3


def test_signals_see_the_message_as_ever(app: Celery, settings: ProducerSettings, producer: Producer) -> None:
    """What a receiver changes in the headers is stored; the eta is there."""
    seen = []

    def before(headers: dict[str, Any], **_: Any) -> None:
        seen.append(headers["eta"])
        headers["tenant"] = 7

    def after(routing_key: str, **_: Any) -> None:
        seen.append(routing_key)

    bridge(app, settings=settings)
    before_task_publish.connect(before)
    after_task_publish.connect(after)
    try:
        result = _add(app, countdown=60)
    finally:
        before_task_publish.disconnect(before)
        after_task_publish.disconnect(after)
    assert datetime.fromisoformat(seen[0]) > datetime.now(UTC)
    assert seen[1] == app.conf.task_default_queue
    assert _stored(producer, result.id)[1]["headers"]["tenant"] == 7


def test_a_task_id_that_is_used_twice(app: Celery, settings: ProducerSettings, producer: Producer) -> None:
    """Celery runs both: the second one waits in its broker."""
    bridge(app, settings=settings)
    _add(app, 1, countdown=60, task_id="daily")
    _add(app, 2, countdown=90, task_id="daily")
    assert _stored(producer, "daily")[0].startswith(b"[[1]")
    (message,) = _in_broker(app)
    assert message.payload[0] == [2]
    assert message.headers["eta"]


def test_an_eta_tells_tasks_of_one_id_apart(app: Celery, settings: ProducerSettings, producer: Producer) -> None:
    """Another ETA alone makes another task; a repeat of the same send makes none, also after a reschedule."""
    bridge(app, settings=settings)
    hours = [(datetime.now(UTC) + timedelta(hours=n)).isoformat() for n in (1, 2)]

    def send(eta: str) -> None:
        message = app.amqp.as_task_v2("daily", "add", (1,), eta=eta, origin="here")
        with app.producer_or_acquire() as of_kombu:
            app.amqp.send_task_message(of_kombu, "add", message)

    send(hours[0])
    producer.reschedule("celery", "daily", delay=1800)
    send(hours[0])
    assert _in_broker(app) == []
    send(hours[1])
    assert [message.headers["eta"] for message in _in_broker(app)] == hours[1:]


def test_a_revoked_task_is_cancelled(app: Celery, settings: ProducerSettings, producer: Producer) -> None:
    """Its result says so; so do those of many, and of a retry. Others stay."""
    bridge(app, settings=settings)
    first, second, retried, other = (_add(app, n, countdown=60, retries=int(n == 2)) for n in range(4))
    assert producer.find("celery", f"{retried.id} retry 1")
    first.revoke()
    app.control.revoke([second.id, retried.id])
    for result in (first, second, retried):
        with pytest.raises(TaskRevokedError):
            result.get(timeout=30)
    assert producer.find("celery", first.id) is None
    assert producer.find("celery", f"{retried.id} retry 1") is None
    assert other.state == "PENDING"
    assert producer.find("celery", other.id)


def test_a_task_that_only_workers_can_read_is_revoked(
    app: Celery, settings: ProducerSettings, producer: Producer
) -> None:
    """So are the others of the call."""
    app.conf.update(task_serializer="pickle", accept_content=["json"])
    bridge(app, settings=settings)
    sent = [_add(app, n, countdown=60) for n in range(2)]
    app.control.revoke([result.id for result in sent])
    assert [(result.state, producer.find("celery", result.id)) for result in sent] == [("REVOKED", None)] * 2


def test_a_revoke_on_one_worker_cancels_nothing(app: Celery, settings: ProducerSettings, producer: Producer) -> None:
    """It speaks of a worker; what waits is in none."""
    bridge(app, settings=settings)
    result = _add(app, countdown=60)
    app.control.revoke(result.id, destination=["celery@one"])
    assert producer.find("celery", result.id)


def test_a_bridge_is_for_a_new_application(app: Celery) -> None:
    """Else some tasks would have gone past it."""
    for wrong, text in (({"topic": "a b"}, "topic must"), ({"beyond": -1}, "beyond must")):
        with pytest.raises(InvalidInput, match=text):
            bridge(app, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="app must be an application of Celery; got 'shop'"):
        bridge("shop")
    bridge(app)
    with pytest.raises(InvalidInput, match="app must be a new application"):
        bridge(app)
    with Celery("used") as used:
        used.amqp  # noqa: B018
        with pytest.raises(InvalidInput, match="app must be a new application"):
            bridge(used)


@contextmanager
def _forwarding(app: Celery, settings: ProducerSettings, prefix: str) -> Iterator[Any]:
    url = settings.redis_url.get_secret_value()
    worker = forwarder(app, settings=ConsumerSettings(redis_url=url, prefix=prefix))
    with running_manager(url, prefix, {}):
        yield worker


async def test_the_forwarder_publishes_what_was_stored(
    app: Celery, settings: ProducerSettings, prefix: str, client: redis.Redis
) -> None:
    """Body, headers and properties are those that Celery would have published; `expires` is not prolonged."""
    direct = Celery("direct", broker=app.conf.broker_url, backend="cache+memory://")
    direct.conf.task_default_queue = app.conf.task_default_queue
    bridge(app, beyond=0.05, settings=settings)
    options: dict[str, Any] = {
        "task_id": "same", "priority": 7, "compression": "zlib", "expires": 100,
        "headers": {"tenant": 7, "since": datetime(2026, 1, 2, tzinfo=UTC)}, "reply_to": "me", "shadow": "sum",
        "group_id": "g", "group_index": 3, "root_id": "r", "parent_id": "p", "link": app.signature("add"),
        "time_limit": 9,
    }  # fmt: skip
    app.send_task("add", [1], countdown=0.3, **options)
    direct.send_task("add", [1], **options)
    with _forwarding(app, settings, prefix) as worker:
        await wait_until_async(lambda: not client.zcard(f"{prefix}:{{celery}}:waiting"))
        await worker.serve(burst=True)
    by_celery, by_lisa = _in_broker(app)
    varying = {"expires", "origin"}
    assert by_lisa.body == by_celery.body
    assert {k: v for k, v in by_lisa.headers.items() if k not in varying} == {
        k: v for k, v in by_celery.headers.items() if k not in varying
    }
    assert (by_lisa.content_type, by_lisa.content_encoding) == (by_celery.content_type, by_celery.content_encoding)
    varying = {"delivery_tag", "reply_to", "expiration"}
    assert {k: v for k, v in by_lisa.properties.items() if k not in varying} == {
        k: v for k, v in by_celery.properties.items() if k not in varying
    }
    assert 90_000 < int(by_lisa.properties["expiration"]) < int(by_celery.properties["expiration"])


async def test_two_beats_publish_one_task_for_each_tick(app: Celery, settings: ProducerSettings, prefix: str) -> None:
    """Of entries in the configuration and of those that are added; as Celery's own beat would publish them."""
    second = {"task": "add", "schedule": 1, "args": (1, 2), "options": {"priority": 7, "headers": {"tenant": 7}}}
    app.conf.beat_schedule = {"each second": second}
    app.add_periodic_task(timedelta(seconds=1), app.signature("elsewhere", kwargs={"a": 1}), name="other")
    url = settings.redis_url.get_secret_value()
    workers = [beat(app, settings=ConsumerSettings(redis_url=url, prefix=prefix)) for _ in range(2)]
    published: list[Any] = []

    def has_come() -> bool:
        published.extend(_in_broker(app))
        return len(published) >= 8

    with running_manager(url, prefix, {}):
        serving = [asyncio.create_task(worker.serve()) for worker in workers]
        await wait_until_async(has_come, 30)
        for worker in workers:
            worker.stop()
        await asyncio.gather(*serving)
    published.extend(_in_broker(app))
    ids = [message.headers["id"] for message in published]
    assert len(set(ids)) == len(ids)
    added = [message for message in published if message.headers["task"] == "add"]
    assert abs(2 * len(added) - len(published)) <= 1
    assert [message.payload[:2] for message in added] == [[[1, 2], {}]] * len(added)
    assert {message.properties["priority"] for message in added} == {7}
    assert all(message.headers["tenant"] == 7 and message.headers["celery_beat_task"] for message in added)
    assert published[0].headers["eta"] is None


def test_a_beat_keeps_what_celery_means(app: Celery) -> None:
    """A crontab in the application's time zone, and periods; names that Lisa does not allow stay apart."""
    app.conf.timezone = "Europe/Berlin"
    app.conf.beat_schedule = {
        "a b": {"task": "add", "schedule": crontab(minute="*/20", hour="9-11", day_of_week="mon-fri")},
        "a/b": {"task": "add", "schedule": crontab(minute=0, hour=0, day_of_month="1,15", month_of_year="*/6")},
        "c": {"task": "add", "schedule": 2.5},
    }
    first, second, third = beat(app)._schedules
    assert (first.cron, first.tz) == ("0,20,40 9,10,11 * * 1,2,3,4,5", "Europe/Berlin")
    assert second.cron == "0 0 1,15 1,7 *"
    assert first.name != second.name
    assert first.name.startswith("a-b-")
    assert (third.name, third.every_ms) == ("c", 2500)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"schedule": 0.5}, "from 1 s"),
        ({"schedule": crontab(day_of_month=1, day_of_week=1)}, "not both"),
        ({"schedule": "hourly"}, "no attribute"),
        ({"schedule": None}, "seconds, a timedelta or a crontab"),
        ({}, "'schedule'"),
        ({"schedule": 9, "args": (object(),)}, "not JSON serializable"),
    ],
)
def test_a_beat_refuses_what_lisa_cannot_keep(app: Celery, entry: dict[str, Any], text: str) -> None:
    """It names the entry."""
    app.conf.beat_schedule = {"wrong": {"task": "add", **entry}}
    with pytest.raises(InvalidInput, match=f"^beat_schedule 'wrong' must be an entry that Lisa can keep.*{text}"):
        beat(app)
    with pytest.raises(InvalidInput, match="app must be an application of Celery"):
        beat("shop")  # type: ignore[arg-type]
