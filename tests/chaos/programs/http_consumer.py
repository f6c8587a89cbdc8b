"""A consumer that reads and settles through gateways: by receipts, and by ids, as clients of camellia do.

It reads at one gateway and settles at another. Receipts are opaque to clients; the history needs what they hold.
"""

import base64
import json
import os
import random
import signal
import sys
import time
import zlib
from collections.abc import Sequence
from typing import Any

import redis

from chaos.history import Begun, Ended, Read, Recorder, Settled, Settling, Taken, now
from chaos.load import plan_of
from chaos.over_http import Gateways
from chaos.programs.setting import GATEWAYS, PREFIX, SEED, TOPICS, URL, recorder
from lisa_common.errors import LisaError, Unreachable
from lisa_common.model.keys import topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_consumer import Delivery
from lisa_gateway.v1.receipts import Receipts

__all__ = ["main"]

_PAUSE_S = 0.2
_LEASE_S = 3.0
_BY_ID = 0.5


class _Consumer:
    """Reads one topic at a time."""

    def __init__(self, group: str, history: Recorder) -> None:
        self._group = group
        self._history = history
        self._dice = random.Random(f"{SEED} http consumer")
        self._gateways = Gateways(GATEWAYS, self._dice).wait()
        self._receipts = Receipts(PREFIX, "")
        self._redis: Any = redis.Redis.from_url(URL, socket_timeout=1)

    def turn(self) -> None:
        """One read, and what follows. Raises LisaError."""
        topic = self._dice.choice(list(TOPICS))
        if self._dice.random() < _BY_ID:
            self._turn_by_id(topic)
        else:
            self._turn_by_receipt(topic)

    def _turn_by_id(self, topic: str) -> None:
        """As clients of camellia: a pull at one gateway, acks at any. Only the loans say which deliveries these are."""
        asked = now()
        more = {"topic": topic, "group": self._group, "batch": self._dice.choice((1, 20)), "ackTimeoutMillis": 3_000}
        call = self._dice.choice(("pullMsg", "longPollingMsg"))
        answer = self._gateways.form(call, longPollingTimeoutMillis=500, **more)
        taken = [each for message in answer["delayMsgList"] if (each := self._lent(topic, message)) is not None]
        if taken:
            self._history.write(Read(now(), asked, asked, self._group, taken))
        for each in taken:
            self._history.write(Begun(now(), self._group, list(each.place)))
            self._history.write(Ended(now(), self._group, list(each.place)))
            self._ack_by_id(each)

    def _lent(self, topic: str, message: Any) -> Taken | None:
        """None if the loan is lost, or cannot be read now: then the delivery is left to its lease."""
        body = base64.b64decode(message["msg"]) if "msgEncoding" in message else message["msg"].encode()
        try:
            policy = Policy.load(self._redis.hget(topics_key(PREFIX), topic))
            for keys in Layout(PREFIX, topic, policy).homes(message["msgId"]):
                loan = self._redis.get(keys.loan(self._group, message["msgId"]))
                entry, due_ms, attempt, _ = json.loads(loan or "[0, 0, 0, 0]")
                if attempt == message["retry"]:
                    facts = (topic, message["msgId"], entry, attempt, due_ms, None)
                    return Taken(*facts, plan_of(body).mark, zlib.crc32(body), keys.shard)
        except redis.RedisError as error:
            print(error, file=sys.stderr, flush=True)  # noqa: T201 - its log
        return None

    def _turn_by_receipt(self, topic: str) -> None:
        asked = now()
        wait = self._dice.choice((0, 0.3, 1))
        given = {"limit": self._dice.choice((1, 10, 50)), "wait": wait, "bodies": "base64"}
        _, answer = self._gateways.call("POST", f"/v1/topics/{topic}/groups/{self._group}/read", given)
        held = [(each["receipt"], self._delivery(each)) for each in answer["deliveries"]]
        if not held:
            return
        taken = [_taken(delivery, each) for (_, delivery), each in zip(held, answer["deliveries"], strict=True)]
        self._history.write(Read(now(), asked, asked, self._group, taken))
        done: list[tuple[str, Delivery]] = []
        failed: list[tuple[str, Delivery]] = []
        for each in held:
            place = list(each[1].place)
            self._history.write(Begun(now(), self._group, place))
            fails = plan_of(each[1].body).what in ("failall", "reject")
            self._history.write(Ended(now(), self._group, place, "as told" if fails else ""))
            (failed if fails else done).append(each)
        self._settle(done, failed)

    def _delivery(self, each: Any) -> Delivery:
        held = self._receipts.read(each["receipt"]).delivery
        body = base64.b64decode(each["body_base64"])
        return held._replace(body=body, due_ms=each["due_ms"])

    def _settle(self, done: list[tuple[str, Delivery]], failed: list[tuple[str, Delivery]]) -> None:
        what = self._dice.choices(("ack", "release", "extend", "hang"), (85, 5, 8, 2))[0]
        if done and what == "release":
            self._by_receipt("release", done)
            done = []
        elif done and what == "extend":
            self._by_receipt("extend", done)
        elif done and what == "hang":
            time.sleep(_LEASE_S)
        if done:
            self._by_receipt("ack", done)
        if failed:
            self._by_receipt("nack", failed, delay=0.2, error="as told")

    def _by_receipt(self, what: str, held: list[tuple[str, Delivery]], **more: object) -> None:
        op = self._begin(what, [delivery for _, delivery in held])
        try:
            _, answer = self._gateways.call("POST", f"/v1/{what}", {"receipts": [text for text, _ in held], **more})
        except LisaError as error:
            # In a round trip for several shards, one call may have been carried out though another was refused.
            whole = isinstance(error, Unreachable) and len({delivery.place[:2] for _, delivery in held}) == 1
            self._history.write(Settled(now(), op, ["failed"] * len(held) if whole else None))
            raise
        match what:
            case "release":
                outcomes = ["released"] * len(held)
            case "extend":
                outcomes = ["kept" if kept else "lost" for kept in answer["kept"]]
            case _:
                outcomes = answer["outcomes"]
        self._history.write(Settled(now(), op, outcomes))

    def _ack_by_id(self, taken: Taken) -> None:
        """The answer does not say whether it was still this delivery."""
        op = self._begin("ack", [taken])
        try:
            self._gateways.form("ackMsg", topic=taken.topic, msgId=taken.id, group=self._group, ack="true")
        finally:
            self._history.write(Settled(now(), op, None))

    def _begin(self, what: str, deliveries: Sequence[Delivery | Taken]) -> str:
        op = self._history.op()
        self._history.write(Settling(now(), op, what, self._group, [list(each.place) for each in deliveries]))
        return op


def _taken(delivery: Delivery, each: Any) -> Taken:
    entry = delivery.entry
    at_ms = each["due_ms"] if each["due_ms"] != entry.due_ms else None
    return Taken(
        *(delivery.topic, delivery.id, entry.entry, delivery.attempt, entry.due_ms, at_ms),
        *(plan_of(delivery.body).mark, zlib.crc32(delivery.body), delivery.shard, False),
    )


def main(group: str) -> None:
    """Reads and settles until SIGTERM."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    print("ready", flush=True)  # noqa: T201 - its log
    consumer = _Consumer(group, recorder(f"http-consumer-{group}"))
    while not asked:
        try:
            consumer.turn()
        except LisaError as error:
            print(error, file=sys.stderr, flush=True)  # noqa: T201 - its log
            # Errors may come at once and repeatedly.
            time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main(os.environ.get("LISA_CHAOS_GROUP", "audit"))
