"""A transactional outbox: a message is sent if, and only if, the caller's database transaction commits.

outbox = Outbox()
with engine.begin() as connection:
    connection.execute(insert(orders).values(id=7))
    outbox.send(connection, "orders", {"order": 7}, delay=900, id="order-7")

Relays move the rows to Lisa: `lisa-producer outbox run --database URL`, or `Relay`.
"""

try:
    import sqlalchemy as _  # noqa: F401 - the extra
except ModuleNotFoundError:
    from lisa_common.observing.metrics import MissingExtra

    raise MissingExtra("the outbox", "lisa-producer", "outbox") from None

from lisa_producer.outbox.relay import Relay
from lisa_producer.outbox.table import ddl, outbox_tables
from lisa_producer.outbox.writer import Outbox

__all__ = ["Outbox", "Relay", "ddl", "outbox_tables"]
