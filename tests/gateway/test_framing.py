"""No byte of a body is parsed as a request, and no answer says success for a body that was not read.

Each body here is a request by which an admin would cancel the message of a victim. It is sent raw, and through proxies.
"""

import itertools
import json
import re
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from lisa_gateway.access import hash_of, new_token
from support.gateways import Gateways
from support.http_proxies import PROXIES, USER, proxied
from support.waiting import wait_until
from support.wire import polls_in

_TOKEN = new_token()
_GRANTS = [
    {"name": "root", "tokens": [hash_of(_TOKEN)], "roles": ["send", "admin"]},
    {"name": "admin", "roles": ["send", "admin"]},
    {"name": USER, "roles": ["send", "consume"], "topics": ["mine"]},
]
_INNER = b"DELETE /v1/topics/payments/messages/p-1 HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-User: admin\r\n\r\n"
_LENGTH = b"Content-Length: %d\r\n" % len(_INNER)
_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_CHUNKS = b"%x\r\n%b\r\n%x;ext=1\r\n%b\r\n0\r\n\r\n" % (20, _INNER[:20], len(_INNER) - 20, _INNER[20:])
_KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"

_UPGRADES = {
    "plain": b"",
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAA\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + _KEY,
    "other": b"Connection: keep-alive, upgrade\r\nUpgrade: tls/1.2\r\n",
}
_BODIES = {
    "length": (_LENGTH, _INNER),
    "chunked": (_CHUNKED, _CHUNKS),
    "expect": (b"Expect: 100-continue\r\n" + _LENGTH, _INNER),
}
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def gateway(gateways: Gateways) -> str:
    """A gateway that trusts proxies on this machine. Returns its host and port."""
    gateways.manager()
    _, url = gateways.gateway("--grants", json.dumps(_GRANTS), "--proxies", "127.0.0.1")
    return url.removeprefix("http://")


@pytest.fixture(scope="module", params=["raw", *PROXIES])
def front(request: pytest.FixtureRequest, gateway: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What a client talks to: the gateway itself, or a proxy. Yields its host and port."""
    if request.param == "raw":
        yield gateway
        return
    if shutil.which(request.param, path="/usr/sbin:/usr/bin:/usr/local/bin") is None:
        pytest.skip(f"needs {request.param}")
    folder: Path = tmp_path_factory.mktemp(request.param)
    with proxied(request.param, gateway, folder) as address:
        yield address


@pytest.fixture
def root(gateway: str) -> Iterator[httpx.Client]:
    """An operator, past all proxies; the victim's message is there."""
    headers = {"authorization": f"Bearer {_TOKEN}"}
    with httpx.Client(base_url=f"http://{gateway}", headers=headers, timeout=30) as client:
        client.put("/v1/topics/payments/messages/p-1", content=b"salaries", params={"delay": "1h"}).raise_for_status()
        yield client


def _exchange(address: str, parts: Sequence[bytes], *, answers: int) -> list[tuple[int, bytes]]:
    """Sends parts in packets of their own. Returns status and body of each answer, 100 excepted."""
    host, _, port = address.rpartition(":")
    found: list[tuple[int, bytes]] = []
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = b""
        for part in parts:
            with suppress(ConnectionError):
                connection.sendall(part)
            # A packet of its own: the other side has time to read it alone.
            connection.settimeout(0.05)
            with suppress(TimeoutError, ConnectionError):
                received += connection.recv(65_536)
        connection.settimeout(60)
        with suppress(ConnectionError):
            while len(found) < answers:
                found, is_whole = _answers(received)
                if len(found) >= answers and is_whole:
                    break
                more = connection.recv(65_536)
                if not more:
                    break
                received += more
            # Nothing may follow.
            connection.settimeout(0.1)
            with suppress(TimeoutError):
                received += connection.recv(65_536)
    return _answers(received)[0]


def _answers(received: bytes) -> tuple[list[tuple[int, bytes]], bool]:
    found: list[tuple[int, bytes]] = []
    while received:
        head, end, rest = received.partition(b"\r\n\r\n")
        status = re.match(rb"HTTP/1\.[01] (\d{3})", head)
        assert status or not end, received
        if not status or not end:
            return found, False
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        size = int(length[1]) if length else 0
        if int(status[1]) != httpx.codes.CONTINUE:
            found.append((int(status[1]), rest[:size]))
        received = rest[size:]
    return found, True


def _put(id: str, upgrade: bytes, framing: bytes) -> bytes:
    head = f"PUT /v1/topics/mine/messages/{id}?delay=1h HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-User: {USER}\r\n"
    return head.encode() + b"Content-Type: text/plain\r\n" + upgrade + framing + b"\r\n"


_NEXT = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("upgrade", _UPGRADES)
@pytest.mark.parametrize("kind", _BODIES)
@pytest.mark.parametrize("cut", ["whole", "head|body", "middle", "next"])
def test_a_body_is_a_body(front: str, root: httpx.Client, upgrade: str, kind: str, cut: str) -> None:
    """It is stored whole and the next request is answered, or the request is refused; nothing else is done."""
    framing, body = _BODIES[kind]
    id = f"m-{next(_NUMBERS)}"
    head = _put(id, _UPGRADES[upgrade], framing)
    parts = {
        "whole": [head + body],
        "head|body": [head, body],
        "middle": [head[:-3], head[-3:] + body[:30], body[30:]],
        "next": [head, body + _NEXT],
    }[cut]
    expected = 2 if cut == "next" else 1
    answers = _exchange(front, parts, answers=expected)
    assert 1 <= len(answers) <= expected, answers
    stored = root.get(f"/v1/topics/mine/messages/{id}")
    if answers[0][0] == httpx.codes.CREATED:
        assert stored.json()["body"] == _INNER.decode()
    else:
        assert 400 <= answers[0][0] < 502, answers
        assert stored.status_code == httpx.codes.NOT_FOUND
    if upgrade == "plain":
        assert [status for status, _ in answers] == [201, 200][:expected]
    assert root.get("/v1/topics/payments/messages/p-1").json()["state"] == "waiting"


@pytest.mark.parametrize(
    "framing",
    [
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Content-Length : 5\r\n",
    ],
)
def test_unclear_framings_are_refused(gateway: str, root: httpx.Client, framing: bytes) -> None:
    """A proxy in front may read them otherwise."""
    id = f"m-{next(_NUMBERS)}"
    answers = _exchange(gateway, [_put(id, b"", framing) + b"5\r\nhello\r\n0\r\n\r\n"], answers=1)
    assert all(400 <= status < 500 for status, _ in answers), answers
    assert answers
    assert root.get(f"/v1/topics/mine/messages/{id}").status_code == httpx.codes.NOT_FOUND


def test_a_body_with_both_framings_is_the_last(gateway: str) -> None:
    """RFC 9112, 6.3: its chunks count, and nothing behind it on the connection is a request."""
    framing = b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"
    sent = _put(f"m-{next(_NUMBERS)}", b"", framing) + _CHUNKS + _NEXT
    assert [status for status, _ in _exchange(gateway, [sent], answers=2)] == [201]


def test_a_content_type_is_given_once(gateway: str, root: httpx.Client) -> None:
    """By one of two, JSON is a message with its options; by the other, the text of another message."""
    id = f"m-{next(_NUMBERS)}"
    sent = _put(id, b"", b"Content-Type: application/json\r\nContent-Length: 1\r\n") + b"1"
    assert [status for status, _ in _exchange(gateway, [sent], answers=1)] == [400]
    assert root.get(f"/v1/topics/mine/messages/{id}").status_code == httpx.codes.NOT_FOUND


@pytest.mark.parametrize("host", [b"", b"Host:\r\n", b"Host: a\r\nHost: b\r\n"])
def test_a_host_is_given_once(gateway: str, host: bytes) -> None:
    """RFC 9112, 3.2."""
    [(status, _)] = _exchange(gateway, [b"GET /livez HTTP/1.1\r\n" + host + b"\r\n"], answers=1)
    assert status == httpx.codes.BAD_REQUEST


@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (_LENGTH, _INNER[:-1]),
        (_CHUNKED, _CHUNKS[:-7]),
        (_CHUNKED, b"5\r\nhelloXX\r\n0\r\n\r\n"),
        (_CHUNKED, b"zz\r\nhello\r\n0\r\n\r\n"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/topics/mine/messages", "/v1/topics/mine/messages/cut"])
def test_a_cut_body_is_not_stored(gateway: str, root: httpx.Client, framing: bytes, body: bytes, path: str) -> None:
    """Whether the client is still there or not."""
    method = b"PUT" if path.endswith("cut") else b"POST"
    head = method + b" " + path.encode() + b"?delay=1h HTTP/1.1\r\nHost: a\r\nX-Forwarded-User: " + USER.encode()
    before = root.get("/v1/topics/mine/sizes").json().get("stored", 0)
    host, _, port = gateway.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head + b"\r\nContent-Type: text/plain\r\n" + framing + b"\r\n" + body)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        with suppress(ConnectionError):
            while more := connection.recv(65_536):
                received += more
    assert all(400 <= status < 500 for status, _ in _answers(received)[0]), received
    assert root.get("/v1/topics/mine/sizes").json().get("stored", 0) == before


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize(
    "request_", ["PUT /{id}?delay=1h text/plain", "POST ?delay=1h text/plain", "POST  application/x-ndjson"]
)
def test_a_message_without_an_end_is_refused(gateway: str, root: httpx.Client, version: str, request_: str) -> None:
    """A client of HTTP/1.0 may end its body by hanging up: without a length, every server takes it for empty."""
    method, path, kind = request_.format(id=f"m-{next(_NUMBERS)}").split(" ")
    head = f"{method} /v1/topics/mine/messages{path} HTTP/{version}\r\nHost: localhost\r\nX-Forwarded-User: {USER}\r\n"
    before = root.get("/v1/topics/mine/sizes").json().get("stored", 0)
    request = f"{head}Content-Type: {kind}\r\nConnection: keep-alive\r\n\r\n".encode() + _INNER
    assert [status for status, _ in _exchange(gateway, [request], answers=1)] == [400]
    assert root.get("/v1/topics/mine/sizes").json().get("stored", 0) == before
    assert root.get("/v1/topics/payments/messages/p-1").json()["state"] == "waiting"


@pytest.mark.parametrize(
    "request_",
    [
        b"DELETE /v1/topics/mine/messages/kept",
        b"PUT /v1/topics/mine/groups/made",
        b"GET /v1/topics/mine",
        b"GET /camellia/delayQueue/getTopicInfo?topic=mine",
    ],
)
@pytest.mark.parametrize(("framing", "body"), [(_LENGTH, _INNER[:-1]), (_CHUNKED, b"5\r\nhelloXX\r\n0\r\n\r\n")])
def test_a_cut_body_is_no_success_where_none_is_asked_for(
    gateway: str, root: httpx.Client, request_: bytes, framing: bytes, body: bytes
) -> None:
    """Also for calls that take no body; and nothing is done."""
    root.put("/v1/topics/mine/messages/kept?delay=1h", content=b"x").raise_for_status()
    head = request_ + b" HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + _TOKEN.encode() + b"\r\n" + framing + b"\r\n"
    host, _, port = gateway.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head + body)
        connection.shutdown(socket.SHUT_WR)
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert [status for status, _ in _answers(received)[0]] == [400], received
    assert root.get("/v1/topics/mine/messages/kept").json()["state"] == "waiting"
    assert "made" not in root.get("/v1/topics/mine/groups").text


def test_a_reader_that_hangs_up_takes_nothing_along(front: str, root: httpx.Client) -> None:
    """A proxy tells the gateway, whose messages then go to the next reader, in their first attempt."""
    host, _, port = front.rpartition(":")
    group, body = f"g-{next(_NUMBERS)}", b'{"wait": 50, "lease": "1h"}'
    head = f"POST /v1/topics/mine/groups/{group}/read HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-User: {USER}\r\n"
    framing = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)

    def waiting() -> int:
        return polls_in(root.get("/metrics").text)

    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head.encode() + framing + body)
        wait_until(lambda: waiting() == 1, 20, what="the reader waits")
    wait_until(lambda: waiting() == 0, 20, what="the gateway knows that the reader is gone")
    root.put(f"/v1/topics/mine/messages/{group}", content=b"x").raise_for_status()
    with httpx.Client(base_url=f"http://{front}", headers={"x-forwarded-user": USER}, timeout=30) as client:
        answer = client.post(f"/v1/topics/mine/groups/{group}/read", json={"wait": 20})
    assert [(each["id"], each["attempt"]) for each in answer.json()["deliveries"]] == [(group, 1)]


def test_many_requests_may_be_pipelined(gateway: str) -> None:
    """They are answered in order."""
    assert [status for status, _ in _exchange(gateway, [_NEXT * 40], answers=40)] == [200] * 40


def test_trailers_are_no_headers(gateway: str, root: httpx.Client) -> None:
    """They could name another user."""
    request = b"DELETE /v1/topics/payments/messages/p-1 HTTP/1.1\r\nHost: a\r\nX-Forwarded-User: mallory\r\n"
    body = b"0\r\nX-Forwarded-User: admin\r\n\r\n"
    [(status, _)] = _exchange(gateway, [request + _CHUNKED + b"\r\n" + body], answers=1)
    assert status == httpx.codes.FORBIDDEN
    assert root.get("/v1/topics/payments/messages/p-1").json()["state"] == "waiting"
