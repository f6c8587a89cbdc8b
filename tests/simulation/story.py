"""Tells what happened to some messages of a run, line by line, for people."""

import re
from collections.abc import Iterable, Iterator, Sequence

from chaos.history import Asked, Begun, Ended, Event, Left, Letter, Read, Sent, Settled, Settling, Told
from simulation.clock import BOOT_US

__all__ = ["tell"]

_MOST = 3
"""Messages that are told."""

_NAME = re.compile(r"promise \d+: ([\w~.-]+)/([^\s:]+)")


def tell(violations: Sequence[str], events: Iterable[Event]) -> Iterator[tuple[float, str]]:
    """The lines on the messages that the first violations name, each with its time in seconds of the run."""
    named = dict.fromkeys((found[1], found[2]) for text in violations if (found := _NAME.match(text)))
    teller = _Teller(list(named)[:_MOST])
    for event in events:
        for line in teller.lines(event):
            yield event.at - BOOT_US / 1e6, line


class _Teller:
    def __init__(self, named: Sequence[tuple[str, str]]) -> None:
        self._named = set(named)
        self._ops: dict[str, str] = {}
        self._places: dict[tuple[str, ...], str] = {}

    def lines(self, event: Event) -> Iterator[str]:
        match event:
            case Sent():
                yield from self._sent(event)
            case Asked() if (event.topic, event.id) in self._named:
                self._ops[event.op] = f"{event.what} of {event.topic}/{event.id}"
                yield f"{self._ops[event.op]} is asked for"
            case Told() | Settled() if event.op in self._ops:
                outcome = event.results or event.how if isinstance(event, Told) else event.outcomes
                error = event.error if isinstance(event, Told) else ""
                yield f"{self._ops[event.op]}: {outcome} {error}".rstrip()
            case Read():
                yield from self._read(event)
            case Begun() | Ended() if (event.group, *event.place) in self._places:
                what = "begins" if isinstance(event, Begun) else f"ends {event.error}".rstrip()
                yield f"the handler of {self._places[event.group, *event.place]} {what}"
            case Settling():
                yield from self._settling(event)
            case Left() | Letter() if (event.topic, event.id) in self._named:
                where = "a dead letter" if isinstance(event, Left) else "in the dead letter topic"
                yield f"in the end {event.topic}/{event.id} is {where} of group {event.group!r}: {event.reason}"

    def _sent(self, event: Sent) -> Iterator[str]:
        for each in event.messages:
            if (event.topic, each.id) in self._named:
                self._ops[event.op] = f"the send of {event.topic}/{each.id} as {each.mark}"
                yield f"{self._ops[event.op]}, due in {each.delay_ms} ms"

    def _read(self, event: Read) -> Iterator[str]:
        for taken in event.taken:
            if (taken.topic, taken.id) in self._named:
                name = f"{taken.topic}/{taken.id} as {taken.entry} (group {event.group})"
                self._places[event.group, *taken.place] = name
                yield f"{name} is delivered, attempt {taken.attempt}"

    def _settling(self, event: Settling) -> Iterator[str]:
        names = [name for place in event.places if (name := self._places.get((event.group, *place)))]
        if names:
            self._ops[event.op] = f"{event.what} of {', '.join(names)}"
            yield f"{self._ops[event.op]} is asked for"
