"""The history of a dead letter: RabbitMQ's names and order, and which ways are cycles."""

import json

import pytest

from lisa_common.model.death import Death, add_death, dead_letter_id, is_cycle, read_deaths, stems_from


def _die(headers: dict[str, str], queue: str, reason: str, at_ms: int, **details: object) -> dict[str, str]:
    return add_death(headers, Death.of(queue, reason, at_ms, **details))[0]


def test_a_death_has_rabbitmqs_fields() -> None:
    """One object, with the fields that RabbitMQ documents, and those of Lisa."""
    headers = _die(
        {"a": "b"}, "orders", "rejected", 7, original_ttl_ms=60_000, group="g", id="o-7", attempts=2, error="no"
    )
    assert json.loads(headers.pop("x-death")) == [
        {
            "queue": "orders",
            "reason": "rejected",
            "count": 1,
            "first-time": 7,
            "last-time": 7,
            "exchange": "",
            "routing-keys": ["orders"],
            "original-expiration": "60000",
            "group": "g",
            "message-id": "o-7",
            "attempts": 2,
            "error": "no",
        }
    ]
    assert headers == {
        "a": "b",
        "x-first-death-queue": "orders",
        "x-first-death-reason": "rejected",
        "x-first-death-id": "o-7",
        "x-last-death-queue": "orders",
        "x-last-death-reason": "rejected",
    }


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ("rejected", "rejected"),
        ("expired", "expired"),
        ("nack", "delivery_limit"),
        ("abandoned", "delivery_limit"),
        ("unknown", "unknown"),
    ],
)
def test_reasons_are_rabbitmqs(failure: str, reason: str) -> None:
    """A reason of a failure becomes RabbitMQ's word."""
    assert Death.of("orders", failure, 1).reason == reason


def test_history_is_newest_first_with_one_entry_for_each_queue_and_reason() -> None:
    """A further death of the same queue and reason counts, and comes first; the first death stays known."""
    headers = _die({}, "orders", "rejected", 1, id="first")
    headers = _die(headers, "wait", "expired", 2, original_ttl_ms=5)
    headers = _die(headers, "orders", "nack", 3)
    headers = _die(headers, "orders", "rejected", 4, id="later")
    deaths = read_deaths(headers)
    assert [(d.queue, d.reason, d.count, d.first_ms, d.last_ms) for d in deaths] == [
        ("orders", "rejected", 2, 1, 4),
        ("orders", "delivery_limit", 1, 3, 3),
        ("wait", "expired", 1, 2, 2),
    ]
    assert deaths[2].original_ttl_ms == 5
    assert headers["x-first-death-queue"] == "orders"
    assert headers["x-first-death-id"] == "first"
    assert (headers["x-last-death-queue"], headers["x-last-death-reason"]) == ("orders", "rejected")


@pytest.mark.parametrize(
    ("way", "target", "cycle"),
    [
        ([("wait", "expired")], "work", False),
        ([("work", "nack"), ("wait", "expired")], "work", True),
        ([("work", "rejected"), ("wait", "expired")], "work", False),
        ([("work", "rejected"), ("a", "expired"), ("b", "expired")], "a", True),
        ([("work", "rejected"), ("work", "nack"), ("wait", "expired")], "work", True),
        ([("self", "expired")], "self", True),
        ([("self", "rejected")], "self", False),
    ],
)
def test_a_cycle_is_a_way_back_without_a_rejection(way: list[tuple[str, str]], target: str, *, cycle: bool) -> None:
    """As RabbitMQ judges: from the last death in the target on, nobody rejected the message."""
    headers: dict[str, str] = {}
    for at_ms, (queue, reason) in enumerate(way):
        headers, history = add_death(headers, Death.of(queue, reason, at_ms))
    assert is_cycle(history, target) is cycle


@pytest.mark.parametrize(
    "text",
    ["", "x", "7", "{}", "[7]", '[{"queue":"a"}]', '[{"queue":7,"reason":"x","count":1,"first-time":1,"last-time":1}]']
    + [
        f'[{{"queue":"a","reason":"x","count":{n},"first-time":1,"last-time":1}}]'
        for n in ("0", "true", "1.5", "1e400")
    ]
    + ["[" * 100_000, '[{"queue":"a","reason":"x","count":1,"first-time":1,"last-time":1,"original-expiration":"x"}]'],
)
def test_a_foreign_history_counts_as_none(text: str) -> None:
    """Senders may write any header."""
    assert not read_deaths({"x-death": text})
    assert len(read_deaths(_die({"x-death": text}, "orders", "nack", 1))) == 1


def test_an_id_says_where_a_dead_letter_comes_from() -> None:
    """It is the same for a repeated send, and differs for each topic, group, message and death."""
    assert dead_letter_id("orders", "billing", "o-7", 5, "o-7") == "orders/billing/o-7@5"
    assert dead_letter_id("orders", "", "o-7", 5, "o-7") == "orders//o-7@5"


@pytest.mark.parametrize("id", ["é" * 95, "x" * 195, "a\nb", "\udcff"])
def test_a_long_or_foreign_id_is_shortened(id: str) -> None:
    """The id of a dead letter is one that operators may name, and still tells messages apart."""
    names = {dead_letter_id("orders", "g" * 100, other, at, id) for other in (id, id + "1") for at in (1, 2)}
    assert len(names) == 4
    assert all(name.isprintable() and len(name.encode()) <= 200 for name in names)


def test_an_id_is_traced_through_hops() -> None:
    """Also where the id of a hop was shortened; ids that only look alike do not match."""
    first = dead_letter_id("orders", "g", "o-7", 5, "o-7")
    second = dead_letter_id("wait" * 20, "", first, 6, "o-7")
    shortened = dead_letter_id("w" * 60, "g" * 60, second, 7, "o-7")
    assert "#" in shortened
    assert all(stems_from(name, "o-7") for name in (first, second, shortened))
    assert not any(stems_from(name, "7") for name in (first, second, shortened))
    assert not stems_from("o-7", "o-7")
