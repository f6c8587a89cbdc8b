"""What type checkers say of handlers. Checked by mypy, never run.

An `ignore` states that mypy finds this error there: one that it does not find is an error by itself.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from lisa_consumer import Delivery, Worker

__all__ = ["handlers", "schedules_and_hooks", "unfit_handlers", "unfit_schedules_and_hooks"]


@dataclass
class _Order:
    number: int


def handlers(worker: Worker) -> None:
    """A handler of the type that `body` names, or of any."""

    @worker.on("orders", body=_Order)
    async def number(delivery: Delivery[_Order]) -> int:
        return delivery.value.number

    @worker.on("orders", body=_Order)
    def untyped_value(delivery: Delivery) -> None: ...

    @worker.on("orders", body=int | None)
    def union(delivery: Delivery[int | None]) -> None: ...

    @worker.on("orders", body=_Order, batch=100, within=1)
    async def batch(deliveries: list[Delivery[_Order]]) -> None: ...

    @worker.on("orders", batch=100)
    def plain_batch(deliveries: Sequence[Delivery]) -> int:
        return len(deliveries)


def schedules_and_hooks(worker: Worker) -> None:
    """Decorators keep typed functions typed."""

    @worker.every(60, body={"kind": "sales"}, overlap="skip", timeout=30)
    async def refresh(delivery: Delivery) -> None: ...

    @worker.cron("30 2 * * *", tz="Europe/Berlin")
    def nightly(delivery: Delivery, tries: int = 1) -> str:
        return delivery.text() * tries

    @worker.use
    async def timed(delivery: Delivery, call_next: Callable[[Delivery], Awaitable[object]]) -> None:
        await call_next(delivery)

    @worker.on_start
    async def connect() -> None: ...

    @worker.on_stop
    def disconnect() -> int:
        return 0


def unfit_handlers(worker: Worker) -> None:
    """What would fail at run time, or find another value than it says."""

    @worker.on("orders", body=_Order)  # type: ignore[arg-type]
    async def other_value(delivery: Delivery[int]) -> None: ...

    @worker.on("orders", body=_Order, batch=100)  # type: ignore[arg-type]
    def other_values(deliveries: list[Delivery[int]]) -> None: ...

    @worker.on("orders", body=_Order)  # type: ignore[arg-type]
    def list_of_one(deliveries: list[Delivery[_Order]]) -> None: ...

    @worker.on("orders", batch=100)  # type: ignore[type-var]
    def one_of_list(delivery: Delivery) -> None: ...

    @worker.on("orders")  # type: ignore[type-var]
    def without_delivery() -> None: ...


def unfit_schedules_and_hooks(worker: Worker) -> None:
    """What would fail when the module is imported."""

    @worker.every(60)  # type: ignore[type-var]
    async def tick_without_delivery() -> None: ...

    @worker.cron("30 2 * * *")  # type: ignore[type-var]
    def two_parameters(delivery: Delivery, tries: int) -> None: ...

    @worker.every  # type: ignore[arg-type]
    def without_period(delivery: Delivery) -> None: ...

    @worker.use  # type: ignore[type-var]
    def without_next(delivery: Delivery) -> None: ...

    @worker.on_start  # type: ignore[type-var]
    def with_delivery(delivery: Delivery) -> None: ...
