"""The calls of the interface on messages, as its documents describe them."""

import json
import re
import time
from typing import Any

import pytest

from lisa_consumer import AsyncConsumer, ConsumerSettings
from lisa_manager import AsyncAdmin
from lisa_producer import AsyncProducer, ProducerSettings
from support.waiting import wait_until
from support.wire import Wire

from .conftest import Stage

FIELDS = ["topic", "msgId", "msg", "produceTime", "triggerTime", "expireTime", "maxRetry", "retry", "status"]
HOUR = 3_600_000


def _pull(wire: Wire, topic: str, **more: object) -> list[dict[str, object]]:
    reply = wire.post("longPollingMsg", topic=topic, longPollingTimeoutMillis=30000, **more)
    assert reply.code == 200
    return list(reply.messages)


def _status(wire: Wire, topic: str, id: str) -> int:
    return int(wire.post("getMsg", topic=topic, msgId=id).message["status"])


def _v1(wire: Wire, method: str, path: str, **members: object) -> Any:
    body = json.dumps(members) if members else None
    reply = wire.request(method, f"/v1/topics/{path}", body, {"content-type": "application/json"} if body else {})
    assert reply.status < 300, reply
    return reply.content


def test_send_answers_the_message(wire: Wire, topic: str) -> None:
    """Nine fields, in order; the id is 32 hex digits; times are in ms and fit each other."""
    began = time.time() * 1000
    reply = wire.post("sendMsg", topic=topic, msg="abc é", delayMillis=10000, ttlMillis=20000, maxRetry=3)
    assert (reply.status, reply.kind, list(reply.content)) == (200, "application/json", ["code", "msg", "delayMsg"])
    assert reply.content["msg"] == "success"
    message = reply.message
    assert list(message) == FIELDS
    assert re.fullmatch("[0-9a-f]{32}", message["msgId"])
    assert message["msg"] == "abc é"
    assert began - 1000 < message["produceTime"] < time.time() * 1000 + 1000
    assert message["triggerTime"] - message["produceTime"] == 10000
    assert message["expireTime"] - message["triggerTime"] == 20000
    assert (message["maxRetry"], message["retry"], message["status"]) == (3, 0, 1)


def test_defaults(wire: Wire, topic: str) -> None:
    """An hour to live, ten retries, an id of the server's; empty numbers and an empty id count as absent."""
    reply = wire.post("sendMsg", topic=topic, msg="x", delayMillis=-5, ttlMillis="", maxRetry=-1, msgId="")
    message = reply.message
    assert message["triggerTime"] == message["produceTime"]
    assert message["expireTime"] - message["triggerTime"] == 3_600_000
    assert (message["maxRetry"], len(message["msgId"])) == (10, 32)


def test_pull_ack_and_what_get_says(wire: Wire, other: Wire, topic: str) -> None:
    """A message by its states: waiting, delivered, consumed; acked at another gateway than it was pulled from."""
    id = wire.post("sendMsg", topic=topic, msg="abc", delayMillis=60_000).message["msgId"]
    assert _status(wire, topic, id) == 1
    assert wire.post("pullMsg", topic=topic).content == {"code": 200, "delayMsgList": []}
    wire.post("rescheduleMsg", topic=topic, msgId=id, delayMillis=100)
    [message] = _pull(wire, topic)
    assert list(message) == FIELDS
    assert (message["msgId"], message["retry"], message["status"]) == (id, 1, 3)
    assert _status(other, topic, id) == 3
    assert other.post("ackMsg", topic=topic, msgId=id, ack="true").content == {"code": 200, "msg": "success"}
    shown = wire.post("getMsg", topic=topic, msgId=id).message
    assert shown == message | {"status": 4}
    assert wire.post("ackMsg", topic=topic, msgId=id).content == {"code": 200, "msg": "success"}
    assert wire.post("deleteMsg", topic=topic, msgId=id).code == 404


def test_ack_without_its_parameter(wire: Wire, topic: str) -> None:
    """The documents leave `ack` out: it means true."""
    wire.post("sendMsg", topic=topic, msg="abc", delayMillis=0, msgId="a")
    assert _pull(wire, topic)
    assert wire.post("ackMsg", topic=topic, msgId="a").code == 200
    assert _status(wire, topic, "a") == 4


def test_ack_false_delivers_again_at_once(wire: Wire, other: Wire, topic: str) -> None:
    """The next delivery follows without the ack timeout, and counts; after the last retry the message is given up."""
    wire.post("sendMsg", topic=topic, msg="abc", delayMillis=0, msgId="a", maxRetry=1)
    assert _pull(wire, topic, ackTimeoutMillis=600_000)[0]["retry"] == 1
    other.post("ackMsg", topic=topic, msgId="a", ack="false")
    assert _pull(wire, topic)[0]["retry"] == 2
    wire.post("ackMsg", topic=topic, msgId="a", ack="0")
    shown = wire.post("getMsg", topic=topic, msgId="a").message
    assert (shown["status"], shown["retry"], shown["reason"]) == (6, 2, "nack")


def test_ack_timeout(wire: Wire, topic: str) -> None:
    """Without an ack the message comes again after the ack timeout, not before, until its retries are spent."""
    wire.post("sendMsg", topic=topic, msg="abc", delayMillis=0, msgId="a", maxRetry=1)
    began = time.monotonic()
    assert _pull(wire, topic, ackTimeoutMillis=700)[0]["retry"] == 1
    assert _pull(wire, topic, ackTimeoutMillis=300)[0]["retry"] == 2
    assert time.monotonic() - began > 0.6
    wait_until(lambda: _status(wire, topic, "a") == 6, what="the message to be given up")
    assert wire.post("pullMsg", topic=topic).messages == []


def test_no_retries_is_one_delivery(wire: Wire, topic: str) -> None:
    """MaxRetry 0 is allowed: one delivery, then status 6, also when its ack never comes."""
    wire.post("sendMsg", topic=topic, msg="abc", delayMillis=0, msgId="a", maxRetry=0)
    assert _pull(wire, topic, ackTimeoutMillis=200)
    wait_until(lambda: _status(wire, topic, "a") == 6, what="the message to be given up")


async def test_lease_is_the_pulls_own(wire: Wire, topic: str, admin: AsyncAdmin) -> None:
    """A lease longer than the topic's visibility timeout holds."""
    wire.post("sendMsg", topic=topic, msg="abc", delayMillis=0, msgId="a")
    await admin.set_policy(topic, visibility_ms=200)
    assert _pull(wire, topic, ackTimeoutMillis=60_000)
    assert wire.post("longPollingMsg", topic=topic, longPollingTimeoutMillis=1200).messages == []
    assert _status(wire, topic, "a") == 3


def test_ttl_counts_from_the_due_time(wire: Wire, topic: str) -> None:
    """A ttl shorter than the delay does not end a message before it is due; unread, it ends as 5."""
    sent = wire.post("sendMsg", topic=topic, msg="abc", delayMillis=900, ttlMillis=400, msgId="a").message
    [message] = _pull(wire, topic)
    assert time.time() * 1000 >= message["triggerTime"] == sent["triggerTime"]
    wire.post("sendMsg", topic=topic, msg="abc", delayMillis=10, ttlMillis=200, msgId="b")
    wait_until(lambda: _status(wire, topic, "b") == 5, what="the message to expire")
    assert wire.post("pullMsg", topic=topic).messages == []
    assert wire.post("sendMsg", topic=topic, msg="again", delayMillis=0, msgId="b").message["msg"] == "again"


def test_burst_by_batches(wire: Wire, other: Wire, topic: str) -> None:
    """Twenty messages by batches of five: all once, then none."""
    ids = {wire.post("sendMsg", topic=topic, msg=f"{n}", delayMillis=0).message["msgId"] for n in range(20)}
    batches = [w.post("pullMsg", topic=topic, batch=5).messages for w in (wire, other, wire, other, wire)]
    assert [len(batch) for batch in batches] == [5, 5, 5, 5, 0]
    assert {message["msgId"] for batch in batches for message in batch} == ids


def test_first_send_of_an_id_stands(wire: Wire, other: Wire, topic: str) -> None:
    """A second send of a live id answers the first message as it stands."""
    first = wire.post("sendMsg", topic=topic, msg="first", delayMillis=5000, msgId="a").message
    assert other.post("sendMsg", topic=topic, msg="second", delayMillis=0, msgId="a").message == first


@pytest.mark.parametrize("end", ["ack", "delete", "delete delivered", "give up"])
def test_ended_id_is_sent_anew(wire: Wire, topic: str, end: str) -> None:
    """Once its message has ended, an id may be used again."""
    wire.post("sendMsg", topic=topic, msg="first", delayMillis=0, msgId="a", maxRetry=0)
    if end != "delete":
        assert _pull(wire, topic)
    if end == "ack":
        wire.post("ackMsg", topic=topic, msgId="a")
    elif end == "give up":
        wire.post("ackMsg", topic=topic, msgId="a", ack="off")
    else:
        assert wire.post("deleteMsg", topic=topic, msgId="a").content == {"code": 200, "msg": "success"}
    expected = {"ack": 4, "give up": 6}.get(end, 7)
    assert _status(wire, topic, "a") == expected
    again = wire.post("sendMsg", topic=topic, msg="second", delayMillis=0, msgId="a")
    assert (again.code, again.message["msg"], again.message["retry"]) == (200, "second", 0)
    [message] = _pull(wire, topic)
    assert (message["msg"], message["retry"]) == ("second", 1)


@pytest.mark.parametrize("window_ms", [None, 86_400_000])
async def test_no_dedup_window_keeps_an_ended_id(
    wire: Wire, topic: str, admin: AsyncAdmin, window_ms: int | None
) -> None:
    """Whoever has declared the topic: another interface of the gateway, or an operator who gave it a window."""
    if window_ms:
        await admin.create_topic(topic, dedup_window_ms=window_ms)
    assert _v1(wire, "POST", f"{topic}/messages", id="remind-7", body="Mon")["outcome"] == "sent"
    for body in ("Tue", "Wed"):
        assert len(_pull(wire, topic)) == 1
        wire.post("ackMsg", topic=topic, msgId="remind-7")
        again = wire.post("sendMsg", topic=topic, msg=body, delayMillis=0, msgId="remind-7")
        assert (again.code, again.message["msg"], again.message["status"]) == (200, body, 2)
    assert [message["msg"] for message in _pull(wire, topic)] == ["Wed"]


def test_a_send_after_a_drop_declares_the_topic(wire: Wire, topic: str) -> None:
    """At the same gateway, at once, with its group and its former shards, to which others may still send."""
    _v1(wire, "PUT", topic, shards=4)
    wire.post("sendMsg", topic=topic, msg="first", delayMillis=HOUR)
    assert _v1(wire, "DELETE", f"{topic}?force=true")["messages"] == 1
    sent = {wire.post("sendMsg", topic=topic, msg="second", delayMillis=0).message["msgId"] for _ in range(8)}
    assert [each["group"] for each in _v1(wire, "GET", f"{topic}/groups")["groups"]] == ["http"]
    pulled: set[str] = set()
    while messages := wire.post("pullMsg", topic=topic, batch=8).messages:
        pulled |= {message["msgId"] for message in messages}
    assert pulled == sent


def test_delete_and_release(wire: Wire, topic: str) -> None:
    """A deleted message is not delivered, and can be seen unless it was released; a second delete finds none."""
    for id in ("a", "b"):
        wire.post("sendMsg", topic=topic, msg="abc", delayMillis=400, msgId=id)
    assert wire.post("deleteMsg", topic=topic, msgId="a").code == 200
    assert wire.post("deleteMsg", topic=topic, msgId="b", release="TRUE").code == 200
    shown = wire.post("getMsg", topic=topic, msgId="a").message
    assert (shown["status"], shown["msg"]) == (7, "abc")
    assert wire.post("getMsg", topic=topic, msgId="b").code == 404
    assert wire.post("deleteMsg", topic=topic, msgId="a").code == 404
    assert wire.post("deleteMsg", topic=topic, msgId="a", release="true").code == 404
    assert wire.post("getMsg", topic=topic, msgId="a").code == 404
    assert wire.post("longPollingMsg", topic=topic, longPollingTimeoutMillis=1000).messages == []


def test_unknown_message(wire: Wire, topic: str) -> None:
    """What there is not: 404 for get and delete, success for an ack, nothing for a pull."""
    assert wire.post("getMsg", topic=topic, msgId="none").code == 404
    assert wire.post("deleteMsg", topic=topic, msgId="none").code == 404
    assert wire.post("ackMsg", topic=topic, msgId="none", ack="true").code == 200
    assert wire.post("pullMsg", topic=topic).content == {"code": 200, "delayMsgList": []}


async def test_beside_python(wire: Wire, topic: str, producer: AsyncProducer, stage: Stage) -> None:
    """What Python sends is pulled here, any bytes included; what is sent here is read by Python."""
    await producer.send(topic, b"\xff\x00", id="raw")
    await producer.send(topic, {"n": 1}, id="json", max_retries=2, ttl=7)
    messages = {}
    while len(messages) < 2:
        messages |= {message["msgId"]: message for message in _pull(wire, topic, batch=2)}
    assert (messages["raw"]["msg"], messages["raw"]["msgEncoding"]) == ("/wA=", "base64")
    assert (messages["json"]["msg"], messages["json"]["maxRetry"]) == ('{"n":1}', 2)
    assert messages["json"]["expireTime"] - messages["json"]["triggerTime"] == 7000
    wire.post("sendMsg", topic=topic, msg="hello", delayMillis=0, msgId="c")
    settings = ConsumerSettings(redis_url=stage.url, prefix=stage.prefix)
    async with AsyncConsumer(topic, "http", settings=settings) as consumer:
        [delivery] = await consumer.read(wait=30)
        assert (delivery.id, delivery.text()) == ("c", "hello")
        assert _status(wire, topic, "c") == 3
        await consumer.ack(delivery)
    # Only the dedup window of the topic knows it, which Python has declared.
    assert wire.post("getMsg", topic=topic, msgId="c").message == {
        "topic": topic,
        "msgId": "c",
        "retry": 0,
        "status": 4,
    }


def test_delete_after_an_ack_leaves_its_note(wire: Wire, topic: str) -> None:
    """What was consumed is still shown as consumed; and what was deleted, as deleted, though it is acked afterwards."""
    for id in ("acked", "deleted"):
        wire.post("sendMsg", topic=topic, msg="abc", delayMillis=0, msgId=id)
    assert len(_pull(wire, topic, batch=2)) == 2
    wire.post("ackMsg", topic=topic, msgId="acked")
    assert wire.post("deleteMsg", topic=topic, msgId="acked").code == 404
    assert wire.post("deleteMsg", topic=topic, msgId="deleted").code == 200
    assert wire.post("ackMsg", topic=topic, msgId="deleted").code == 200
    assert _status(wire, topic, "acked") == 4
    assert _status(wire, topic, "deleted") == 7


def test_a_batch_is_sent_as_its_messages_would_be(wire: Wire, topic: str) -> None:
    """Each with its own answer, the first of an id included; a wrong value anywhere sends nothing."""
    wire.post("sendMsg", topic=topic, msg="first", delayMillis=HOUR, msgId="known")
    items = [
        {"msg": "ž", "delayMillis": 0},
        {"msg": "b", "delayMillis": HOUR, "msgId": "b", "ttlMillis": 5, "maxRetry": 2},
        {"msg": "second", "delayMillis": "0", "msgId": "known"},
    ]
    reply = wire.post("sendMsgBatch", topic=topic, msgs=json.dumps(items))
    assert (reply.code, reply.content["msg"]) == (200, "success")
    sent = reply.messages
    assert [(m["msg"], m["status"]) for m in sent] == [("ž", 2), ("b", 1), ("first", 1)]
    assert sent[1]["expireTime"] == sent[1]["triggerTime"] + 5
    assert wire.post("getMsg", topic=topic, msgId="b").message == sent[1]
    for bad, field in (
        ({"msg": "x"}, "msgs.1.delayMillis"),
        ({"msg": "", "delayMillis": 0}, "msgs.1.msg"),
        ({"msg": "x", "delayMillis": "soon"}, "msgs.1.delayMillis"),
        ({"msg": "x", "delayMillis": 0, "msgId": "mine~"}, "msgs.1.msgId"),
        ({"msg": "x", "delayMillis": 0.5}, "msgs.1"),
        ({"msg": "x", "delayMillis": 0, "delay": 1}, "msgs.1"),
        ({"msg": "x" * 1_048_577, "delayMillis": 0}, "msgs.1.msg"),
        ({"msg": "\ud800", "delayMillis": 0}, "msgs.1"),
        (7, "msgs.1"),
    ):
        refused = wire.post("sendMsgBatch", topic=topic, msgs=json.dumps([{"msg": "x", "delayMillis": 0}, bad]))
        assert (refused.status, refused.code) == (200, 400), bad
        assert refused.content["msg"].startswith(field), refused.content
    for whole in ("", "[]", "{}", "nonsense", "[" * 100_000, json.dumps([{"msg": "x", "delayMillis": 0}] * 1_001)):
        assert wire.post("sendMsgBatch", topic=topic, msgs=whole).code == 400
    assert len(wire.post("pullMsg", topic=topic, batch=100).messages) == 1


def test_a_batch_that_was_sent_in_part_says_which(wire: Wire, topic: str) -> None:
    """So that what failed can be sent again, by the ids that it was given, and nothing else is sent twice."""
    path = f"/v1/topics/{topic}"
    wire.request("PUT", path, json.dumps({"max_messages": 5}), {"Content-Type": "application/json"})
    items = [{"msg": f"m{number}", "delayMillis": HOUR} for number in range(8)]
    reply = wire.post("sendMsgBatch", topic=topic, msgs=json.dumps(items))
    assert (reply.status, reply.code) == (200, 500)
    failed = {place: item for place, item in enumerate(reply.messages) if "error" in item}
    assert len(failed) == 3
    assert reply.content["msg"].startswith(f"3 of 8 messages failed, the first at msgs.{min(failed)}: ")
    assert {(item["topic"], item["code"]) for item in failed.values()} == {(topic, 500)}
    sent = [(place, item["msg"], item["status"]) for place, item in enumerate(reply.messages) if place not in failed]
    assert sent == [(place, f"m{place}", 1) for place in range(8) if place not in failed]
    wire.request("PATCH", path, json.dumps({"max_messages": None}), {"Content-Type": "application/json"})
    again = [items[place] | {"msgId": item["msgId"]} for place, item in failed.items()]
    for _ in range(2):
        assert wire.post("sendMsgBatch", topic=topic, msgs=json.dumps(again)).code == 200
        assert wire.request("GET", f"{path}/sizes").content["stored"] == 8


def test_trigger_and_reschedule(wire: Wire, topic: str) -> None:
    """A waiting message becomes due now, or later; others are left as they are."""
    sent = wire.post("sendMsg", topic=topic, msg="x", delayMillis=HOUR, msgId="a").message
    later = wire.post("rescheduleMsg", topic=topic, msgId="a", delayMillis=2 * HOUR)
    assert later.code == 200
    assert later.message["triggerTime"] >= sent["triggerTime"] + HOUR
    assert later.message["status"] == 1
    assert wire.post("triggerMsg", topic=topic, msgId="a").code == 200
    [message] = wire.post("longPollingMsg", topic=topic, longPollingTimeoutMillis=10_000).messages
    assert (message["msgId"], message["retry"]) == ("a", 1)
    for call, more in (("triggerMsg", {}), ("rescheduleMsg", {"delayMillis": 1})):
        assert wire.post(call, topic=topic, msgId="a", **more).code == 404
        assert wire.post(call, topic=topic, msgId="none", **more).code == 404
        assert wire.post(call, msgId="none", **more).status == 400
    assert wire.post("rescheduleMsg", topic=topic, msgId="a").status == 400
    wire.post("sendMsg", topic=topic, msg="x", delayMillis=0, msgId="ready")
    assert wire.post("triggerMsg", topic=topic, msgId="ready").code == 200
    assert wire.post("rescheduleMsg", topic=topic, msgId="ready", delayMillis=1).code == 404


async def test_a_message_that_only_another_group_has(wire: Wire, topic: str, stage: Stage) -> None:
    """It is alive, and seen as that group sees it; it can be deleted."""
    settings = ProducerSettings.load(redis_url=stage.url, prefix=stage.prefix)
    async with AsyncAdmin(settings=settings) as admin, AsyncProducer(settings=settings) as producer:
        await producer.send(topic, "x", delay=60)
        await admin.create_group(topic, "audit")
        await producer.send(topic, "x", id="m")
    assert _status(wire, topic, "m") == 2
    assert wire.post("sendMsg", topic=topic, msg="y", delayMillis=0, msgId="m").message["msg"] == "x"
    assert wire.post("deleteMsg", topic=topic, msgId="m").code == 200
    assert _status(wire, topic, "m") == 7


@pytest.mark.parametrize("end", ["ack", "give up"])
def test_an_id_is_alive_while_any_group_owes_its_message(wire: Wire, topic: str, end: str) -> None:
    """It has ended for the group of the gateway: a send answers the first message, and a delete ends it for all."""
    for group in ("", "billing"):
        wire.post("pullMsg", topic=topic, group=group)
    wire.post("sendMsg", topic=topic, msg="Mon", delayMillis=0, msgId="a", maxRetry=0)
    assert len(_pull(wire, topic)) == 1
    wire.post("ackMsg", topic=topic, msgId="a", ack=str(end == "ack").lower())
    assert _status(wire, topic, "a") == {"ack": 4, "give up": 6}[end]
    again = wire.post("sendMsg", topic=topic, msg="Tue", delayMillis=0, msgId="a")
    assert (again.code, again.message["msg"], again.message["status"]) == (200, "Mon", 2)
    assert wire.post("deleteMsg", topic=topic, msgId="a", release="true").code == 200
    assert wire.post("getMsg", topic=topic, msgId="a").code == 404
    assert wire.post("pullMsg", topic=topic, group="billing").messages == []
    assert wire.post("sendMsg", topic=topic, msg="Wed", delayMillis=0, msgId="a").message["msg"] == "Wed"
