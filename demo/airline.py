"""The producer: sends a boarding call for every flight of the day, then cancels and reschedules as the day goes on."""

import argparse
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from zlib import crc32

from demo.events import Cancelled, Journal, Opened, Rescheduled, Sent
from demo.flights import AIRPORTS, DayClock, Flight, flights_of
from demo.server import POLICY
from demo.servertime import ServerTime
from lisa_common.client.connection import Connection
from lisa_producer import Message, Producer, ProducerSettings, SendResult

__all__ = ["main"]

_AHEAD_MS = 800
"""Milliseconds from the first send to the begin of the day: time to send all messages."""

_HOPELESS_RETRIES = 2

_TROUBLES = {"gate taken": 25, "crew late": 12, "no aircraft": 8, "no such gate": 5}
"""Trouble → its flights in a thousand."""


def main() -> None:
    """Plays the airline for a day."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--day", type=date.fromisoformat, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    options = parser.parse_args()
    flights = flights_of(options.day)
    with Connection.of(ProducerSettings.load(), name="lisa-demo") as connection:
        time_there = ServerTime.of(connection)
    with Journal(options.journal) as journal, Producer() as producer:
        clock = DayClock.of(flights, start_ms=time_there.now_ms() + _AHEAD_MS, seconds=options.seconds)
        journal.note(Opened(clock.start_ms, clock.first_min, clock.last_min, clock.seconds))
        for airport in AIRPORTS:
            _send(producer, journal, clock, airport, [flight for flight in flights if flight.airport == airport])
        _live(producer, journal, clock, time_there, flights)


def _send(producer: Producer, journal: Journal, clock: DayClock, airport: str, flights: Sequence[Flight]) -> None:
    messages = [_message(flight, clock) for flight in flights]

    def note(result: SendResult) -> None:
        if result.error:
            raise result.error
        message = messages[result.position]
        retries = POLICY.max_retries if message.max_retries is None else message.max_retries
        journal.note(Sent(message.id or "", airport, result.due_ms or 0, retries))

    producer.send_many(airport, messages, on_result=note)


def _message(flight: Flight, clock: DayClock) -> Message:
    trouble = _trouble(flight)
    return Message(
        id=flight.id,
        at=clock.moment(flight.boarding_min),
        body={"flight": flight.name, "from": flight.airport, "to": flight.destination},
        headers={"trouble": trouble} if trouble else {},
        max_retries=_HOPELESS_RETRIES if trouble == "no aircraft" else None,
    )


def _trouble(flight: Flight) -> str | None:
    draw = crc32(flight.id.encode()) % 1000
    for trouble, share in _TROUBLES.items():
        if draw < share:
            return trouble
        draw -= share
    return None


def _live(
    producer: Producer, journal: Journal, clock: DayClock, time_there: ServerTime, flights: Sequence[Flight]
) -> None:
    """Announces each change of plan at the minute when it became known in 2013."""
    for flight in _changes(flights):
        while (left_ms := clock.ms(flight.notice_min) - time_there.now_ms()) > 0:
            time.sleep(left_ms / 1000)
        if flight.cancelled:
            cancelled = producer.cancel(flight.airport, flight.id)
            journal.note(Cancelled(flight.id, cancelled.value, time_there.now_ms()))
        else:
            at = clock.moment(flight.late_boarding_min)
            moved = producer.reschedule(flight.airport, flight.id, at=at)
            due_ms = clock.ms(flight.late_boarding_min)
            journal.note(Rescheduled(flight.id, due_ms, moved.value, time_there.now_ms()))


def _changes(flights: Sequence[Flight]) -> Iterator[Flight]:
    changed = (flight for flight in flights if flight.cancelled or flight.late)
    yield from sorted(changed, key=lambda flight: flight.notice_min)


if __name__ == "__main__":
    main()
