"""Answers of the interface: HTTP 200 for each request that was understood, with the outcome as `code` in the body."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any

from starlette.responses import Response

from lisa_common.errors import InvalidInput, LisaError
from lisa_gateway.json_text import encode
from lisa_gateway.problems import problem_of

__all__ = ["Code", "Failed", "Misunderstood", "answer", "encode_answer", "failure_of", "refusal"]

_NAMES = {"id": "msgId", "body": "msg", "delay": "delayMillis", "lease": "ackTimeoutMillis"}
"""Our names of fields, as clients know them."""


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

    def __init__(self, reason: str, status: int = 400, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        self.status = status
        self.headers = headers
        self.reason = reason
        super().__init__(reason)


def failure_of(error: BaseException) -> Failed | None:
    """The code and the reason that stand for an error; None for one that is a mistake of the gateway."""
    if isinstance(error, Failed):
        return error
    if isinstance(error, InvalidInput):
        named = InvalidInput(_NAMES.get(error.field, error.field), error.value, error.expected)
        return Failed(Code.PARAM_WRONG, str(named))
    return Failed(Code.UNKNOWN, problem_of(error).detail) if isinstance(error, LisaError) else None


def encode_answer(code: int = Code.SUCCESS, msg: str | None = "success", **fields: Any) -> bytes:
    """An answer as JSON; `msg` None leaves it out."""
    return encode({"code": int(code), **({} if msg is None else {"msg": msg}), **fields})


def answer(code: int = Code.SUCCESS, msg: str | None = "success", *, status: int = 200, **fields: Any) -> Response:
    """The response with an answer."""
    return Response(encode_answer(code, msg, **fields), status, media_type="application/json")


def refusal(error: LisaError) -> Response:
    """The answer to a request that came at a bad moment, with its status and when to try again."""
    problem = problem_of(error)
    response = answer(Code.UNKNOWN, problem.detail, status=problem.status)
    response.headers.update(problem.headers)
    return response
