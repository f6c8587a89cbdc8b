"""Forms of multipart/form-data, on the calls of camellia's interface: the same parameters as in other forms."""

import asyncio
import json
from collections.abc import Iterable
from urllib.parse import urlencode

import pytest

from lisa_manager import AsyncAdmin
from support.gateways import Gateways
from support.wire import Reply, Wire, raw_exchange

SEND = "/camellia/delayQueue/sendMsg"
BOUNDARY = "X1"


def _part(name: str, value: str | bytes, more: str = "") -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + data + b"\r\n"


def _form(fields: Iterable[tuple[str, str | bytes]]) -> bytes:
    return b"".join(_part(*field) for field in fields) + f"--{BOUNDARY}--\r\n".encode()


def _send(wire: Wire, body: bytes, kind: str = f"multipart/form-data; boundary={BOUNDARY}", query: str = "") -> Reply:
    return wire.request("POST", SEND + query, body, {"Content-Type": kind})


@pytest.mark.parametrize(
    "text",
    ["abc", "héllo €", " a+b%20&c=d ", '"; name="x', "\r\n--X2\r\n", "a--X1--", "\r\n\r\n", "\n--X1\n", "€" * 349_525],
)
def test_texts_arrive_as_they_are(wire: Wire, topic: str, text: str) -> None:
    """Whatever they hold, up to the largest message; as a form of the other kind has them."""
    reply = _send(wire, _form([("topic", topic), ("msg", text), ("delayMillis", "0"), ("msgId", "a")]))
    assert (reply.status, reply.code, reply.message["msg"]) == (200, 200, text)
    assert wire.post("sendMsg", topic=topic, msg=text, delayMillis=0, msgId="a").message == reply.message


def test_the_first_of_a_name_counts(wire: Wire, topic: str) -> None:
    """That of the query before that of the form; the type may be written in any way."""
    body = _form([("topic", "none"), ("msg", "first"), ("msg", "second"), ("delayMillis", "0"), ("é", "")])
    reply = _send(wire, body, f'Multipart/Form-Data;charset=UTF-8; boundary="{BOUNDARY}"', f"?topic={topic}")
    assert (reply.message["topic"], reply.message["msg"]) == (topic, "first")


async def test_a_form_in_pieces(wire: Wire, topic: str) -> None:
    """However its bytes arrive."""
    body = _form([("topic", topic), ("msg", "a\r\n--X"), ("delayMillis", "0")])
    head = f"POST {SEND} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    head += f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    for size in (1, 3, 50):
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        answer = await raw_exchange(wire.address, head.encode(), *parts, end=False)
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["delayMsg"]["msg"] == "a\r\n--X"


FIELDS = [("topic", "none"), ("msg", "a"), ("delayMillis", "0")]
WHOLE = _form(FIELDS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"topic=none&msg=a&delayMillis=0",
        WHOLE[:-6],
        WHOLE[:-10],
        WHOLE[:-60],
        WHOLE + _part("msgId", "a"),
        WHOLE + WHOLE,
        WHOLE.replace(b"\r\n", b"\n"),
        WHOLE.replace(b'; name="msg"', b""),
        WHOLE.replace(b"Content-Disposition: ", b"Content: "),
        WHOLE.replace(b'name="msg"', b'name="msg"; filename="a.txt"'),
        _form([*FIELDS, ("msgId", b"\xff")]),
        _form([*FIELDS, ("ttl\x00", b"\xe9")]),
        _form([*FIELDS, *((f"a{n}", "") for n in range(62))]),
        WHOLE.replace(b"\r\n\r\n", b"\r\n" + b"a: b\r\n" * 10_000 + b"\r\n\r\n", 1),
        WHOLE.replace(b"\r\n\r\n", b"\r\na: " + b"b" * 100_000 + b"\r\n\r\n", 1),
    ],
)
async def test_forms_that_cannot_be_read_whole(wire: Wire, admin: AsyncAdmin, body: bytes) -> None:
    """One clear error, and nothing is sent: no part of a form is left out in silence."""
    reply = await asyncio.to_thread(_send, wire, body)
    assert (reply.status, reply.code) == (400, 400)
    assert reply.content["msg"].partition(": ")[0] in ("body", "msgId", "a name", "ttl\x00")
    assert "none" not in [topic.name for topic in await admin.topics()]


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", "multipart/form-data; boundary=", 'multipart/form-data; boundary="X1']
)
def test_types_without_their_boundary(wire: Wire, kind: str) -> None:
    """The body cannot be read without it."""
    assert _send(wire, WHOLE, kind).status == 400


def _large(size: int, *, is_multipart: bool) -> tuple[bytes, dict[str, str]]:
    fields = [("topic", "none"), ("delayMillis", "0"), ("msg", "a" * size)]
    if is_multipart:
        return _form(fields), {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    return urlencode(fields).encode(), {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize("size", [4 * 1024 * 1024 + 1, 8_000_000])
@pytest.mark.parametrize("is_multipart", [True, False])
def test_too_large(wire: Wire, size: int, *, is_multipart: bool) -> None:
    """413 with JSON that the clients of camellia read, whether or not the length is told."""
    body, headers = _large(size, is_multipart=is_multipart)
    for sent in (body, iter([body[at : at + 65_536] for at in range(0, len(body), 65_536)])):
        reply = wire.request("POST", SEND, sent, headers)
        assert (reply.status, reply.kind) == (413, "application/json")
        assert reply.content == {"code": 400, "msg": "body: must be at most 4194304 bytes"}


@pytest.mark.parametrize("is_multipart", [True, False])
def test_far_too_large(gateways: Gateways, *, is_multipart: bool) -> None:
    """The same beyond `max_body_bytes`, which also bounds forms."""
    gateways.manager()
    wire = Wire(gateways.gateway(max_body_bytes="100000")[1].removeprefix("http://"))
    for size in (100_001, 150_000):
        reply = wire.request("POST", SEND, *_large(size, is_multipart=is_multipart))
        assert (reply.status, reply.kind) == (413, "application/json")
        assert reply.code == 400
        assert reply.content["msg"].startswith("body must be at most 100000 bytes; got ")
    reply = wire.request("POST", SEND, *_large(90_000, is_multipart=is_multipart))
    assert reply.code == 200
