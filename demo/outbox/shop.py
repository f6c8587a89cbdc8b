"""The shop: each order and each payment is one transaction, with its messages."""

from sqlalchemy import Boolean, Column, Engine, Integer, MetaData, Table, insert, update

from lisa_producer.outbox import Outbox, outbox_tables

__all__ = ["DUE_S", "METADATA", "ORDERS", "CardDeclined", "SoldOut", "pay", "place"]

DUE_S = 10
"""An order that is unpaid for this long is closed."""

METADATA = MetaData()
ORDERS = Table("orders", METADATA, Column("id", Integer, primary_key=True), Column("paid", Boolean, nullable=False))
outbox_tables(METADATA)
_OUTBOX = Outbox()


class SoldOut(Exception):
    """Rolls an order back."""


class CardDeclined(Exception):
    """Rolls a payment back."""


def place(engine: Engine, order: int, *, sold_out: bool) -> None:
    """Places an order, to be closed unless it is paid. Raises SoldOut."""
    with engine.begin() as connection:
        connection.execute(insert(ORDERS).values(id=order, paid=False))
        _OUTBOX.send(connection, "orders", {"order": order}, delay=DUE_S, id=f"order-{order}")
        if sold_out:
            raise SoldOut


def pay(engine: Engine, order: int, *, declined: bool) -> None:
    """Pays an order: it is not closed, and a receipt is sent. Raises CardDeclined."""
    with engine.begin() as connection:
        connection.execute(update(ORDERS).where(ORDERS.c.id == order).values(paid=True))
        _OUTBOX.cancel(connection, "orders", f"order-{order}")
        _OUTBOX.send(connection, "receipts", {"order": order})
        if declined:
            raise CardDeclined
