"""Loads many messages from lines: bounded memory, a complaint for each bad line, the others sent all the same."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lisa_common.errors import InvalidInput, LisaError
from lisa_producer.client import Producer
from lisa_producer.lines import Line, read_line
from lisa_producer.message import Message, PartialSend, SendReport, SendResult

__all__ = ["Loader"]

_LINES, _BYTES = 5_000, 16 * 1024 * 1024
"""How much is gathered, over all topics, before it is sent."""


@dataclass(slots=True)
class Loader:
    """Sends lines; `complain` is told of each that cannot be sent, `progress` of the bytes that are dealt with."""

    producer: Producer
    topic: str | None
    complain: Callable[[int, LisaError], object]
    progress: Callable[[int], object]
    report: SendReport = field(default_factory=SendReport)
    _gathered: dict[str, list[tuple[int, Message]]] = field(default_factory=dict)
    _lines: int = 0
    _bytes: int = 0

    def load(self, lines: Iterable[Line]) -> SendReport:
        """Sends all lines; raises PartialSend when it had to stop, as the server is away for too long or refuses."""
        for line in lines:
            self._gather(line)
            if self._lines >= _LINES or self._bytes >= _BYTES:
                self._send()
        self._send()
        return self.report

    def _gather(self, line: Line) -> None:
        self._bytes += line.bytes
        try:
            found = read_line(line, self.topic)
        except InvalidInput as error:
            self._fail(line.number, error)
            return
        if found:
            topic, message = found
            self._gathered.setdefault(topic, []).append((line.number, message))
            self._lines += 1

    def _fail(self, number: int, error: LisaError) -> None:
        self.report.failed += 1
        self.report.first_error = self.report.first_error or error
        self.complain(number, error)

    def _send(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for topic, messages in gathered.items():
            self._send_to(topic, messages)
        self.progress(self._bytes)
        self._lines = self._bytes = 0

    def _send_to(self, topic: str, messages: list[tuple[int, Message]]) -> None:
        def take(result: SendResult) -> None:
            if isinstance(result.error, InvalidInput):
                self._fail(messages[result.position][0], result.error)
            elif result.error is None:
                self.report.count(result)

        try:
            self.producer.send_many(topic, (message for _, message in messages), on_result=take)
        except PartialSend as error:
            raise PartialSend(topic, self.report) from error.__cause__
