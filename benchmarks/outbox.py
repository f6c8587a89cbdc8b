"""An outbox in PostgreSQL with one relay: time from commit to stored, and rows per second, beside few and many rows.

    make bench-outbox          # needs Debian's postgresql

Commits come one every 5 ms, with bodies of 200 bytes, to a relay in a process of its own; Redis' clock says when each
message was stored. Rows per second are those of one relay that finds all of them waiting. The many rows wait in another
topic, which is full, while commits are timed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, create_engine, text

from lisa_common.client.embedded.server import embedded_server
from lisa_manager import Admin
from lisa_producer import Producer
from lisa_producer.outbox import Outbox, Relay
from lisa_producer.outbox.table import METADATA
from support.databases import postgresql

_PAUSE_S = 0.005
_FEW = 20_000
_BARS = "bars: p99 <= 20 ms, >= 5,000 rows/s, both flat with many rows"
_FILL = text(
    "INSERT INTO lisa_outbox (topic, command, message_id, due, created_ms, options, body)"
    " SELECT :topic, 'send', 'row-' || n, '+3600000', extract(epoch FROM now()) * 1000, '{}', repeat('x', 200)::bytea"
    " FROM generate_series(1, :rows) n"
)


def _fill(engine: Engine, topic: str, rows: int) -> None:
    with engine.begin() as connection:
        connection.execute(_FILL, {"topic": topic, "rows": rows})


@contextmanager
def _relay(engine: Engine, url: str) -> Iterator[None]:
    database = engine.url.render_as_string(hide_password=False)
    command = [
        str(Path(sys.executable).parent / "lisa-producer"),
        "outbox",
        "run",
        "--lease-s",
        "1",
        "--log-level",
        "error",
    ]
    environment = {**os.environ, "LISA_REDIS_URL": url, "DATABASE_URL": database}
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield
        finally:
            process.terminate()


def _commit_to_stored_ms(engine: Engine, url: str, topic: str, seconds: float) -> list[float]:
    """Returns the times from each commit until Redis had the message, sorted."""
    outbox, committed = Outbox(), dict[str, float]()
    with Producer(url) as producer, engine.connect() as connection:

        def commit() -> str:
            id = outbox.send(connection, topic, "x" * 200, delay=3600)
            connection.commit()
            return id

        first = commit()
        while not producer.find(topic, first):
            time.sleep(_PAUSE_S)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            id = commit()
            committed[id] = time.time() * 1000
            time.sleep(_PAUSE_S)
        stored = {}
        for id in committed:
            while not (found := producer.find(topic, id)) or not found.record:
                time.sleep(_PAUSE_S)
            stored[id] = found.record.sent_ms
    return sorted(stored[id] - at for id, at in committed.items())


def _rows_per_s(engine: Engine, url: str, seconds: float) -> float:
    with Relay(engine, url) as relay:
        # Until the lease of the relay before has ended; then its batches grow.
        while not relay.relay_once():
            time.sleep(_PAUSE_S)
        for _ in range(4):
            relay.relay_once()
        began, count = time.monotonic(), 0
        while time.monotonic() < began + seconds and (relayed := relay.relay_once()):
            count += relayed
        return count / (time.monotonic() - began)


def _print_times(what: str, times_ms: list[float]) -> None:
    p50, p99 = (times_ms[len(times_ms) * share // 100] for share in (50, 99))
    print(f"commit to stored, {what}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, of {len(times_ms)} commits")


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="the many rows (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement (default: %(default)g)")
    options = parser.parse_args()
    many, seconds = options.rows, options.seconds
    with postgresql() as database, tempfile.TemporaryDirectory() as directory, embedded_server(Path(directory)) as url:
        engine = create_engine(database.url)
        METADATA.create_all(engine)
        with _relay(engine, url):
            _print_times("no other rows", _commit_to_stored_ms(engine, url, "orders", seconds))
        _fill(engine, "orders", _FEW)
        print(f"one relay, {_FEW:,} rows waiting: {_rows_per_s(engine, url, seconds):,.0f} rows/s")
        _fill(engine, "full", many)
        with Admin(url) as admin:
            admin.create_topic("full", max_messages=1)
        with _relay(engine, url):
            _print_times(f"{many:,} rows of another topic", _commit_to_stored_ms(engine, url, "orders", seconds))
        with Admin(url) as admin:
            admin.set_policy("full", max_messages=None)
        print(f"one relay, {many:,} rows waiting: {_rows_per_s(engine, url, seconds):,.0f} rows/s")
        engine.dispose()
    print(_BARS)


if __name__ == "__main__":
    main()
