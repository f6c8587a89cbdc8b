"""Values of wrong types, in every argument of every call of the clients: InvalidInput names the argument."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from lisa_common.errors import InvalidInput, InvalidSettings, LisaError
from lisa_consumer import AsyncConsumer, AsyncLender, AsyncSettler, Consumer, ConsumerSettings, Held, Worker
from lisa_manager import Activity, Admin, AsyncAdmin, ManagerSettings, Operation, State
from lisa_producer import AsyncProducer, Message, Producer, ProducerSettings
from lisa_testing import make_delivery

_DELIVERY = make_delivery(topic="orders", group="billing", id="a")
_NOW = datetime.now(UTC)
_RIGHT: dict[str, Any] = {
    "topic": "orders",
    "group": "billing",
    "id": "a",
    "ids": ["a"],
    "body": "x",
    "messages": [Message(body=1)],
    "deliveries": _DELIVERY,
    "held": [Held(_DELIVERY, "me")],
    "loans": (_DELIVERY, 5),
    "note": b"x",
    "keep": 5,
    "name": "n",
    "pattern": "orders.*",
    "fields": {},
    "schedules": {},
    "start": _NOW,
    "end": _NOW,
    "shards": 1,
    "state": State.WAITING,
    "topics": ["orders"],
    "done": Activity("me", "test"),
    "operation": Operation("o", "me", "replay", "orders", "", 1),
}
"""Arguments that calls need."""
_OTHER_NAMES = {
    "deliveries": ["delivery"],
    "loans": ["loan"],
    "ids": ["id"],
    "start": ["from"],
    "end": ["to"],
    "fields": ["policy"],
    "topics": ["topic"],
    "pattern": ["topic"],
    "name": ["schedule", "worker"],
}
"""What errors call some arguments."""
_NEEDED: dict[str, dict[str, Any]] = {
    "reschedule": {"delay": 5},
    "reschedule at": {},
    "send at_local": {"tz": "UTC"},
    "read": {"topics": "orders"},
}
"""Arguments without which others of a call are not looked at."""
_LEFT_OUT = {"close", "wait_for_server"}
_WRONG = (object(), [5], {"a": 5}, b"x", 1.5, -1)


@pytest.fixture
async def clients(redis_url: str, prefix: str) -> AsyncIterator[list[Any]]:
    """A client of each kind, on a topic with a message."""
    place: Any = {"redis_url": redis_url, "prefix": prefix}
    consuming = ConsumerSettings(**place)
    async with AsyncExitStack() as stack:
        opened: list[Any] = [
            AsyncProducer(settings=ProducerSettings(**place)),
            AsyncConsumer("orders", "billing", settings=consuming),
            AsyncSettler(settings=consuming),
            AsyncLender("billing", settings=consuming),
            AsyncAdmin(settings=ManagerSettings(**place)),
        ]
        for client in opened:
            await stack.enter_async_context(client)
        await opened[0].send("orders", "x", id="a")
        await opened[-1].set_schedule("orders", "n", every=3600)
        yield opened


def _calls(client: Any) -> Iterator[tuple[str, Callable[..., Any], inspect.Parameter]]:
    """Each argument of each call that waits for the server."""
    for name, call in inspect.getmembers(client, inspect.iscoroutinefunction):
        if not name.startswith("_") and name not in _LEFT_OUT:
            for parameter in inspect.signature(call).parameters.values():
                if parameter.kind is not parameter.VAR_KEYWORD:
                    yield f"{type(client).__name__}.{name}", call, parameter


async def _error_of(call: Callable[..., Any], wrong: inspect.Parameter, value: Any) -> Exception | None:
    given, named = list[Any](), dict[str, Any]()
    for each in inspect.signature(call).parameters.values():
        chosen = value if each.name == wrong.name else _RIGHT.get(each.name)
        if each.kind is each.KEYWORD_ONLY:
            named |= {each.name: chosen} if each.name == wrong.name or each.default is each.empty else {}
        elif each.kind is not each.VAR_KEYWORD and (each.name == wrong.name or each.default is each.empty):
            given.append(chosen)
    for name, needed in _NEEDED.get(f"{call.__name__} {wrong.name}", _NEEDED.get(call.__name__, {})).items():
        named.setdefault(name, needed)
    try:
        async with asyncio.timeout(30):
            await call(*given, **named)
    except Exception as error:  # noqa: BLE001 - it is judged
        return error
    return None


async def test_each_argument_is_checked(clients: list[Any]) -> None:
    """An object that has no type of use is InvalidInput of that argument; no value is another error of Python."""
    wrong = list[str]()
    for client in clients:
        for name, call, parameter in _calls(client):
            fields = {parameter.name, *_OTHER_NAMES.get(parameter.name, ())}
            for value in _WRONG:
                error = await _error_of(call, parameter, value)
                is_right = error is None or isinstance(error, LisaError)
                if parameter.name != "body" and (type(value) is object or parameter.annotation is bool):
                    is_right = isinstance(error, InvalidInput) and not fields.isdisjoint(error.field.split(" "))
                if not is_right:
                    wrong.append(f"{name}({parameter.name}={value!r}): {error!r}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (Producer, ["url", "confirm", "codec", "settings"]),
        (AsyncProducer, ["url", "confirm", "codec", "settings"]),
        (Admin, ["url", "settings"]),
        (AsyncAdmin, ["url", "settings"]),
        (partial(Consumer, "orders", "billing"), ["url", "name", "settings"]),
        (partial(AsyncConsumer, "orders", "billing"), ["url", "name", "settings"]),
        (AsyncSettler, ["url", "settings"]),
        (partial(AsyncLender, "billing"), ["url", "name", "most_bytes", "settings"]),
        (partial(Worker, "billing"), ["url", "name", "codec", "middleware", "concurrency", "prefetch", "settings"]),
    ],
)
def test_clients_check_what_they_are_made_of(make: Callable[..., Any], arguments: list[str]) -> None:
    """Also before they have connected."""
    for argument in arguments:
        with pytest.raises(
            (InvalidInput, InvalidSettings), match={"url": "redis_url", "name": "consumer"}.get(argument, argument)
        ):
            make(**{argument: object()})
