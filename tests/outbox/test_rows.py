"""Rows that other programs write."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, insert, select

from lisa_producer import Message, Producer
from lisa_producer.outbox import Outbox, Relay
from lisa_producer.outbox.inspection import find_problems, read_backlog
from lisa_producer.outbox.table import METADATA, ROWS, now_ms
from support.stored import body_of

WRONG = {
    "due": ["+999999999999999999", "99999999999999999", "+" + 23 * "9", "\u0663", "+\u0663", "0.5"],
    "options": [f'{{"ttl_ms": 1{400 * "0"}}}', '{"ttl_ms": 5000.0}', '{"ttl_ms": true}', '{"ttl_ms": "5"}'],
}


@pytest.mark.parametrize("command", ["send", "reschedule"])
def test_no_value_of_a_row_holds_up_the_others(
    engine: Engine, producer: Producer, relays: Callable[..., Relay], command: str
) -> None:
    """Times in microseconds or beyond all calendars, and digits of other scripts."""
    good = {"topic": "orders", "command": "send", "due": "+60000", "created_ms": now_ms(), "body": b"x"}
    wrong = [{name: value} for name in WRONG for value in WRONG[name] if name == "due" or command == "send"]
    with engine.begin() as connection:
        for number, values in enumerate(wrong):
            connection.execute(insert(ROWS).values(good | {"command": command, "message_id": str(number)} | values))
        connection.execute(insert(ROWS).values(good | {"message_id": "good"}))
    assert relays(engine).relay_once() == len(wrong) + 1
    assert read_backlog(engine).set_aside == len(wrong)
    assert body_of(producer, "good") == b"x"


@pytest.mark.parametrize("created_ms", [-(2**63), 2**63 - 1])
def test_times_at_the_end_of_the_range_hold_up_nothing(
    engine: Engine, producer: Producer, relays: Callable[..., Relay], created_ms: int
) -> None:
    """Counts of them fail neither."""
    row = {"topic": "orders", "command": "send", "due": "+60000", "created_ms": created_ms, "body": b"x"}
    with engine.begin() as connection:
        connection.execute(insert(ROWS), [row | {"message_id": id} for id in ("a", "b")])
    assert (read_backlog(engine).oldest_s > 0, len(find_problems(engine))) == (
        (True, 1) if created_ms < 0 else (False, 0)
    )
    assert relays(engine).relay_once() == 2
    assert body_of(producer, "a") == b"x"


def test_rows_without_a_topic_are_set_aside(engine: Engine, relays: Callable[..., Relay]) -> None:
    """And those of a name that none can be; the others go on. MariaDB takes names that differ by blanks for equal."""
    row = {"command": "send", "message_id": "a", "due": "+60000", "created_ms": now_ms(), "body": b"x"}
    with engine.begin() as connection:
        for topic in ("", "orders ", "orders"):
            connection.execute(insert(ROWS).values(row | {"topic": topic}))
    assert sum(iter(relays(engine).relay_once, 0)) == 3
    assert read_backlog(engine).set_aside == 2
    assert find_problems(engine)[0].startswith(
        "1 rows for no topic are set aside, the first (id 1) because topic must be "
    )


def test_large_bodies_behind_small_ones_are_read_in_parts(engine: Engine, relays: Callable[..., Relay]) -> None:
    """A thousand of them would need much memory."""
    relay, outbox = relays(engine), Outbox()
    for size in (1, 3 * 2**20):
        with engine.begin() as connection:
            outbox.send_many(connection, "orders", [Message(body=size * b"x", delay=60) for _ in range(4)])
    # Lisa refuses bodies of this size, which is none of the relay's business.
    assert [relay.relay_once() for _ in range(3)] == [7, 1, 0]


def test_values_of_other_types_in_sqlite(tmp_path: Path, producer: Producer, relays: Callable[..., Relay]) -> None:
    """A body may be text, as a program in SQL writes it; anything else is set aside, and holds up no other row."""
    engine = create_engine(f"sqlite:///{tmp_path}/outbox.db")
    METADATA.create_all(engine)
    statement = "INSERT INTO lisa_outbox (topic, command, message_id, due, created_ms, body) VALUES "
    rows = (
        "('orders', 'send', 'number', '+60000', 0, 5), ('orders', 'send', 'text', '+60000', 0, 'h\u00e9'),"
        "('orders', 'send', 'due', x'2b30', 0, 'x'), ('orders', 'send', 'old', '+60000', -9e999, 'x')"
    )
    with engine.begin() as connection:
        connection.exec_driver_sql(statement + rows)
    # A number of JSON.
    assert read_backlog(engine).oldest_s == 2**53 / 1000
    assert "4 rows for orders wait, the oldest for 9007199254740 s, " in find_problems(engine)[0]
    assert relays(engine).relay_once() == 4
    with engine.connect() as connection:
        assert connection.scalars(select(ROWS.c.error)).all() == [
            "body must be bytes or text; got 5",
            "due must be ms since 1970, or +ms, up to 10 years from now; got b'+0'",
        ]
    assert [body_of(producer, id) for id in ("text", "old")] == ["h\u00e9".encode(), b"x"]
    engine.dispose()
