"""The airline over HTTP: it sends a boarding call for each flight, deletes the cancelled, sends the late ones anew."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

from demo.flights import DayClock, Flight, flights_of
from demo.http.wire import Wire

_AHEAD_MS = 4_000
"""The day begins so long after the start: time to send what is due first."""

_SENDERS = 8
_DONE, _DELETED = 200, 7
"""A code and a status of the interface."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main(journal: str, day: str, seconds: str, *gateways: str) -> None:
    """Plays the airline for a day, and notes each send and delete that was answered."""
    wire = Wire(gateways)
    flights = flights_of(date.fromisoformat(day))
    clock = DayClock.of(flights, start_ms=_now_ms() + _AHEAD_MS, seconds=float(seconds))
    with Path(journal).open("w", encoding="utf-8", buffering=1) as lines:

        def send(flight: Flight, minute: float) -> None:
            delay_ms = max(0, clock.ms(minute) - _now_ms())
            answer = wire.call("sendMsg", topic=flight.airport, msgId=flight.id, msg=flight.name, delayMillis=delay_ms)
            sent = answer["delayMsg"]
            lines.write(json.dumps({"sent": flight.id, "topic": flight.airport, "due": sent["triggerTime"]}) + "\n")

        def delete(flight: Flight) -> bool:
            answer = wire.call("deleteMsg", topic=flight.airport, msgId=flight.id)
            deleted: bool = answer["code"] == _DONE
            if not deleted and answer["attempts"] > 1:
                # The first try may have deleted it, and its answer was lost with a gateway.
                found = wire.call("getMsg", topic=flight.airport, msgId=flight.id)
                deleted = found.get("delayMsg", {}).get("status") == _DELETED
            lines.write(json.dumps({"deleted": flight.id, "done": deleted}) + "\n")
            return deleted

        in_order = sorted(flights, key=lambda flight: flight.boarding_min)
        with ThreadPoolExecutor(_SENDERS) as senders:
            list(senders.map(lambda flight: send(flight, flight.boarding_min), in_order))

            def change(flight: Flight) -> None:
                if delete(flight) and not flight.cancelled:
                    send(flight, flight.late_boarding_min)

            changed = (flight for flight in flights if flight.cancelled or flight.late)
            changes = []
            for flight in sorted(changed, key=lambda flight: flight.notice_min):
                time.sleep(max(0, clock.ms(flight.notice_min) - _now_ms()) / 1000)
                changes.append(senders.submit(change, flight))
            for done in changes:
                done.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
