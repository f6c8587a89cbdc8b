"""Answers of the interface: HTTP 200 for each request that was understood, with the outcome as `code` in the body."""

import json
from enum import IntEnum
from typing import Any

from starlette.responses import Response

__all__ = ["Code", "Failed", "Misunderstood", "answer", "answer_text"]


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Code(IntEnum):
    """All outcomes that clients know."""

    SUCCESS = 200
    PARAM_WRONG = 400
    NOT_EXISTS = 404
    UNKNOWN = 500


class Failed(Exception):
    """A request that was understood, and not done: answered with HTTP 200, a code and the reason."""

    def __init__(self, code: Code, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(reason)


class Misunderstood(Exception):
    """A request that was not understood: answered with an HTTP status."""

    def __init__(self, reason: str, status: int = 400, headers: dict[str, str] | None = None) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        super().__init__(reason)


def answer(code: int = Code.SUCCESS, msg: str | None = "success", *, status: int = 200, **fields: Any) -> Response:
    """An answer as JSON; `msg` None leaves it out."""
    content: dict[str, Any] = {"code": int(code)}
    if msg is not None:
        content["msg"] = msg
    content |= fields
    return answer_text(_encode(content), status=status)


def answer_text(text: str, media_type: str = "application/json", *, status: int = 200) -> Response:
    """An answer in UTF-8. Replaces characters that UTF-8 cannot encode, such as lone surrogates."""
    return Response(text.encode("utf-8", "replace"), status, media_type=media_type)
