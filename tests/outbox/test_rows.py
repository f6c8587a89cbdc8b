"""Rows that other programs write."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, insert, select

from lisa_producer import Producer
from lisa_producer.outbox import Relay
from lisa_producer.outbox.inspection import read_backlog
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


def test_bodies_of_other_types_in_sqlite(tmp_path: Path, producer: Producer, relays: Callable[..., Relay]) -> None:
    """Text is what a program in SQL writes there; anything else is set aside."""
    engine = create_engine(f"sqlite:///{tmp_path}/outbox.db")
    METADATA.create_all(engine)
    statement = "INSERT INTO lisa_outbox (topic, command, message_id, due, created_ms, body) VALUES "
    rows = "('orders', 'send', 'number', '+60000', 0, 5), ('orders', 'send', 'text', '+60000', 0, 'h\u00e9')"
    with engine.begin() as connection:
        connection.exec_driver_sql(statement + rows)
    assert relays(engine).relay_once() == 2
    with engine.connect() as connection:
        assert connection.scalars(select(ROWS.c.error)).all() == ["body must be bytes or text; got 5"]
    assert body_of(producer, "text") == "h\u00e9".encode()
    engine.dispose()
