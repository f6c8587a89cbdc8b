"""Promise 13: whatever is passed in, it is taken, or refused with an error of ours before anything is written."""

import asyncio
import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings, strategies as st

from lisa_common.errors import InvalidInput, LisaError, UnknownGroup, UnknownTopic
from lisa_common.model.delivery import entry_of
from lisa_common.model.failure import read_failure
from lisa_common.model.policy import Policy
from lisa_common.model.record import UnreadableRecord, pack_content, unpack_record
from lisa_common.protocol.registry import parse_topic
from lisa_consumer import Consumer, ConsumerSettings, Reject, Retry, Worker
from lisa_manager.settings import ManagerSettings
from lisa_producer import AsyncProducer, Confirm, Message, PartialSend, Producer, ProducerSettings
from lisa_testing import make_delivery
from support import keys_left, remove_keys
from support.commands import Commands

many = settings(max_examples=150, suppress_health_check=list(HealthCheck))
few = settings(max_examples=60, suppress_health_check=list(HealthCheck))

_numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from((-1, 0, 1, 2**31, 2**53, 2**63, 2**64, 1e300, -0.0, math.nan, math.inf)),
)
_texts = st.one_of(
    st.text(max_size=20),
    st.text(alphabet=st.characters(codec=None, categories=("Cs", "Cc", "Zs", "Lo", "So")), max_size=8),
    st.sampled_from(("", "~", "a~", "/", "a/b", "{a}", "-1", "0", "nan", "a" * 5_000, "\x00", "\ud800", "\n", "🐎")),
)
_times = st.one_of(
    st.timedeltas(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.sampled_from((timedelta.max, timedelta.min, datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC))),
)
_simple = st.one_of(st.none(), st.booleans(), _numbers, _texts, st.binary(max_size=20), _times, st.just(object()))
anything = st.one_of(
    _simple,
    st.lists(_simple, max_size=3),
    st.dictionaries(st.one_of(_texts, st.integers(), st.binary()), _simple, max_size=3),
    st.tuples(_simple),
)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)


def _mostly(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What is right as often as what is not, so that each field has its turn to be wrong."""
    return st.one_of(usual, anything)


_options = st.fixed_dictionaries(
    {},
    optional={
        "delay": _mostly(st.floats(0, 100)),
        "at": _mostly(st.none()),
        "id": _mostly(st.text(alphabet="abc/{} ", min_size=1, max_size=5)),
        "ttl": _mostly(st.floats(0.001, 100)),
        "max_retries": _mostly(st.integers(0, 10)),
        "priority": _mostly(st.integers(0, 255)),
        "headers": _mostly(st.dictionaries(_texts, _texts, max_size=2)),
        "key": _mostly(st.text(alphabet="abc", min_size=1, max_size=5)),
        "if_exists": _mostly(st.sampled_from((None, "replace"))),
    },
)


@pytest.fixture
def producer(redis_url: str, prefix: str) -> Iterator[Producer]:
    """A producer on the server of the run."""
    with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix, patience_s=0)) as opened:
        yield opened


def _refuses_whole(client: redis.Redis, prefix: str, call: Callable[[], object]) -> None:
    """The call is carried out, or refused as bad input, and then it has written nothing."""
    before, refused = keys_left(client, prefix), None
    try:
        call()
    except InvalidInput as error:
        refused = error
    after = keys_left(client, prefix)
    remove_keys(client, prefix)
    if refused:
        assert (bool(refused.field), bool(refused.expected), after) == (True, True, before)


@many
@given(topic=_mostly(st.just("orders")), body=anything, options=_options)
def test_send(
    *, producer: Producer, client: redis.Redis, prefix: str, topic: Any, body: Any, options: dict[str, Any]
) -> None:
    """A producer takes or refuses any message."""
    _refuses_whole(client, prefix, lambda: producer.send(topic, body, **options))


@few
@given(topic=_mostly(st.just("orders")), bodies=st.lists(anything, max_size=3), options=_options)
def test_send_many(
    *, producer: Producer, client: redis.Redis, prefix: str, topic: Any, bodies: list[Any], options: dict[str, Any]
) -> None:
    """Of many messages the bad ones fail, each with its error, and keep no other from being sent."""
    messages = [*(Message(body=body, **options) for body in bodies), Message(body=b"good")]

    def send() -> None:
        try:
            report = producer.send_many(topic, messages)
        except PartialSend as error:
            report = error.report
            assert all(isinstance(result.error, InvalidInput) for result in report.results if result.error)
        assert report.results[-1].error is None

    _refuses_whole(client, prefix, send)


@many
@given(body=anything, options=_options)
def test_then(*, body: Any, options: dict[str, Any]) -> None:
    """A handler names any message that follows; what is refused does not follow."""
    delivery = make_delivery()
    options.pop("if_exists", None)
    try:
        delivery.then(body, **options)
    except InvalidInput:
        assert delivery.follow_up is None
    else:
        assert delivery.follow_up is not None


@few
@given(topic=_mostly(st.just("orders")), id=_mostly(st.just("m")), when=_options)
def test_ask(
    *, producer: Producer, client: redis.Redis, prefix: str, topic: Any, id: Any, when: dict[str, Any]
) -> None:
    """Cancel, reschedule and find."""
    due = {name: when[name] for name in ("delay", "at") if name in when}
    for call in (
        lambda: producer.cancel(topic, id),
        lambda: producer.reschedule(topic, id, **due),
        lambda: producer.find(topic, id),
    ):
        _refuses_whole(client, prefix, call)


@few
@given(topic=_mostly(st.just("orders")), body=anything, options=_options)
def test_the_asyncio_producer(
    *, redis_url: str, client: redis.Redis, prefix: str, topic: Any, body: Any, options: dict[str, Any]
) -> None:
    """It is as strict as its twin."""

    async def send() -> None:
        async with AsyncProducer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
            await producer.send(topic, body, **options)
            # A send without an id makes one.
            await producer.cancel(topic, options.get("id") or "m")

    # In a thread, as the event loop of this one is pytest's.
    with ThreadPoolExecutor(1) as thread:
        _refuses_whole(client, prefix, lambda: thread.submit(asyncio.run, send()).result())


@few
@given(confirm=st.fixed_dictionaries({}, optional={"replicas": anything, "fsync": st.booleans(), "timeout": anything}))
def test_confirm(confirm: dict[str, Any]) -> None:
    """What is to be confirmed."""
    with suppress(InvalidInput):
        Confirm(**confirm)


@few
@given(group=_mostly(st.just("billing")), topics=_mostly(st.just("orders")), name=_mostly(st.none()), values=st.data())
def test_consumer(
    *, redis_url: str, client: redis.Redis, prefix: str, group: Any, topics: Any, name: Any, values: st.DataObject
) -> None:
    """A consumer's names, and each of its calls."""
    given_settings = ConsumerSettings(redis_url=redis_url, prefix=prefix, patience_s=0, block_s=0.05)
    limit, visibility = values.draw(_mostly(st.integers(1, 10))), values.draw(_mostly(st.none()))
    delay, error = values.draw(_mostly(st.floats(0, 10))), values.draw(_texts)

    def call() -> None:
        if not isinstance(topics, str | list | tuple):
            return
        with Consumer(topics, group, name=name, settings=given_settings) as consumer:
            with Producer(settings=ProducerSettings(redis_url=redis_url, prefix=prefix)) as producer:
                producer.send("orders", b"x")
            deliveries = consumer.read(limit, visibility=visibility)
            with suppress(InvalidInput):
                consumer.extend(*deliveries, lease=delay)
            with suppress(InvalidInput):
                consumer.nack(*deliveries, delay=delay, error=error)

    with suppress(InvalidInput):
        call()
    remove_keys(client, prefix)


@few
@given(group=anything, topic=anything, concurrency=anything, timeout=anything, delay=anything)
def test_worker(group: Any, topic: Any, concurrency: Any, timeout: Any, delay: Any) -> None:
    """What a worker and its handlers are told."""
    with suppress(InvalidInput):
        Worker(group, settings=ConsumerSettings())
    with suppress(InvalidInput):
        Worker("billing", settings=ConsumerSettings()).on(topic, concurrency=concurrency, timeout=timeout)(print)
    with suppress(InvalidInput):
        Retry(delay=delay)
    Reject("why")


@few
@given(data=st.data())
def test_settings(data: st.DataObject) -> None:
    """Settings of each program."""
    for kind in (ProducerSettings, ConsumerSettings, ManagerSettings):
        name = data.draw(st.sampled_from(sorted(kind.model_fields)))
        with suppress(LisaError, ValueError):
            kind(**{name: data.draw(anything)})
        with suppress(LisaError):
            kind.load(**{name: data.draw(anything)})


@many
@given(
    data=st.binary(max_size=60),
    value=_json,
    prefix=st.sampled_from((b"", b"\x01", b"\x00", b"\x02", b"1 0-0 - 5 5 nack ")),
)
def test_what_is_stored(data: bytes, value: object, prefix: bytes) -> None:
    """Readers of what is stored make something of it, or say that it is damaged."""
    stored = prefix + data
    with suppress(UnreadableRecord):
        unpack_record(stored)
    headers = json.dumps(value).encode()
    with suppress(UnreadableRecord):
        record = unpack_record(b"\x01" + bytes(12) + pack_content(b"x", headers=headers))
        assert all(isinstance(text, str) for pair in record.headers.items() for text in pair)
    with suppress(InvalidInput):
        Policy.load(stored)
    read_failure(stored)
    read_failure(b"1 " + data + b" - 5 5 nack " + data)
    parse_topic("orders", stored)
    entry_of(b"1-1", [b"id", stored, b"due", data, b"n", data, b"g", data])


_WORDS = (
    *("topic", "set", "drop", "list", "garbage", "replay", "purge", "group", "check", "status", "show", "cancel"),
    *("send", "load", "orders", "--json", "--yes", "--all", "--id", "--force", "--delay", "5", "--ttl", "-", "--"),
    *("--priority", "1", "--reason", "nack", "--group", "billing", "--older-than"),
)
_words = st.one_of(
    st.sampled_from(_WORDS),
    _texts.filter(lambda text: "\x00" not in text and text.isprintable()),
)


@few
@given(words=st.lists(_words, min_size=1, max_size=6), stdin=st.text(max_size=40))
def test_commands(redis_url: str, client: redis.Redis, prefix: str, words: list[str], stdin: str) -> None:
    """A command line is carried out, or refused with exit code 2; it never ends with a traceback."""
    if "run" in words or "--watch" in words:
        return
    commands = Commands(redis_url, prefix)
    for run in (commands.manager, commands.producer):
        with suppress(UnknownTopic, UnknownGroup):
            ran = run(*words, stdin=stdin)
            assert ran.code in (0, 1, 2), ran
            assert "Traceback" not in ran.err
    remove_keys(client, prefix)
