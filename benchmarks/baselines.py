"""The baselines: the yardstick, which anybody would write, and the ceiling, which nothing can beat.

The yardstick is redis-py pipelining `SET` and `ZADD` of the same bytes, in batches of 500. The ceiling is the same
steps as Lisa's in the barest scripts, with no library around and no promise kept.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import redis

__all__ = ["BATCH", "Bare", "load_bare", "yardstick"]

BATCH = 500
HOUR_MS = 3_600_000
_SCRIPTS = Path(__file__).parent / "bare"
_GROUP = "billing"


def yardstick(client: "redis.Redis", bodies: Sequence[str]) -> float:
    """Writes bodies, each with its place in a sorted set. Returns messages per second. Leaves an empty database."""
    due_ms = time.time() * 1000 + HOUR_MS
    began = time.perf_counter()
    with client.pipeline(transaction=False) as pipe:
        for at in range(0, len(bodies), BATCH):
            for number, body in enumerate(bodies[at : at + BATCH], at):
                message_id = f"{number:017d}"
                pipe.set(message_id, body)
                pipe.zadd("due", {message_id: due_ms})
            pipe.execute()
    rate = len(bodies) / (time.perf_counter() - began)
    client.flushdb()
    return rate


def load_bare(client: "redis.Redis") -> dict[str, str]:
    """Loads the scripts in `bare/`. Returns their digests, by name."""
    return {path.stem: str(client.script_load(path.read_text("utf-8"))) for path in _SCRIPTS.glob("*.lua")}


class Bare:
    """The scripts in `bare/`, and the loop that a delay queue without a library would be."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client
        self._ids = (f"{number:017d}" for number in count())
        self._shas = load_bare(client)

    def schedule(self, bodies: Sequence[str], *, delay_ms: int, batch: int = BATCH) -> float:
        """Schedules bodies. Returns messages per second."""
        began = time.perf_counter()
        for at in range(0, len(bodies), batch):
            arguments: list[str | int] = []
            for body in bodies[at : at + batch]:
                arguments += (next(self._ids), delay_ms, body)
            self._run("schedule", ["messages", "waiting"], arguments)
        return len(bodies) / (time.perf_counter() - began)

    def drain(self, messages: int) -> float:
        """Promotes, reads, fetches, acks and trims these messages, all of them due. Returns messages per second."""
        self._client.xgroup_create("ready", _GROUP, "0", mkstream=True)
        began = time.perf_counter()
        done = 0
        while done < messages:
            self._run("promote", ["waiting", "ready"], [BATCH])
            done += sum(self._handle())
        rate = messages / (time.perf_counter() - began)
        self._client.xtrim("ready", maxlen=0, approximate=False)
        self._client.xgroup_destroy("ready", _GROUP)
        return rate

    def _handle(self) -> Iterator[int]:
        read: Any = self._client.xreadgroup(_GROUP, "one", {"ready": ">"}, count=BATCH)
        for _, entries in read:
            ids = [fields[b"id"] for _, fields in entries]
            self._client.hmget("messages", ids)
            self._run("ack", ["ready", "messages"], [_GROUP, *(entry for entry, _ in entries), *ids])
            yield len(entries)

    def _run(self, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        return self._client.evalsha(self._shas[name], len(keys), *keys, *arguments)
