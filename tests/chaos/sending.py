"""The history of a program that sends: each request before its call, and the reply after it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from chaos.history import Asked, Recorder, Sending, Sent, Told, now
from chaos.recording import NOT_DONE
from lisa_common.errors import InvalidInput, LisaError
from lisa_producer import Message, PartialSend, SendOutcome, SendReport, SendResult

__all__ = ["Sends", "options_of"]


class Sends:
    """The operations of a producer, blocking or not, from any thread."""

    def __init__(self, history: Recorder) -> None:
        self._history = history

    @contextmanager
    def one(self, topic: str, sending: Sending) -> Iterator[list[SendResult]]:
        """Around the send of one message; the block puts its result into the list."""
        op, results = self._begin(topic, [sending]), list[SendResult]()
        try:
            yield results
        except LisaError as error:
            self._end(op, "ok", [[sending.id, _outcome_of(error), None]], error)
        else:
            self._end(op, "ok", [_row(result) for result in results])

    @contextmanager
    def batch(self, topic: str, sendings: Sequence[Sending]) -> Iterator[list[SendReport]]:
        """Around the send of many messages; the block puts its report into the list."""
        op, reports = self._begin(topic, list(sendings)), list[SendReport]()
        try:
            yield reports
        except PartialSend as error:
            # The messages that it did not reach were not sent.
            self._end(op, "failed", [_row(result) for result in error.report.results], error.__cause__ or error)
        except LisaError as error:
            self._end(op, "failed" if isinstance(error, NOT_DONE) else "unknown", [], error)
        else:
            self._end(op, "ok", [_row(result) for report in reports for result in report.results])

    @contextmanager
    def asked(self, what: str, topic: str, id: str, delay_ms: int) -> Iterator[list[str]]:
        """Around a cancel or a reschedule; the block puts its outcome into the list."""
        op, outcomes = self._history.op(), list[str]()
        self._history.write(Asked(now(), op, what, topic, id, delay_ms))
        try:
            yield outcomes
        except LisaError as error:
            self._end(op, _outcome_of(error), [], error)
        else:
            self._end(op, "ok", [[str(outcome)] for outcome in outcomes])

    def _begin(self, topic: str, sendings: list[Sending]) -> str:
        op = self._history.op()
        self._history.write(Sent(now(), op, topic, sendings))
        return op

    def _end(self, op: str, how: str, results: list[list[Any]], error: BaseException | None = None) -> None:
        self._history.write(Told(now(), op, how, results, f"{type(error).__name__}: {error}"[:200] if error else ""))


def options_of(message: Message) -> dict[str, Any]:
    """The arguments of `send` for a message, besides its body."""
    return {
        name: getattr(message, name) for name in ("delay", "id", "ttl", "max_retries", "priority", "headers", "key")
    }


def _row(result: SendResult) -> list[Any]:
    outcome = str(result.outcome) if result.error is None else _outcome_of(result.error)
    return [result.id, outcome, result.due_ms if result.outcome is SendOutcome.SENT else None]


def _outcome_of(error: LisaError) -> str:
    if isinstance(error, InvalidInput):
        return "invalid"
    return "failed" if isinstance(error, NOT_DONE) else "unknown"
