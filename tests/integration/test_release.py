"""This release serves what the release before has stored: `data/release.jsonl`, messages in every state as commands.

`data/make_release.py` made it with that release. Its topics: `orders` (groups billing and mail), `parcels` (two shards,
resharded to three while they held messages), `lonely` (no group), `alone` (a killed worker had begun its message) and
`gone` (dropped).
"""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from lisa_consumer import Delivery
from lisa_producer import AsyncProducer, CancelOutcome, RescheduleOutcome, SendOutcome, State
from support import wait_until_async
from support.commands import Commands
from support.plain import node_of
from support.running import Handled, managed, new_worker, working

_COMMANDS = Path(__file__).parent / "data/release.jsonl"
_MADE_WITH = "release:"
"""The prefix of the keys, with its colon."""

_STATES = {
    "acked": State.FINISHED,
    "acked by one": {"mail": State.DELIVERED},
    "replayed": {"billing": State.DELIVERED},
    "rejected": {"billing": State.GARBAGE},
    "failed": {"billing": State.GARBAGE},
    "retry": {"billing": State.RETRY},
    "retried": {"billing": State.DELIVERED},
    "released": {"billing": State.DELIVERED},
    "cancelled": State.CANCELLED,
    "cancelled while waiting": None,
    "pending": {"billing": State.DELIVERED, "mail": State.DELIVERED},
    "pending in one": {"billing": State.DELIVERED},
    "ready": State.READY,
    "waiting": State.WAITING,
    "delayed": State.WAITING,
    "rescheduled": State.WAITING,
}
"""Id in `orders` → the state of the message, or of its copies by group."""

_TO_BILLING = {"replayed", "retried", "released", "pending", "pending in one", "ready", "waiting"}
_TO_MAIL = {"acked by one", "pending", "ready", "waiting"}
_DELAYED = {"delayed", "rescheduled", "retry"}
_OF_PARCELS = {f"p{number}" for number in range(12)} - {"p0", "p4", "p5"}
"""Without the one that was acked, and those that wait."""


@pytest.fixture(autouse=True)
def restored(client: redis.Redis, prefix: str) -> None:
    """Restores the keys of the release, below the prefix of the test."""
    for line in _COMMANDS.read_text("utf-8").splitlines():
        words = [word.encode("latin-1") for word in json.loads(line)]
        at = 2 if words[0] == b"XGROUP" else 1
        key = words[at].decode().replace(_MADE_WITH, f"{prefix}:", 1)
        node_of(client, key).execute_command(*words[:at], key, *words[at + 1 :])


@asynccontextmanager
async def _served(url: str, prefix: str) -> AsyncIterator[dict[str, Handled]]:
    """Runs a manager and a worker of each group. Returns group → its deliveries so far."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(managed(url, prefix))
        workers = {group: new_worker(url, prefix, group) for group in ("billing", "mail")}
        handled = {group: Handled() for group in workers}
        for group, topics in (("billing", ("orders", "parcels", "alone")), ("mail", ("orders",))):

            async def handle(delivery: Delivery, deliveries: Handled = handled[group]) -> None:
                deliveries.append(delivery)

            workers[group].on(*topics)(handle)
        await stack.enter_async_context(working(*workers.values()))
        yield handled


def _of(deliveries: Handled, topic: str) -> set[str]:
    return {delivery.id for delivery in deliveries if delivery.topic == topic}


async def test_every_message_is_found_where_it_stood(sender: AsyncProducer, commands: Commands) -> None:
    """Records and states are read, an id within its dedup window is a duplicate, and the audit finds nothing."""
    for id, state in _STATES.items():
        found = await sender.find("orders", id)
        if isinstance(state, dict):
            assert found, id
            assert {copy.group: copy.state for copy in found.copies if copy.state in state.values()} == state, id
        else:
            assert (found and found.state) == state, id
    assert (await sender.send("orders", b"again", id="acked")).outcome is SendOutcome.DUPLICATE
    delayed: Any = await sender.find("orders", "delayed")
    assert (delayed.record.body, delayed.record.headers) == (b"in ten years", {"k": "v"})
    assert (delayed.record.priority, delayed.record.max_retries) == (200, 1)
    ran = commands.manager("check")
    assert ran.code == 0, ran.out


async def test_every_message_is_delivered(
    redis_url: str, prefix: str, sender: AsyncProducer, commands: Commands
) -> None:
    """Each group gets the messages that it is owed, also once replayed or rescheduled, and acks them."""
    async with _served(redis_url, prefix) as handled:
        billing, mail = handled["billing"], handled["mail"]
        await wait_until_async(lambda: _of(billing, "orders") >= _TO_BILLING and _of(mail, "orders") >= _TO_MAIL)
        await wait_until_async(lambda: _of(billing, "parcels") == _OF_PARCELS and _of(billing, "alone") == {"begun"})
        assert not (_of(billing, "orders") | _of(mail, "orders")) & {"cancelled", "acked", "delayed", "rejected"}
        assert {delivery.id: delivery.attempt for delivery in billing}["retried"] >= 2
        assert await sender.reschedule("orders", "rescheduled", delay=0) is RescheduleOutcome.RESCHEDULED
        assert await sender.reschedule("orders", "delayed", delay=0) is RescheduleOutcome.RESCHEDULED
        assert commands.manager("garbage", "replay", "orders", "rejected", "failed").code == 0
        assert await sender.cancel("parcels", "p4") is CancelOutcome.CANCELLED
        assert await sender.reschedule("parcels", "p5", delay=0) is RescheduleOutcome.RESCHEDULED
        awaited = {"rescheduled", "delayed", "rejected", "failed"}
        await wait_until_async(lambda: _of(billing, "orders") >= awaited and "p5" in _of(billing, "parcels"))
        await wait_until_async(lambda: _is_drained(commands))
    expired: Any = await sender.find("orders", "expires")
    assert {(copy.group, copy.failure.reason) for copy in expired.copies} == {
        ("billing", "expired"),
        ("mail", "expired"),
    }
    assert commands.manager("check").code == 0


def _is_drained(commands: Commands) -> bool:
    shown = {topic["topic"]: topic for topic in commands.manager("status", "--json").document}
    return all(not shown[topic][name] for topic in ("orders", "parcels", "alone") for name in ("ready", "delivered"))
