"""Raw bytes on the socket of a gateway: what is malformed, too large, too slow or too much."""

import asyncio
import json
import random
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from support.gateways import Gateways
from support.processes import Process
from support.waiting import wait_until

LIMITS = {"max_header_bytes": "8192", "max_body_bytes": "100000", "slow_s": "1.5"}


@pytest.fixture(scope="module")
def gateway(gateways: Gateways) -> tuple[Process, str]:
    """A gateway with small limits."""
    gateways.manager()
    return gateways.gateway(**LIMITS)


@pytest.fixture(scope="module")
def base_url(gateway: tuple[Process, str]) -> str:
    """Its URL."""
    return gateway[1]


@contextmanager
def _connected(url: str) -> Iterator[socket.socket]:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        yield connection


def _answer(connection: socket.socket) -> bytes:
    """All that comes until the gateway closes the connection."""
    answer = b""
    try:
        while part := connection.recv(65_536):
            answer += part
    except ConnectionResetError:
        pass
    return answer


def _exchange(url: str, *parts: bytes) -> bytes:
    with _connected(url) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return _answer(connection)


POST = b"POST /v1/ack HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
LONG = b"content-length: 100001\r\n\r\n"
HEAD = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ((b"\r\n\x00\xff\r\n\r\n",), b"400"),
        ((b"GET / HTTP/9.9\r\n\r\n",), None),
        ((b"GET /health/live HTTP/1.1\r\nhost: a\r\nx\x00: y\r\n\r\n",), b"400"),
        ((b"POST /v1/ack HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",), b"400"),
        ((b"POST /v1/ack HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",), None),
        ((HEAD + b"x: " + b"a" * 9_000 + b"\r\n\r\n",), b"431"),
        ((HEAD + b"x: " + b"a" * 5_000, b"a" * 90_000, b"a" * 90_000), b"431"),
        ((HEAD + b"".join(b"x%d: y\r\n" % number for number in range(2_000)) + b"\r\n",), b"431"),
        ((b"GET /" + b"a" * 200_000,), b"431"),
        ((b"POST /v1/ack HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100001\r\n\r\n",), b"413"),
        *(
            ((each + b" HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n" + LONG,), b"413")
            for each in (b"POST /v1/ack", b"POST /v1/topics/t/batch", b"PUT /v1/topics/t/messages/a")
        ),
        ((HEAD * 1 + b"\r\n" + (HEAD + b"\r\n") * 40,), None),
    ],
)
def test_malformed_and_oversized_requests(
    gateway: tuple[Process, str], parts: tuple[bytes, ...], status: bytes
) -> None:
    """Each is answered with its status, or cut off, and the connection closed."""
    answer = _exchange(gateway[1], *parts)
    if status is None:
        assert b" 500 " not in answer
    else:
        assert answer.startswith(b"HTTP/1.1 " + status), answer[:200]
    assert httpx.get(f"{gateway[1]}/health/live").status_code == 200


@pytest.mark.parametrize(
    ("first", "drip", "status"),
    [
        (b"", b"", b""),
        (HEAD, b"x: y\r\n", b""),
        (POST + b"content-length: 50\r\n\r\n", b" ", b"HTTP/1.1 408"),
        (POST + b"transfer-encoding: chunked\r\n\r\n", b"1;" + b"x" * 50 + b"\r\n \r\n", b"HTTP/1.1 408"),
    ],
)
def test_slow_clients_are_cut_off(gateway: tuple[Process, str], first: bytes, drip: bytes, status: bytes) -> None:
    """Headers and bodies that arrive too slowly, however steadily."""
    began = time.monotonic()
    with _connected(gateway[1]) as connection:
        connection.settimeout(0.2)
        connection.sendall(first)
        answer = None
        while answer is None and time.monotonic() - began < 40:
            try:
                answer = connection.recv(1_000)
            except TimeoutError:
                connection.sendall(drip)
            except ConnectionResetError:
                answer = b""
    assert answer is not None
    assert answer.startswith(status)
    assert not answer or b"connection: close" in answer
    assert 1 < time.monotonic() - began < 30


_LINES = b"".join(b'{"id": "%d", "body": 1, "delay": "1h"}\n' % number for number in range(40))


def _begun_stream(topic: str) -> bytes:
    """The head of a stream of lines, and its first chunk."""
    head = f"POST /v1/topics/{topic}/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n"
    return head.encode() + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(_LINES), _LINES)


@pytest.mark.parametrize(
    ("topic", "rest", "status"),
    [
        ("slow", b"", 408),
        ("half", b'8\r\n{"body":', 408),
        ("broken", b"zz\r\n", 400),
        ("long", b"30d40\r\n" + b"x" * 200_000 + b"\r\n", 400),
    ],
)
def test_a_stream_that_ends_early_is_no_success(
    gateway: tuple[Process, str], http: httpx.Client, topic: str, rest: bytes, status: int
) -> None:
    """The answer is an error that counts the lines before, and they are stored."""
    answer = _exchange(gateway[1], _begun_stream(topic), rest)
    problem = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (problem["status"], problem["sent"], problem["failed"]) == (status, 40, 0)
    assert http.get(f"/v1/topics/{topic}/sizes").json()["waiting"] == 40


def test_slow_bodies_leave_no_connection_open(gateway: tuple[Process, str]) -> None:
    """Whatever Python still holds of their requests."""
    with ExitStack() as stack:
        clients = [stack.enter_context(_connected(gateway[1])) for _ in range(60)]
        for client in clients:
            client.sendall(_begun_stream("slow"))
        assert {_answer(client)[:12] for client in clients} == {b"HTTP/1.1 408"}


_REFUSED = b"POST /dashboard/do-purge HTTP/1.1\r\nhost: localhost\r\norigin: https://evil.example\r\ncontent-length: "


def test_a_refused_request_does_not_break_the_next(gateway: tuple[Process, str]) -> None:
    """Its body may come after its head."""
    with _connected(gateway[1]) as connection:
        connection.sendall(_REFUSED + b"9\r\n\r\n")
        connection.settimeout(0.3)
        with suppress(TimeoutError):
            pytest.fail(f"answered before the body: {connection.recv(65_536)!r}")
        connection.settimeout(30)
        connection.sendall(b"topic=pay" + HEAD + b"connection: close\r\n\r\n")
        assert re.findall(rb"HTTP/1.1 (\d+)", _answer(connection)) == [b"403", b"200"]


def test_the_answer_to_a_large_refused_request_arrives_while_its_body_is_sent(gateway: tuple[Process, str]) -> None:
    """It says that it closes. A reset before the end of the body would be a 502 of nginx to whoever sent it."""
    with _connected(gateway[1]) as connection:
        connection.sendall(_REFUSED + b"1000000\r\n\r\n")
        answer = connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 403")
        assert b"connection: close" in answer
        for _ in range(10):
            connection.sendall(b"x" * 100_000)
        _answer(connection)


def test_connections_are_bounded(gateways: Gateways) -> None:
    """One more than allowed waits until one of the others ends."""
    parts = urlsplit(gateways.gateway(max_clients="5")[1])

    def ask(connection: socket.socket) -> bytes:
        connection.sendall(HEAD + b"\r\n")
        return connection.recv(1_000)

    held = [socket.create_connection((parts.hostname, parts.port), timeout=60) for _ in range(6)]
    with ExitStack() as stack:
        for connection in held:
            stack.enter_context(connection)
        for connection in held[:5]:
            assert ask(connection).startswith(b"HTTP/1.1 200")
        held[5].sendall(HEAD + b"\r\n")
        held[5].settimeout(0.3)
        with pytest.raises(TimeoutError):
            held[5].recv(1_000)
        held[0].close()
        held[5].settimeout(60)
        assert held[5].recv(1_000).startswith(b"HTTP/1.1 200")


_CLIENTS = 20
"""Clients at once."""


def _request(line: str, body: bytes = b"", *headers: str) -> bytes:
    head = "\r\n".join((f"{line} HTTP/1.1", "host: localhost", *headers))
    return f"{head}\r\n\r\n".encode() + body


SEEDS = (
    _request("GET /health/live"),
    _request(
        "POST /v1/topics/fuzz/messages",
        b'{"body": 1,"delay": 9}',
        *("content-type: application/json", "content-length: 22"),
    ),
    _request(
        "PUT /v1/topics/fuzz/messages/a%2Fb?delay=1m", b"3\r\nabc\r\n0\r\nx: y\r\n\r\n", "transfer-encoding: chunked"
    ),
    _request(
        "POST /camellia/delayQueue/sendMsg",
        b"topic=fuzz&msg=abc&delayMillis=1000000",
        *("content-type: application/x-www-form-urlencoded", "content-length: 38"),
    ),
    _request(
        "POST /v1/topics/fuzz/messages",
        b'{"body":1}\n{"body":2}\n{}\n',
        *("content-type: application/x-ndjson", "expect: 100-continue", "content-length: 25"),
    ),
    _request(
        "GET /v1/topics/fuzz",
        b"",
        *("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13"),
    ),
)


def _mutated(random_: random.Random) -> bytes:
    data = bytearray(b"".join(random_.choices(SEEDS, k=random_.randint(1, 3))))
    for _ in range(random_.randint(0, 4)):
        at = random_.randrange(len(data) + 1)
        match random_.randrange(5):
            case 0:
                del data[at:]
            case 1:
                data[at:at] = random_.randbytes(random_.randint(1, 8))
            case 2:
                del data[at : at + random_.randint(1, 20)]
            case 3:
                data[at:at] = data[:at][-random_.randint(1, 200) :]
            case 4:
                data[at:at] = random_.choice((b"\r\n", b"\x00", b"%ff", b"\n", b" ", b": ", b"A" * 10_000))
    return bytes(data) or b"\r\n"


async def _play(url: str, data: bytes, random_: random.Random) -> bytes:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        cut = random_.randrange(len(data))
        for part in (data[:cut], data[cut:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        if random_.random() < 0.5:
            writer.write_eof()
        async with asyncio.timeout(0.5):
            return await reader.read(100_000)
    except (TimeoutError, OSError):
        return b""
    finally:
        writer.close()


def _memory_kib(process: Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text("utf-8")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1])


@pytest.mark.long
async def test_no_bytes_upset_it(gateway: tuple[Process, str]) -> None:
    """Mutated, cut off, pipelined: no answer is a 500, nothing is logged with a traceback, and memory stays."""
    process, url = gateway
    random_ = random.Random(20_150)

    async def round_of(count: int) -> None:
        for _ in range(count // _CLIENTS):
            data = [_mutated(random_) for _ in range(_CLIENTS)]
            for sent, answer in zip(
                data, await asyncio.gather(*(_play(url, each, random_) for each in data)), strict=True
            ):
                assert b"HTTP/1.1 500" not in answer, sent

    await round_of(300)
    before = _memory_kib(process)
    await round_of(1_000)
    wait_until(lambda: httpx.get(f"{url}/health/live").status_code == 200, 20, what="it serves")
    assert _memory_kib(process) - before < 8_192
    assert "Traceback" not in process.log
