"""Bare programs of a delay queue with many topics, without a library and without any promise: `promote` and `consume`.

They do what a manager and a worker do for each message, by the scripts in `benchmarks/bare/`. They act at once; with
`BENCH_GATHERS` they let messages gather for as long as these two do.
"""

import math
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import redis

from benchmarks.baselines import BATCH, load_bare
from benchmarks.stamps import Recorder, due_of

__all__ = ["CHANNEL", "key"]

CHANNEL = "due"
"""Where a sender says which topic has a message due when: `topic ms`."""

_GROUP = "billing"
_PROMOTE_AFTER_S, _READ_AFTER_S = (0.002, 0.003) if os.environ.get("BENCH_GATHERS") else (0.0, 0.0)


def key(name: str, topic: str) -> str:
    """A key of a topic."""
    return f"{name}:{topic}"


def _promote(client: "redis.Redis", topics: Sequence[str]) -> None:
    sha = load_bare(client)["promote"]
    wakes: Any = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
    wakes.subscribe(CHANNEL)
    due_ms = dict.fromkeys(topics, 0.0)
    print("promotes", flush=True)
    while True:
        wait_s = min(due_ms.values()) / 1000 - time.time()
        if wake := wakes.get_message(timeout=min(max(0.0, wait_s), 1.0)):
            topic, _, at_ms = wake["data"].decode().partition(" ")
            due_ms[topic] = min(due_ms[topic], float(at_ms))
            continue
        time.sleep(_PROMOTE_AFTER_S)
        now_ms = time.time() * 1000
        with client.pipeline(transaction=False) as pipe:
            looked = [topic for topic in topics if due_ms[topic] <= now_ms]
            for topic in looked:
                pipe.evalsha(sha, 2, key("waiting", topic), key("ready", topic), BATCH)
            for topic, (_, following) in zip(looked, pipe.execute(), strict=True):
                due_ms[topic] = float(following or math.inf)


def _consume(client: "redis.Redis", topics: Sequence[str]) -> None:
    sha, record = load_bare(client)["ack"], Recorder()
    topic_of = {key("ready", topic).encode(): topic for topic in topics}
    for stream in topic_of:
        client.xgroup_create(stream, _GROUP, "0", mkstream=True)
    streams: dict[Any, Any] = dict.fromkeys(topic_of, ">")
    print("reads", flush=True)
    while True:
        read: Any = client.xreadgroup(_GROUP, "one", streams, count=BATCH, block=1_000)
        batches = [
            (topic_of[stream], [entry for entry, _ in entries], [fields[b"id"] for _, fields in entries])
            for stream, entries in read
        ]
        with client.pipeline(transaction=False) as pipe:
            for topic, _, ids in batches:
                pipe.hmget(key("messages", topic), ids)
            for bodies in pipe.execute():
                for body in bodies:
                    record(due_of(body))
            for topic, entries, ids in batches:
                pipe.evalsha(sha, 2, key("ready", topic), key("messages", topic), _GROUP, *entries, *ids)
            pipe.execute()
        time.sleep(_READ_AFTER_S)


if __name__ == "__main__":
    with redis.Redis.from_url(os.environ["LISA_REDIS_URL"], protocol=2) as server:
        {"promote": _promote, "consume": _consume}[sys.argv[1]](server, os.environ["BENCH_TOPICS"].split(","))
