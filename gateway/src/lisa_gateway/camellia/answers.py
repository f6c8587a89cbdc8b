"""Answers of the interface: HTTP 200 for each request that was understood, with the outcome as `code` in the body."""

from enum import IntEnum
from typing import Any, NamedTuple

from pydantic_core import to_json

from lisa_common.errors import LisaError
from lisa_gateway.handover import Handover
from lisa_gateway.json_text import encode
from lisa_gateway.problems import problem_of

__all__ = ["Code", "Failed", "Misunderstood", "Reply", "answer", "refusal"]


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


class Reply(NamedTuple):
    """What a request gets back."""

    body: bytes
    status: int = 200
    media_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    handover: Handover | None = None
    """What gives its messages back if the client is gone."""

    def head(self) -> dict[str, Any]:
        """The message of ASGI that begins it. Starlette's responses cost as much as all else of so short an answer."""
        headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", self.media_type),
            *self.headers,
        ]
        return {"type": "http.response.start", "status": self.status, "headers": headers}


def answer(code: int = Code.SUCCESS, msg: str | None = "success", *, status: int = 200, **fields: Any) -> Reply:
    """An answer as JSON; `msg` None leaves it out."""
    content = {"code": int(code), **fields} if msg is None else {"code": int(code), "msg": msg, **fields}
    try:
        # In a quarter of the time of the standard library.
        return Reply(to_json(content), status)
    except ValueError:
        # A lone surrogate, which UTF-8 cannot encode.
        return Reply(encode(content), status)


def refusal(error: LisaError) -> Reply:
    """The answer to a request that came at a bad moment, with its status and when to try again."""
    problem = problem_of(error)
    headers = tuple((name.encode(), text.encode()) for name, text in problem.headers.items())
    return answer(Code.UNKNOWN, problem.detail, status=problem.status)._replace(headers=headers)
