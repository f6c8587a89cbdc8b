"""Requests that are wrong, as raw bytes and as forms: each has its answer, and nothing is written for it."""

import asyncio
import json

import pytest

from lisa_manager import AsyncAdmin
from support.wire import Wire, raw_exchange

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
BASE = "/camellia/delayQueue/"


@pytest.mark.parametrize(
    ("call", "form", "status", "field"),
    [
        ("sendMsg", "msg=a&delayMillis=1", 400, "topic"),
        ("sendMsg", "topic=t&delayMillis=1", 400, "msg"),
        ("sendMsg", "topic=t&msg=a", 400, "delayMillis"),
        ("sendMsg", "topic=t&msg=a&delayMillis=", 400, "delayMillis"),
        ("sendMsg", "topic=t&msg=a&delayMillis=1.5", 400, "delayMillis"),
        ("sendMsg", "topic=t&msg=a&delayMillis=abc", 400, "delayMillis"),
        ("sendMsg", "topic=t&msg=a&delayMillis=9223372036854775808", 400, "delayMillis"),
        ("sendMsg", "topic=t&msg=a&delayMillis=1&ttlMillis=x", 400, "ttlMillis"),
        ("sendMsg", "topic=t&msg=a&delayMillis=1&maxRetry=2147483648", 400, "maxRetry"),
        ("sendMsg", "topic=t&msg=%ff&delayMillis=1", 400, "msg"),
        ("pullMsg", "batch=1", 400, "topic"),
        ("pullMsg", "topic=t&batch=99999999999", 400, "batch"),
        ("ackMsg", "topic=t", 400, "msgId"),
        ("ackMsg", "topic=t&msgId=a&ack=maybe", 400, "ack"),
        ("deleteMsg", "topic=t&msgId=a&release=2", 400, "release"),
        ("getMsg", "msgId=a", 400, "topic"),
    ],
)
def test_misunderstood(wire: Wire, call: str, form: str, status: int, field: str) -> None:
    """HTTP 400 with code 400 and the field, for what is missing or cannot be parsed."""
    reply = wire.request("POST", BASE + call, form, FORM)
    assert (reply.status, reply.code) == (status, 400)
    assert reply.content["msg"].startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("call", "form", "field"),
    [
        ("sendMsg", "topic=&msg=a&delayMillis=1", "topic"),
        ("sendMsg", "topic=t&msg=&delayMillis=1", "msg"),
        ("sendMsg", "topic=a/b&msg=a&delayMillis=1", "topic"),
        ("sendMsg", f"topic={'t' * 129}&msg=a&delayMillis=1", "topic"),
        ("sendMsg", "topic=t&msg=a&delayMillis=1&msgId=a~", "msgId"),
        ("sendMsg", "topic=t&msg=a&delayMillis=1&msgId=a%00", "msgId"),
        ("sendMsg", f"topic=t&msg=a&delayMillis=1&msgId={'i' * 201}", "msgId"),
        ("sendMsg", "topic=t&msg=a&delayMillis=9223372036854775807", "delayMillis"),
        ("sendMsg", f"topic=t&delayMillis=1&msg={'a' * 1_048_577}", "msg"),
        ("pullMsg", "topic=", "topic"),
        ("pullMsg", "topic=a%20b", "topic"),
        ("pullMsg", "topic=t&group=a/b", "group"),
        ("pullMsg", "topic=t&ackTimeoutMillis=9223372036854775807", "ackTimeoutMillis"),
        ("longPollingMsg", "topic=", "topic"),
        ("ackMsg", "topic=t&msgId=", "msgId"),
        ("getMsg", "topic=&msgId=a", "topic"),
        ("deleteMsg", "topic=t&msgId=", "msgId"),
    ],
)
def test_wrong_values(wire: Wire, call: str, form: str, field: str) -> None:
    """HTTP 200 with code 400 and the reason, for values that are empty or out of bounds."""
    reply = wire.request("POST", BASE + call, form, FORM)
    assert (reply.status, reply.code) == (200, 400)
    assert reply.content["msg"].startswith(f"{field} must ")
    assert len(reply.content["msg"]) < 400


async def test_nothing_was_written(admin: AsyncAdmin) -> None:
    """The requests above have declared no topic but that of the well-formed name."""
    assert {topic.name for topic in await admin.topics()} <= {"t"}


@pytest.mark.parametrize(
    "message",
    [
        {"body": 1, "id": "a~"},
        {"body": 1, "delay": 1, "at": 1_800_000_000_000},
        {"body": 1, "if_exists": "replace"},
        {"body": "\ud800"},
        {"body": 1, "headers": {"a": "\ud800"}},
        {"body": "x" * 1_048_577},
    ],
)
async def test_a_refused_message_declares_no_topic(
    wire: Wire, admin: AsyncAdmin, topic: str, message: dict[str, object]
) -> None:
    """Whatever is wrong with it, its topic does not exist afterwards."""
    json_type = {"Content-Type": "application/json"}
    reply = wire.request("POST", f"/v1/topics/{topic}/messages", json.dumps(message), json_type)
    assert reply.status == 400
    assert topic not in {each.name for each in await admin.topics()}


async def test_a_refused_stream_or_batch_declares_no_topic(wire: Wire, admin: AsyncAdmin, topic: str) -> None:
    """Where each of its messages is refused, by its shape or by the producer."""
    path, large = f"/v1/topics/{topic}", {"body": 1, "headers": {"a": "x" * 20_000}}
    lines = {"Content-Type": "application/x-ndjson"}
    for body in (b"{}\n", json.dumps(large), b""):
        assert wire.request("POST", f"{path}/messages", body, lines).content["sent"] == 0
    batch = json.dumps({"messages": [large, {}]})
    assert wire.request("POST", f"{path}/batch", batch, {"Content-Type": "application/json"}).content["failed"] == 2
    assert topic not in {each.name for each in await admin.topics()}


async def test_a_refused_id_declares_no_topic(wire: Wire, admin: AsyncAdmin, topic: str) -> None:
    """Of the calls of camellia, too."""
    assert wire.post("sendMsg", topic=topic, msg="a", delayMillis=0, msgId="a~").code == 400
    assert topic not in {each.name for each in await admin.topics()}


def test_largest_message(wire: Wire, topic: str) -> None:
    """A message of 1 MiB, every byte of it percent-encoded."""
    reply = wire.post("sendMsg", topic=topic, msg="\u20ac" * 349_525, delayMillis=0)
    assert reply.code == 200
    [message] = wire.post("pullMsg", topic=topic).messages
    assert message["msg"] == "\u20ac" * 349_525


def test_methods_and_paths(wire: Wire) -> None:
    """405 and 404 as JSON; a call that is well but has the wrong verb says which it wants."""
    for method, path, status in (
        ("GET", "sendMsg?topic=t&msg=a&delayMillis=1", 405),
        ("PUT", "getMsg", 405),
        ("POST", "getMonitorData", 405),
        ("POST", "nothing", 404),
        ("GET", "", 404),
        ("POST", "sendMsg/", 404),
    ):
        reply = wire.request(method, BASE + path)
        assert (reply.status, reply.code, reply.kind) == (status, 400, "application/json")


def test_other_bodies(wire: Wire, topic: str) -> None:
    """JSON is not read, so its parameters are missing; parameters may be in the query; the first of a name counts."""
    body = json.dumps({"topic": topic, "msg": "a", "delayMillis": 1})
    assert wire.request("POST", BASE + "sendMsg", body, {"Content-Type": "application/json"}).status == 400
    reply = wire.request("POST", f"{BASE}sendMsg?topic={topic}&msg=first", "msg=second&delayMillis=+1+&x=1&=&", FORM)
    assert (reply.code, reply.message["msg"]) == (200, "first")
    for charset, status in (("; charset=gbk", 415), ('; Charset = "GBK"', 415), (';charset="utf-8"; a=b', 400)):
        reply = wire.request("POST", BASE + "sendMsg", "topic=t", {"Content-Type": FORM["Content-Type"] + charset})
        assert reply.status == status


def test_too_large(wire: Wire) -> None:
    """A body beyond all messages is refused with 413, whether or not it says its length."""
    assert wire.request("POST", BASE + "sendMsg", "a" * (4 * 1024 * 1024 + 1), FORM).status == 413
    assert wire.request("POST", BASE + "sendMsg", "&".join(f"a{n}=" for n in range(100)), FORM).status == 400


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /camellia/delayQueue/sendMsg HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /camellia/delayQueue/sendMsg HTTP/1.1\r\nHost: localhost\r\nContent-Length: abc\r\n\r\n",
    ],
)
async def test_no_http(wire: Wire, sent: bytes) -> None:
    """What is no HTTP gets 400, and the connection is closed."""
    assert (await raw_exchange(wire.address, sent)).startswith(b"HTTP/1.1 400")


async def test_truncated_body(wire: Wire) -> None:
    """A client that ends within its request gets no answer, and harms nobody."""
    head = b"POST /camellia/delayQueue/sendMsg HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    await raw_exchange(wire.address, head + b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntopic=")
    assert wire.get("getTopicInfoList").code == 200


async def test_pipelined(wire: Wire, topic: str) -> None:
    """Two requests at once on one connection are answered in turn."""
    body = f"topic={topic}".encode()
    one = (
        b"POST /camellia/delayQueue/pullMsg HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\n" + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    )
    last = b"GET /camellia/health/check HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    replies = await raw_exchange(wire.address, one + one + last)
    assert replies.count(b"HTTP/1.1 200 OK") == 3
    assert replies.count(b'"delayMsgList":[]') == 2


_CHECK = "{method} /camellia/health/check HTTP/{version}\r\nHost: localhost\r\n{headers}\r\n"


def _parts(answer: bytes) -> tuple[str, list[str], str]:
    """Status line, names of headers, and body of one answer."""
    head, _, body = answer.decode().partition("\r\n\r\n")
    status, *headers = head.split("\r\n")
    return status, [header.partition(":")[0] for header in headers], body


async def test_head_and_old_versions(wire: Wire) -> None:
    """HEAD has the headers of GET without its body; the connection of HTTP/1.0 ends with its answer."""
    last = _CHECK.format(method="GET", version="1.1", headers="Connection: close\r\n").encode()
    status, headers, body = _parts(await raw_exchange(wire.address, last))
    assert (status, body) == ("HTTP/1.1 200 OK", '{"code":200}')
    bare = _CHECK.format(method="HEAD", version="1.1", headers="Connection: close\r\n").encode()
    assert _parts(await raw_exchange(wire.address, bare)) == (status, headers, "")
    old = _CHECK.format(method="GET", version="1.0", headers="").encode()
    assert _parts(await raw_exchange(wire.address, old))[2] == '{"code":200}'


async def test_a_client_that_reads_late_gets_every_answer_whole(wire: Wire, topic: str) -> None:
    """Of more bytes than the connection holds: the gateway waits before it writes more, and forgets none."""
    text = "x" * 1_000_000
    assert wire.post("sendMsg", topic=topic, msg=text, delayMillis=60_000, msgId="large").code == 200
    body = f"topic={topic}&msgId=large".encode()
    head = f"POST {BASE}getMsg HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM['Content-Type']}\r\n"
    one = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    host, _, port = wire.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1_024)
    writer.write(one * 16)
    # The gateway has answered as much as it may, while nobody reads.
    assert wire.get("getTopicInfoList").code == 200
    for _ in range(16):
        length = int((await reader.readuntil(b"\r\n\r\n")).lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        answer = json.loads(await reader.readexactly(length))
        assert (answer["code"], answer["delayMsg"]["msg"]) == (200, text)
    writer.close()
    await writer.wait_closed()
