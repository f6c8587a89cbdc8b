"""Errors over HTTP: problem details of RFC 9457."""

import logging
import math
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from lisa_common.errors import (
    UNDONE,
    Closed,
    InvalidInput,
    LisaError,
    NoGroup,
    OutcomeUnknown,
    QueueFull,
    Refused,
    TooManyGroups,
    UnknownGroup,
    UnknownSchedule,
    UnknownTopic,
    UnknownWorker,
    Unreachable,
    in_part,
)
from lisa_common.logs import event
from lisa_gateway import json_text

__all__ = [
    "PROBLEMS",
    "Busy",
    "Forbidden",
    "OverQuota",
    "Problem",
    "Refusal",
    "Unauthorized",
    "part_is_done",
    "problem_of",
    "refuse",
    "response_of",
    "unexpected",
]

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"

PROBLEMS = {
    "invalid-input": "The request has a value that is not allowed",
    "too-large": "The request is larger than allowed",
    "too-slow": "The request arrives too slowly",
    "unauthorized": "The request does not say who calls",
    "forbidden": "The caller may not do this",
    "not-found": "There is no such thing",
    "unknown-topic": "There is no such topic",
    "unknown-group": "There is no such group",
    "unknown-schedule": "There is no such schedule",
    "unknown-worker": "There is no such worker",
    "unknown-message": "There is no such message",
    "method-not-allowed": "The path does not have this method",
    "media-type": "The content type is not supported",
    "conflict": "The state of the message or topic does not allow this",
    "too-many-groups": "The topic has as many groups as its policy allows",
    "queue-full": "The topic holds as many messages as its policy allows",
    "too-busy": "The gateway serves as much as it may",
    "over-quota": "The grant has a quota, and it is used up",
    "internal-error": "The gateway has an error, which its log shows; the request may have been carried out",
    "server-away": "The server of messages is away, or refuses for now; nothing was done",
    "outcome-unknown": "The server broke off before its reply, or did a part; the request may have been carried out",
    "server-refuses": "The server of messages does not accept the gateway, has an error, or its reply cannot be read",
}
"""All types of problems, with their titles."""

_AWAY_S = 1
"""Seconds after which a client may try again while the server is away."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: its HTTP status, its type, which `PROBLEMS` lists, and what happened."""

    status: int
    kind: str
    detail: str
    more: dict[str, Any] = field(default_factory=dict)
    """Further members, such as the field, the value and what was expected."""
    closes: bool = False
    """Whether the answer ends the connection, because the rest of the request is not read."""

    @property
    def document(self) -> dict[str, Any]:
        """The members of the JSON object."""
        head = {"type": f"urn:lisa:problem:{self.kind}", "title": PROBLEMS[self.kind], "status": self.status}
        return head | {"detail": self.detail} | self.more

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response."""
        if self.kind == "over-quota":
            return {"retry-after": str(self.more["retry_after"])}
        headers = {"retry-after": str(_AWAY_S)} if self.kind in ("server-away", "too-busy") else {}
        return headers | ({"connection": "close"} if self.closes else {})


class Refusal(LisaError):
    """Refuses a request with this problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.detail)


class Unauthorized(LisaError):
    """A request does not say who calls, or a token is not known."""


class Forbidden(LisaError):
    """The caller may not do this."""


class Busy(LisaError):
    """The gateway serves as much as it may."""


class OverQuota(LisaError):
    """A quota of the caller's grant is used up; it has room again after about `wait_s` seconds."""

    def __init__(self, quota: str, limit: float, wait_s: float) -> None:
        self.quota = quota
        self.limit = limit
        self.retry_after = max(1, math.ceil(wait_s))
        super().__init__(f"the grant allows {quota} = {limit:.15g}; try again after {self.retry_after} s")


_SHOWN = 200


def _shown(value: object) -> Any:
    """A caller's value as short, valid JSON."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if abs(value) < 2**53 else str(value)[:_SHOWN]
    if isinstance(value, str):
        return value[:_SHOWN]
    return value.isoformat() if isinstance(value, datetime) else reprlib.repr(value)[:_SHOWN]


_OF_ERRORS: tuple[tuple[type[LisaError], int, str, tuple[str, ...]], ...] = (
    (InvalidInput, 400, "invalid-input", ()),
    (Unauthorized, 401, "unauthorized", ()),
    (Forbidden, 403, "forbidden", ()),
    (UnknownTopic, 404, "unknown-topic", ("topic",)),
    (UnknownWorker, 404, "unknown-worker", ("worker",)),
    (UnknownSchedule, 404, "unknown-schedule", ("topic", "schedule")),
    (UnknownGroup, 404, "unknown-group", ("topic", "group")),
    (TooManyGroups, 409, "too-many-groups", ()),
    (QueueFull, 409, "queue-full", ("limit", "count")),
    (OverQuota, 429, "over-quota", ("quota", "limit", "retry_after")),
    (Busy, 503, "too-busy", ()),
    (OutcomeUnknown, 504, "outcome-unknown", ()),
    (Unreachable, 503, "server-away", ()),
    (Refused, 503, "server-away", ()),
    (NoGroup, 503, "server-away", ()),
    (Closed, 503, "server-away", ()),
)
"""Status, type and further members of each error. Only those of status 503 promise that nothing was done."""


@contextmanager
def part_is_done() -> Iterator[None]:
    """For the further steps of a call that has changed something: no error of its block says that nothing was done."""
    try:
        yield
    except UNDONE as error:
        raise in_part(error) from error


def problem_of(error: LisaError) -> Problem:
    """The problem that stands for an error of Lisa."""
    if isinstance(error, Refusal):
        return error.problem
    for kind, status, name, members in _OF_ERRORS:
        if isinstance(error, kind):
            more = {member: getattr(error, member) for member in members}
            if isinstance(error, InvalidInput):
                more = {"field": error.field, "value": _shown(error.value), "expected": error.expected}
            # Errors of a connection say where the server is: the log does, and callers need not know.
            detail = PROBLEMS[name] if isinstance(error, (Unreachable, OutcomeUnknown)) else str(error)
            return Problem(status, name, detail, more)
    # A batch that stopped half-way; a script that failed at a key of another type; errors that later releases add.
    cause = error.__cause__
    return problem_of(cause) if isinstance(cause, LisaError) else Problem(502, "server-refuses", str(error))


def response_of(problem: Problem, **headers: str) -> Response:
    """The response for a problem."""
    return Response(
        json_text.encode(problem.document), problem.status, media_type=MEDIA_TYPE, headers=problem.headers | headers
    )


def unexpected(path: str, error: Exception) -> Problem:
    """Logs an error that no interface foresees. Returns the problem that stands for it."""
    logger.error("a request of %s failed", path, extra=event("request_failed", path=path), exc_info=error)
    return Problem(500, "internal-error", "internal error; the log of the gateway says more")


async def refuse(request: Request, error: Exception) -> Response:
    """Answers errors, and requests that no route takes, for Starlette."""
    if isinstance(error, LisaError):
        return response_of(problem_of(error))
    path, method = request.url.path, request.method
    if not isinstance(error, HTTPException):
        return response_of(unexpected(path, error))
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "")
        more = {"field": "method", "value": method, "expected": f"one of {allowed}"}
        return response_of(Problem(405, "method-not-allowed", f"{path} has no method {method}", more), allow=allowed)
    return response_of(Problem(404, "not-found", f"there is no {path!r}"))
