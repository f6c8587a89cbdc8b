"""What a test has sent: recorded as it passes the connections of this process."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from unittest import mock

from lisa_common.bodies import json_bytes
from lisa_common.client.async_connection import AsyncConnection
from lisa_common.client.connection import Connection
from lisa_common.errors import InvalidInput, LisaError
from lisa_common.model.record import VERSION, unpack_record
from lisa_common.protocol.call import Call, key_of
from lisa_common.protocol.producing import SENDS

__all__ = ["Sent", "same_body", "watch"]

_STAMP = bytes((VERSION, *bytes(12)))
"""What the scripts write before the content of a message."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was sent. `delay_s` is None where the sender chose a moment."""

    topic: str
    id: str
    body: bytes
    due_ms: int
    """When it was due as it was sent, in ms of the server's clock."""
    delay_s: float | None
    ttl_s: float | None
    max_retries: int | None
    priority: int
    headers: dict[str, str]

    @property
    def at(self) -> datetime:
        """When it was due as it was sent."""
        return datetime.fromtimestamp(self.due_ms / 1000, UTC)

    def json(self) -> Any:
        """The body decoded as JSON."""
        return json.loads(self.body)

    def __str__(self) -> str:
        due = f"at={self.at.isoformat()}" if self.delay_s is None else f"delay={self.delay_s:g}"
        return f"{self.topic}: id={self.id!r}, {due}, body={self.body[:80]!r}"


def same_body(sent: Sent, wanted: object) -> bool:
    """Whether a message has this body: bytes and text as they are, other values by their JSON."""
    if isinstance(wanted, (bytes, bytearray, memoryview)):
        return sent.body == bytes(wanted)
    if isinstance(wanted, str):
        return sent.body == wanted.encode()
    try:
        return bool(sent.json() == json.loads(json_bytes(wanted)))
    except ValueError:
        return False


@contextmanager
def watch(shown: str, prefix: str, on_sent: Callable[[Sent], None]) -> Iterator[None]:
    """Reports each message that this process sends, until the block ends.

    Meanwhile a call to a server with another shown URL, or with another prefix, raises InvalidInput: code under test
    must not reach a real server.
    """
    run, async_run = Connection.execute_each, AsyncConnection.execute_each

    def execute_each(
        self: Connection, calls: Sequence[Call[Any]], meanwhile: Callable[[], object] | None = None
    ) -> list[Any]:
        _check(self.shown, shown, calls, prefix)
        results = run(self, calls, meanwhile)
        _report(calls, results, on_sent)
        return results

    async def async_execute_each(self: AsyncConnection, calls: Sequence[Call[Any]]) -> list[Any]:
        _check(self.shown, shown, calls, prefix)
        results = await async_run(self, calls)
        _report(calls, results, on_sent)
        return results

    with (
        mock.patch.object(Connection, "execute_each", execute_each),
        mock.patch.object(AsyncConnection, "execute_each", async_execute_each),
    ):
        yield


def _check(url: str, wanted: str, calls: Sequence[Call[Any]], prefix: str) -> None:
    hint = "of the test: pass clients and workers that were made before the test to lisa.attach()"
    if url != wanted:
        raise InvalidInput("redis_url", url, f"{wanted}, the server {hint}")
    for call in calls:
        key = key_of(call) if call.script else None
        if key is not None and not str(key).startswith(f"{prefix}:"):
            raise InvalidInput("prefix", str(key).partition(":")[0], f"{prefix!r}, the prefix {hint}")


def _report(calls: Sequence[Call[Any]], results: Sequence[Any], on_sent: Callable[[Sent], None]) -> None:
    for call, dues in zip(calls, results, strict=True):
        script = call.script
        if script is None or script.name not in SENDS or isinstance(dues, LisaError):
            continue
        first = 3 + len(script.keys)
        values = dict(zip(script.args, call.args[first:], strict=False))
        topic = str(values["topic"]).partition("/")[0]
        rows = call.args[first + len(script.args) :]
        # The call may have done only the first rows.
        for row, due_ms in zip(zip(*[iter(rows)] * len(script.row), strict=True), dues, strict=False):
            # A due time of 0 is a duplicate, a negative one that of a replacement.
            if due_ms:
                on_sent(_sent(topic, abs(due_ms), dict(zip(script.row, row, strict=True))))


def _sent(topic: str, due_ms: int, row: dict[str, Any]) -> Sent:
    record, due = unpack_record(_STAMP + row["content"]), row["due"]
    return Sent(
        topic=topic,
        id=row["id"],
        body=record.body,
        due_ms=due_ms,
        delay_s=int(due) / 1000 if due.startswith("+") else None,
        ttl_s=None if record.ttl_ms is None else record.ttl_ms / 1000,
        max_retries=record.max_retries,
        priority=record.priority,
        headers=dict(record.headers),
    )
