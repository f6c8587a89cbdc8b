"""What a connection of the gateway writes: the head of an answer together with its body, and nothing too late."""

import asyncio
import gc
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from lisa_gateway.limits import limited_protocol
from lisa_gateway.settings import GatewaySettings
from support.waiting import wait_until_async

_MOST = 1_024
_LONG = bytes(100_000)


class _Wire(asyncio.Transport):
    """Records each write that would be a system call."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        pytest.fail(f"asyncio does not slow the application down after writelines, everywhere: {list_of_data}")

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """All has been read."""

    def resume_reading(self) -> None:
        """All has been read."""


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    body = _LONG if scope["path"] == "/long" else b"ok"
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


def _writes(request: bytes, count: int) -> _Wire:
    """What a connection writes for a request, once it has written so often, or has closed."""
    wire = _Wire()

    async def run() -> None:
        kind = limited_protocol(GatewaySettings(max_header_bytes=_MOST))
        config = uvicorn.Config(_answer, http=kind, ws="none", lifespan="off", log_config=None, access_log=False)
        config.load()
        connection = kind(config=config, server_state=ServerState(), app_state={})
        connection.connection_made(wire)
        connection.data_received(request)
        await wait_until_async(lambda: len(wire.writes) >= count, 10, what="it is answered")
        connection.connection_lost(None)

    asyncio.run(run())
    return wire


def test_an_answer_is_one_write() -> None:
    """Head and body leave together."""
    [answer] = _writes(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx", 1).writes
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nok")


def test_an_answer_without_body_is_written() -> None:
    """No body follows the head of an answer to HEAD."""
    [answer] = _writes(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n", 1).writes
    assert answer.endswith(b"\r\n\r\n")


def test_an_answer_is_whole_before_its_connection_closes() -> None:
    """A close loses no head."""
    for method in (b"GET", b"HEAD"):
        wire = _writes(method + b" / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 1)
        assert wire.writes[0].startswith(b"HTTP/1.1 200 OK\r\n")
        assert wire.closed


def test_a_client_that_waits_for_the_word_to_continue_gets_it() -> None:
    """It is no head of an answer, and not kept back."""
    request = b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n"
    assert _writes(request, 1).writes[0] == b"HTTP/1.1 100 Continue\r\n\r\n"


def test_pipelined_answers_come_in_order() -> None:
    """Each answer is whole before the next."""
    one = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    assert [write.endswith(b"\r\n\r\nok") for write in _writes(one * 3, 3).writes] == [True] * 3


def test_headers_in_one_piece_are_counted() -> None:
    """The limit also holds for headers that arrive with their end."""
    request = b"GET / HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * _MOST + b"\r\n\r\n"
    assert _writes(request, 1).writes[0].startswith(b"HTTP/1.1 431 ")


def test_a_long_body_is_not_copied() -> None:
    """It follows its head in a write of its own."""
    head, body = _writes(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n", 2).writes
    assert head.endswith(b"\r\n\r\n")
    assert body == _LONG


@pytest.mark.parametrize("end", [b"", b"connection: close\r\n"])
def test_a_request_is_freed_without_the_garbage_collector(end: bytes) -> None:
    """Whatever refers back to it goes with its answer, or with the connection."""
    gc.collect()
    gc.disable()
    try:
        _writes(b"POST / HTTP/1.1\r\nhost: x\r\n" + end + b"content-length: 1\r\n\r\nx", 1)
        assert not [each for each in gc.get_objects() if isinstance(each, RequestResponseCycle)]
    finally:
        gc.enable()
