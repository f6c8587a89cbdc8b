"""Operations that send many messages: a batch, with an outcome for each message, and a stream of any length."""

from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, NotRequired

from pydantic import FailFast, Field
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from lisa_common.errors import InvalidInput, LisaError, NotConfirmed, OmittedBytes, OutcomeUnknown, Verbatim
from lisa_gateway.aside import Turn, aside
from lisa_gateway.limits import take_stream
from lisa_gateway.polls import MAX_BATCH
from lisa_gateway.problems import Refusal, problem_of
from lisa_gateway.v1.content import Ms, fields_of
from lisa_gateway.v1.models import Input, MessageInput, few
from lisa_gateway.v1.operation import Answer, Call, check_plain, operation, parsed, validated
from lisa_producer import Message, PartialSend, SendOutcome, SendReport, SendResult

__all__ = ["STREAMS", "StreamResult", "send_stream"]

STREAMS = ("application/x-ndjson", "application/ndjson", "application/jsonl")
"""Content types of streams."""

_PIECE = 65_536
_MOST_PROBLEMS = 100
"""The number of lines of a stream whose problems are reported, and of invalid lines at which it ends."""


class BatchItem(TypedDict):
    """The outcome of one message of a batch."""

    id: str | None
    outcome: Literal["sent", "replaced", "duplicate", "failed"]
    due_ms: Ms | None
    problem: NotRequired[dict[str, Any]]


class _Counts(TypedDict):
    sent: int
    replaced: int
    duplicates: int
    failed: int


class BatchResult(_Counts):
    """The outcomes of a batch, in its order."""

    results: list[BatchItem]


class LineProblem(TypedDict):
    """What is wrong with a line."""

    line: int
    problem: dict[str, Any]


class StreamResult(_Counts):
    """The outcomes of a stream, and the first hundred lines that were not sent."""

    problems: list[LineProblem]


class MessageBatch(Input):
    """Messages to send together."""

    messages: Annotated[
        list[MessageInput], FailFast(), few(MAX_BATCH, "messages"), Field(min_length=1, max_length=MAX_BATCH)
    ]


@operation("POST /v1/topics/{topic}/batch", {200: BatchResult}, body=MessageBatch, conflicts=True)
async def send_batch(call: Call) -> Answer:
    """Sends up to 1,000 messages, and reports the outcome of each."""
    given: MessageBatch = call.body
    results: dict[int, dict[str, Any]] = {}
    messages: dict[int, Message] = {}

    def sort_out() -> None:
        for place, message in enumerate(given.messages):
            try:
                messages[place] = Message(**fields_of(message))
            except InvalidInput as error:
                results[place] = _failed(message.id, error)

    await aside(len(await call.request.body()), sort_out)
    report, stopped = await _send_all(call, list(messages.values()))
    places = list(messages)
    results |= {places[result.position]: _item(result) for result in report.results}
    unsent = _failed(None, stopped) if stopped else {}
    items = [results.get(place, unsent) for place in range(len(given.messages))]
    outcomes = Counter(str(item["outcome"]) for item in items)
    names = {"sent": "sent", "replaced": "replaced", "duplicates": "duplicate", "failed": "failed"}
    counts = {name: outcomes[outcome] for name, outcome in names.items()}
    if stopped is not None:
        raise _stopped(stopped, counts | {"results": items}, in_part=any(map(_may_be_stored, report.results)))
    return Answer(counts | {"results": items})


async def _send_all(call: Call, messages: list[Message]) -> tuple[SendReport, LisaError | None]:
    """Sends messages. Returns their report, and the error that ended the whole send, if one did."""
    if not messages:
        return SendReport(), None
    await call.gateway.topics.admit(call.topic, call.caller.quota)
    try:
        return await call.gateway.producer.send_many(call.topic, messages), None
    except PartialSend as error:
        # Without a cause the send went to its end, and the report says which messages failed.
        cause = error.__cause__
        if cause is not None and not isinstance(cause, LisaError):
            raise
        return error.report, cause


def _problem(error: LisaError) -> dict[str, Any]:
    return problem_of(error).document


def _failed(id: str | None, error: LisaError) -> dict[str, Any]:
    return {"id": id, "outcome": SendOutcome.FAILED, "due_ms": None, "problem": _problem(error)}


def _item(result: SendResult) -> dict[str, Any]:
    if result.error is not None:
        return _failed(result.id, result.error)
    return {"id": result.id, "outcome": result.outcome, "due_ms": result.due_ms or None}


def _may_be_stored(result: SendResult) -> bool:
    is_stored = result.outcome in (SendOutcome.SENT, SendOutcome.REPLACED)
    return is_stored or isinstance(result.error, (OutcomeUnknown, NotConfirmed))


def _stopped(error: LisaError, document: dict[str, Any], *, in_part: bool) -> Refusal:
    """The problem that ended a send half-way, and what was sent before.

    After a part, no problem says that nothing was done, or that the whole may be tried again.
    """
    problem = problem_of(error)
    if in_part and "retry-after" in problem.headers:
        problem = problem_of(OutcomeUnknown(str(error)))
    return Refusal(replace(problem, more=problem.more | document))


async def send_stream(call: Call) -> Answer:
    """Sends the lines of a request as they arrive. An invalid line does not stop the others."""
    check_plain(call.request)
    take_stream(call.request.scope)
    await call.gateway.topics.admit(call.topic, call.caller.quota)
    stream = _Stream(call)
    try:
        await call.gateway.producer.send_many(call.topic, stream.messages(), on_result=stream.take)
    except PartialSend as error:
        cause = error.__cause__
        if not isinstance(cause, LisaError):
            raise
        raise _stopped(cause, stream.document, in_part=stream.may_be_stored) from None
    return Answer(stream.document)


def _message(line: bytes) -> Message:
    return Message(**fields_of(validated(MessageInput, parsed(line, "line"), "line")))


class _Stream:
    """The lines of one request, and their outcomes."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._lines: deque[int] = deque()
        """The numbers of lines that are being sent."""
        self._report = SendReport()
        self._problems: list[dict[str, Any]] = []
        self.may_be_stored = False
        """Whether any message is stored, or may be."""

    async def messages(self) -> AsyncIterator[Message]:
        """The messages of the valid lines."""
        with self._call.caller.quota.holding() as hold:
            async for number, line in self._split(hold):
                try:
                    message = await aside(len(line), partial(_message, line))
                except InvalidInput as error:
                    self._report.failed += 1
                    self._tell(number, error)
                    if self._report.failed < _MOST_PROBLEMS:
                        continue
                    raise InvalidInput("stream", Verbatim("the hundredth invalid one"), "of valid lines") from None
                self._lines.append(number)
                yield message

    async def _pieces(self) -> AsyncIterator[bytes]:
        """What arrives, in pieces of which each takes less than a turn, however many lines it has."""
        async for part in self._call.request.stream():
            for start in range(0, len(part), _PIECE):
                yield part[start : start + _PIECE]

    async def _split(self, hold: Callable[[int], None]) -> AsyncIterator[tuple[int, bytes]]:
        """The lines that are not empty, with their numbers; `hold` is told what is kept of them."""
        most = self._call.gateway.settings.max_body_bytes
        rest = bytearray()
        number = 1
        turn = Turn()
        async for part in self._pieces():
            await turn.step()
            first, *lines = part.split(b"\n")
            rest += first
            if lines:
                for line in (bytes(rest), *lines[:-1]):
                    if line.strip():
                        await turn.step()
                        yield number, line
                    number += 1
                rest = bytearray(lines[-1])
            hold(len(rest))
            if len(rest) > most:
                raise InvalidInput("line", OmittedBytes(len(rest)), f"at most {most} bytes")
        if rest.strip():
            yield number, bytes(rest)

    def take(self, result: SendResult) -> None:
        """Counts the outcome of the next line that was sent."""
        number = self._lines.popleft()
        self._report.count(result)
        self.may_be_stored |= _may_be_stored(result)
        if result.error is not None:
            self._tell(number, result.error)

    def _tell(self, number: int, error: LisaError) -> None:
        if len(self._problems) < _MOST_PROBLEMS:
            self._problems.append({"line": number, "problem": _problem(error)})

    @property
    def document(self) -> dict[str, Any]:
        """The answer."""
        report = self._report
        counts = {name: getattr(report, name) for name in ("sent", "replaced", "duplicates", "failed")}
        return counts | {"problems": self._problems}
