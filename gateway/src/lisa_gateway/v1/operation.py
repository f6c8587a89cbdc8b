"""Operations of /v1: what a request must hold, who may make it, and the function that answers it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from lisa_common.cli.parse import DURATION_FORM
from lisa_common.errors import InvalidInput, OmittedBytes
from lisa_common.validation import check_id, check_name, expected_by
from lisa_gateway.access import ROUTES, Caller, Rule, caller_of
from lisa_gateway.aside import aside
from lisa_gateway.forms import URLENCODED, media_type
from lisa_gateway.gateway import Gateway
from lisa_gateway.handover import HandedOver, Handover
from lisa_gateway.json_text import decode, encode
from lisa_gateway.problems import Problem, Refusal, problem_of
from lisa_gateway.v1.models import UnknownMember
from lisa_gateway.v1.receipts import Receipts

__all__ = [
    "OPERATIONS",
    "Answer",
    "Call",
    "Operation",
    "check_plain",
    "operation",
    "parsed",
    "respond",
    "unsupported",
    "validated",
]

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Call:
    """A request that may be answered."""

    request: Request
    gateway: Gateway
    receipts: Receipts
    caller: Caller
    rule: Rule
    path: Mapping[str, str]
    """The parts of the path, checked."""
    query: Any = None
    body: Any = None
    """The models of the operation, None where it has none."""

    @property
    def topic(self) -> str:
        """The topic that the path names."""
        return self.path["topic"]

    def shows(self, topic: str) -> bool:
        """Whether the caller may make this call about a topic."""
        return any(self.caller.may(role, topic) for role in self.rule.roles)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call."""

    document: Any
    """What is to be JSON, or its bytes."""
    status: int = 200
    handover: Handover | None = None
    """What gives its messages back if the client is gone."""


_Answering = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    name: str
    summary: str
    answer: _Answering
    answers: Mapping[int, Any]
    """The type of the answer for each status of success."""
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    takes_bytes: bool = False
    """Whether it takes a body of any content type; it reads the body itself."""
    body_required: bool = True
    conflicts: bool = False
    """Whether the state of a message or topic may not allow it."""

    @property
    def has_body(self) -> bool:
        """Whether a request has a body."""
        return self.body is not None or self.takes_bytes

    @property
    def rule(self) -> Rule:
        """Who may call it."""
        return ROUTES[f"{self.method} {self.path}"]


OPERATIONS: list[Operation] = []
"""All operations, in the order of the document."""


def operation(route: str, answers: Mapping[int, Any], **more: Any) -> Callable[[_Answering], _Answering]:
    """Makes a function answer a route, given as method and path. `more` are further fields of the operation.

    The function's name and docstring become the operation's name and summary.
    """

    def register(answer: _Answering) -> _Answering:
        method, path = route.split()
        first, *words = answer.__name__.split("_")
        name, summary = first + "".join(map(str.capitalize, words)), (answer.__doc__ or "").removesuffix(".")
        made = Operation(method=method, path=path, name=name, summary=summary, answer=answer, answers=answers, **more)
        OPERATIONS.append(made)
        return answer

    return register


async def respond(operation: Operation, gateway: Gateway, receipts: Receipts, request: Request) -> Response:
    """The response to a request for an operation. Raises LisaError."""
    answer = await operation.answer(await _read(operation, gateway, receipts, request))
    content = answer.document if isinstance(answer.document, bytes) else encode(answer.document)
    if answer.handover is None:
        return Response(content, answer.status, media_type="application/json")
    return HandedOver(answer.handover, content)


async def _read(operation: Operation, gateway: Gateway, receipts: Receipts, request: Request) -> Call:
    path = _path_of(request)
    caller = caller_of(request.scope)
    operation.rule.check(caller, path.get("topic"))
    query = None if operation.query is None else _query_of(operation.query, request)
    if operation.query is None and request.url.query:
        name = next(iter(request.query_params), "")
        raise InvalidInput("query parameter", name, "absent, as this operation takes none")
    body = None
    if operation.takes_bytes:
        _check_has_end(request)
    elif operation.body is not None:
        body = await _body_of(operation, request)
    else:
        # Means nothing here. But no success is answered to a body that was cut off.
        await request.body()
    return Call(request, gateway, receipts, caller, operation.rule, path, query, body)


_MOST_PARAMETERS = 100
"""Most query parameters; a message may have many headers."""

_MOST_OF_NAME = 200
"""Characters of a name that an error shows."""

_CHECKS: dict[str, Callable[[str], str]] = {
    "topic": lambda value: check_name("topic", value),
    "group": lambda value: check_name("group", value),
    "worker": lambda value: check_name("worker", value),
    "id": check_id,
}


def _check_utf_8(field: str, encoded: bytes) -> None:
    """Refuses what Starlette would replace in silence."""
    try:
        unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise InvalidInput(field, encoded.decode("latin-1"), "UTF-8, percent-encoded") from None


def _path_of(request: Request) -> dict[str, str]:
    _check_utf_8("path", request.scope.get("raw_path") or b"")
    return {name: _CHECKS[name](value) for name, value in request.path_params.items()}


def _query_of(model: type[M], request: Request) -> M:
    """Reads query parameters: a repeated one is a list, and only where a list is allowed."""
    _check_utf_8("query", request.scope["query_string"])
    encoded = request.scope["query_string"]
    if encoded.count(b"&") >= _MOST_PARAMETERS:
        raise InvalidInput("query", OmittedBytes(len(encoded)), f"at most {_MOST_PARAMETERS} parameters")
    fields: dict[str, Any] = {}
    for name in request.query_params:
        values = request.query_params.getlist(name)
        known = model.model_fields.get(name)
        is_list = known is not None and known.annotation == list[str]
        if len(values) > 1 and not is_list:
            raise InvalidInput(name, values, "given once")
        fields[name] = values if is_list else values[0]
    return validated(model, fields)


def _check_has_end(request: Request) -> None:
    """Raises Refusal for a body without a length, such as of HTTP/1.0: it would count as empty, whatever was sent."""
    given = {"content-length", "transfer-encoding"}.intersection(request.headers)
    if not given and request.scope["http_version"] < "2":
        error = InvalidInput("content-length", None, "given, with 0 for an empty message")
        raise Refusal(replace(problem_of(error), closes=True))


async def _body_of(operation: Operation, request: Request) -> BaseModel:
    model = cast(type[BaseModel], operation.body)
    data = await request.body()
    if not data and not operation.body_required:
        return validated(model, {})
    _check_json(request)
    return await aside(len(data), lambda: validated(model, parsed(data)))


def _check_json(request: Request) -> None:
    """Raises Refusal unless the request says that its body is JSON, without compression."""
    kind = media_type(request.headers.get("content-type", ""))
    if kind != "application/json":
        raise Refusal(unsupported(kind, "application/json"))
    check_plain(request)


def check_plain(request: Request) -> None:
    """Raises Refusal for a compressed body."""
    encoding = ", ".join(request.headers.getlist("content-encoding")).strip().lower()
    if encoding not in ("", "identity"):
        raise Refusal(_of_media(InvalidInput("content-encoding", encoding, "identity")))


def unsupported(kind: str, expected: str) -> Problem:
    """The problem of another content type."""
    hint = " (curl -d sends this for any body; --json is for JSON)" if kind == URLENCODED else ""
    problem = _of_media(InvalidInput("content-type", kind, expected))
    return replace(problem, detail=problem.detail + hint)


def _of_media(error: InvalidInput) -> Problem:
    return replace(problem_of(error), status=415, kind="media-type")


def parsed(data: bytes, field: str = "body") -> Any:
    """JSON as a value. Raises InvalidInput, also for two members of one name: one of them would be dropped."""
    try:
        return decode(data)
    except (ValueError, RecursionError) as error:
        shown = data[:200].decode("utf-8", "replace")
        raise InvalidInput(field, shown, f"JSON ({error})") from None


def validated(model: type[M], value: Any, field: str = "") -> M:
    """A value as a model. Raises InvalidInput, which names the first field that does not fit."""
    if not isinstance(value, dict):
        raise InvalidInput(field or "body", value, "a JSON object")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        place = _place(first, value)
        # Of a union, each branch has an error of its own; ours says more than that of a type.
        branches = [first, *(other for other in others if _place(other, value) == place)]
        first = next((each for each in branches if isinstance(each.get("ctx", {}).get("error"), InvalidInput)), first)
        name = ".".join((field, *place) if field else place) if place else field or "body"
        match first["type"]:
            case "value_error" if isinstance(cause := first["ctx"]["error"], UnknownMember):
                unknown = ".".join((*place, cause.name[:_MOST_OF_NAME]))
                raise InvalidInput("field", unknown, f"one of {', '.join(cause.known)}") from None
            case "missing":
                raise InvalidInput(name, None, "given") from None
            case "float_type" | "float_parsing" if len(branches) > 1:
                # A number or text: only durations are that.
                raise InvalidInput(name, first["input"], DURATION_FORM) from None
            case "int_type" if len(branches) > 1:
                # A number or text: only times are that.
                raise InvalidInput(name, first["input"], "a time in ISO 8601 with its zone, or ms since 1970") from None
            case "model_type" | "dict_type":
                raise InvalidInput(name, first["input"], "a JSON object") from None
            case _:
                raise InvalidInput(name, first["input"], expected_by(first)) from None


def _place(problem: Any, value: Any) -> tuple[str, ...]:
    """The names that lead to what does not fit. Pydantic adds the branch of a union, which is no part of the input."""
    if problem["type"] == "missing":
        return tuple(str(part)[:_MOST_OF_NAME] for part in problem["loc"])
    names: list[str] = []
    for part in problem["loc"]:
        if value is problem["input"] or not isinstance(value, (dict, list)):
            break
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            # A branch of a union, and not a part of the input.
            break
        names.append(str(part)[:_MOST_OF_NAME])
    return tuple(names)
