"""Answers of the interface: HTTP 200 for each request that was understood, with the outcome as `code` in the body."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any

from starlette.responses import Response

from lisa_common.errors import InvalidInput, LisaError
from lisa_gateway.json_text import encode
from lisa_gateway.problems import Busy, Forbidden, OverQuota, Refusal, problem_of

__all__ = ["Code", "Failed", "Misunderstood", "answer", "encode_answer", "failure_of"]

_NAMES = {"id": "msgId", "body": "msg", "delay": "delayMillis", "lease": "ackTimeoutMillis"}
"""Our names of fields, as clients know them."""


class Code(IntEnum):
    """All outcomes that clients know."""

    SUCCESS = 200
    PARAM_WRONG = 400
    NOT_EXISTS = 404
    UNKNOWN = 500


class Failed(Exception):
    """A request that was not done: answered with a code, the reason, and HTTP 200 where it was understood."""

    def __init__(
        self, code: Code, reason: str, status: int = 200, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.code = code
        self.reason = reason
        self.status = status
        self.headers = headers
        super().__init__(reason)

    @property
    def response(self) -> Response:
        """The response that says so."""
        response = answer(self.code, self.reason, status=self.status)
        response.headers.update(self.headers)
        return response


class Misunderstood(Failed):
    """A request that was not understood: answered with another HTTP status."""

    def __init__(self, reason: str, status: int = 400, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(Code.PARAM_WRONG, reason, status, headers)


def failure_of(error: BaseException) -> Failed | None:
    """What stands for an error; None for one that is a mistake of the gateway."""
    if isinstance(error, Failed):
        return error
    if isinstance(error, InvalidInput):
        named = InvalidInput(_NAMES.get(error.field, error.field), error.value, error.expected)
        return Failed(Code.PARAM_WRONG, str(named))
    if not isinstance(error, LisaError):
        return None
    problem = problem_of(error)
    if isinstance(error, (Forbidden, Refusal)):
        return Failed(Code.PARAM_WRONG, problem.detail, problem.status)
    if isinstance(error, (Busy, OverQuota)):
        # It came at a bad moment: the headers say when to try again.
        return Failed(Code.UNKNOWN, problem.detail, problem.status, problem.headers)
    return Failed(Code.UNKNOWN, problem.detail)


def encode_answer(code: int = Code.SUCCESS, msg: str | None = "success", **fields: Any) -> bytes:
    """An answer as JSON; `msg` None leaves it out."""
    return encode({"code": int(code), **({} if msg is None else {"msg": msg}), **fields})


def answer(code: int = Code.SUCCESS, msg: str | None = "success", *, status: int = 200, **fields: Any) -> Response:
    """The response with an answer."""
    return Response(encode_answer(code, msg, **fields), status, media_type="application/json")
