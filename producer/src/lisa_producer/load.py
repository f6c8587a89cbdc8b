"""Loads lines of JSON. A load that ends early says where to go on."""

from collections.abc import Iterable

from lisa_common.errors import InvalidInput
from lisa_producer.bulk_sender import BulkSender
from lisa_producer.json_lines import Line, read_line
from lisa_producer.results import SendReport

__all__ = ["Load"]


class Load:
    """Sends all lines from `first` on, by a sender with their numbers as keys.

    `topic` is the default of lines without one; `source` see `read_line`.
    """

    def __init__(
        self, sender: BulkSender[int], topic: str | None, *, first: int = 1, source: bytes | None = None
    ) -> None:
        self._sender = sender
        self._topic = topic
        self._first = first
        self._source = source
        self._taken = first - 1
        self.lines = 0
        """How many were read."""
        self._is_reading = False
        self._is_interrupted = False
        self._has_ended = False

    def run(self, lines: Iterable[Line]) -> None:
        """Loads lines. Raises LisaError when the server does not take them, and KeyboardInterrupt; see `interrupt`."""
        try:
            self._is_reading = True
            for line in lines:
                self._is_reading = False
                self.lines = line.number
                if line.number >= self._first:
                    self._take(line)
                    self._taken = line.number
                else:
                    self._sender.progress(line.bytes)
                if self._is_interrupted:
                    raise KeyboardInterrupt
                self._is_reading = True
            self._is_reading = False
            self._sender.flush()
        finally:
            self._has_ended = True

    def interrupt(self, *_: object) -> None:
        """Handles SIGINT: ends the load, a batch that is being sent first; again, the load ends at once."""
        if self._has_ended:
            return
        if self._is_interrupted or self._is_reading:
            raise KeyboardInterrupt
        self._is_interrupted = True

    @property
    def report(self) -> SendReport:
        """What became of the lines so far."""
        return self._sender.report

    @property
    def next_line(self) -> int:
        """The first line that is not settled: lines before it need not be loaded again."""
        return min(self._sender.left, default=self._taken + 1)

    @property
    def last_stored(self) -> int | None:
        """The last line, from `next_line` on, whose message is stored, or may be; None if there is none."""
        return max((number for number in self._sender.stored if number >= self.next_line), default=None)

    def _take(self, line: Line) -> None:
        try:
            addressed = read_line(line, self._topic, self._source)
        except InvalidInput as error:
            self._sender.refuse(line.number, error)
            addressed = None
        if addressed:
            self._sender.add(line.number, *addressed, line.bytes)
        else:
            self._sender.progress(line.bytes)
