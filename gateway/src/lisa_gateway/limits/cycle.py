"""Reads bodies and writes answers through the server's own state of the request: ASGI takes two coroutines for each."""

from http import HTTPStatus
from typing import Any

__all__ = ["CYCLE", "put_answer", "take_body"]

CYCLE = "lisa.cycle"
"""In a scope: the server's state of the request, with what has arrived of its body; absent under other servers."""

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def take_body(scope: Any) -> bytes | None:
    """The body of a request, if all of it is here and this server is ours; else None, and it must be received."""
    cycle = scope.get(CYCLE)
    if cycle is None or cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue:
        return None
    # What its own `receive` does.
    body = bytes(cycle.body)
    cycle.body = bytearray()
    cycle.message_event.clear()
    cycle.flow.resume_reading()
    return body


def put_answer(scope: Any, status: int, media_type: bytes, body: bytes) -> bool:
    """Writes a whole answer, if this server is ours and nothing is in the way; else False, and it must be sent."""
    cycle = scope.get(CYCLE)
    if cycle is None or cycle.response_started or cycle.disconnected or cycle.flow.write_paused:
        return False
    if not cycle.keep_alive or scope["method"] == "HEAD":
        return False
    # What its own `send` does, for the head and for the body.
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    common = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
    own = b"content-length: %d\r\ncontent-type: %b\r\n\r\n" % (len(body), media_type)
    cycle.transport.write_whole(_STATUS_LINES[status] + common + own, body)
    cycle.message_event.set()
    cycle.on_response()
    return True
