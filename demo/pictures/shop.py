"""What the shop of the pictures holds: messages in every state, schedules, and the samples of a day."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lisa_common.client.connection import Connection
from lisa_common.model.keys import history_key
from lisa_common.protocol.call import command
from lisa_common.protocol.consuming import server_time
from lisa_consumer import Consumer, ConsumerSettings
from lisa_manager import Activity, Admin
from lisa_producer import Message, Producer, ProducerSettings

__all__ = ["add_reminders", "add_traffic", "create_topics", "wait_for_traffic"]

_HOUR_S = 3_600
_MINUTE_MS = 60_000
_MANAGERS_AWAY, _WORKERS_AWAY = (8, 9), (4, 6)
"""From and until so many hours ago, the later time first."""
_STEP_MINUTES = 5
_DAY_HOURS = 24

_NO_PRICE, _NO_NUMBER, _AWAY, _RETRIED, _SLOW, _EARLIER = 9, 3, 4, 6, 3, 5
"""Orders by what becomes of them; those of `_EARLIER` died with the release before."""
_WAITING, _REMINDERS, _CAMPAIGN, _EXPORTS = 1_900, 600, 420, 25
_WITHIN_S = 300

_TOPICS: Mapping[str, Mapping[str, Any]] = {
    "orders": {"backoff_base_ms": 20 * _MINUTE_MS, "backoff_cap_ms": 60 * _MINUTE_MS},
    "reminders": {"rate": "50/s"},
    "campaign": {"paused": True},
    "exports": {},
    "reports": {},
}


def create_topics(settings: ProducerSettings) -> None:
    """Creates the topics, with the samples of the day before: no manager runs yet."""
    with Connection.of(settings, name="pictures") as connection, Admin(settings=settings) as admin:
        for topic, policy in _TOPICS.items():
            admin.create_topic(topic, **policy)
        last = connection.call(server_time()) // _MINUTE_MS * _MINUTE_MS - _MINUTE_MS
        for topic in _TOPICS:
            key = history_key(settings.prefix, topic)
            for ago, content in _samples(topic):
                connection.call(command("XADD", key, f"{last - ago * _MINUTE_MS}-0", "s", content))


def _samples(topic: str) -> Iterator[tuple[int, str]]:
    """Samples and how many minutes ago they were; workers of reminders were away in the night, and managers once."""
    most = {"orders": _WAITING, "reminders": _REMINDERS, "campaign": _CAMPAIGN}.get(topic, 2)
    added = 0
    for ago in range(_DAY_HOURS * 60, -1, -_STEP_MINUTES):
        hour = ago / 60
        # Most is bought in the evening, and now is one.
        busy = 0.45 + 0.55 * math.cos(hour / _DAY_HOURS * math.tau) ** 2
        (back, gone), (managers_back, managers_gone) = _WORKERS_AWAY, _MANAGERS_AWAY
        late_ms = round((gone - hour) * _HOUR_S * 1_000) if topic == "reminders" and back < hour < gone else 0
        step = (46 if managers_back < hour < managers_gone else 6) + round(3 * busy)
        count = round(30 * busy) if topic in {"orders", "reminders"} else 1
        added += count * _STEP_MINUTES * 60 // 10
        ready = late_ms // 20_000
        sizes = (round(most * busy), ready, 2, round(6 * busy), round(20 * busy) if topic == "orders" else 0)
        counts = (*sizes, added, added - ready, late_ms, *[0] * 9)
        yield ago, " ".join(map(str, (1, *counts, f"{step}:{count * 9}", f"{step + 8}:{count}")))


def add_traffic(settings: ProducerSettings) -> None:
    """Sends what the pictures show; workers and a manager then make of it what they will."""
    with Producer(settings=settings) as producer:
        producer.send_many("orders", _orders(7_000, _EARLIER, bank="away"))
        _reject_with_release(settings, "1.4.1")
        producer.send_many("orders", list(_failing()))
        shares = [n / _WAITING for n in range(_WAITING)]
        spread = [share + 0.12 * math.sin(math.tau * share) for share in shares]
        producer.send_many("orders", _orders(20_000, _WAITING, delays=[300 + 8 * _HOUR_S * part for part in spread]))
        producer.send_many("campaign", [Message(body={"customer": n}, delay=n % 40) for n in range(_CAMPAIGN)])
        producer.send_many("exports", [Message(body={"month": n}) for n in range(_EXPORTS)])
    with Admin(settings=settings) as admin:
        _add_schedules(admin)
        admin.note_activity(Activity("erna", "replay", "orders", 3, "error=bank"))
        admin.note_activity(Activity("olaf", "pause", "campaign", 1))


def add_reminders(settings: ProducerSettings) -> None:
    """Sends what is due while pictures are taken, so that there are rates."""
    with Producer(settings=settings) as producer:
        reminders = [Message(body={"cart": n}, delay=_WITHIN_S * n / _REMINDERS) for n in range(_REMINDERS)]
        producer.send_many("reminders", reminders)


def _orders(
    first: int, count: int, *, delays: Sequence[float] = (), without: str = "", **more: object
) -> list[Message]:
    def body(number: int) -> dict[str, object]:
        whole = {"number": number, "customer": 100 + number % 37, "price": 5 * (number % 90) + 4.9, **more}
        return {name: value for name, value in whole.items() if name != without}

    return [
        Message(
            body=body(first + n),
            id=f"order-{first + n}",
            headers={"shop": ("berlin", "lyon", "porto")[n % 3]},
            delay=delays[n] if delays else 0,
        )
        for n in range(count)
    ]


def _failing() -> Iterator[Message]:
    """Orders that die or hang in the worker's handler."""
    for at, (count, retries, more) in enumerate(
        (
            (_NO_PRICE, 0, {"without": "price"}),
            (_NO_NUMBER, 0, {"without": "number"}),
            (_AWAY, 0, {"bank": "away"}),
            (_RETRIED, None, {"bank": "away"}),
            (_SLOW, None, {"bank": "slow"}),
        )
    ):
        for order in _orders(8_000 + 100 * at, count, **more):  # type: ignore[arg-type]
            order.max_retries = retries
            yield order


def _reject_with_release(settings: ProducerSettings, release: str) -> None:
    reading = ConsumerSettings(redis_url=settings.redis_url, prefix=settings.prefix, release=release)
    with Consumer("orders", "billing", settings=reading) as consumer:
        left = _EARLIER
        while left:
            deliveries = consumer.read(left, wait=10)
            consumer.reject(*deliveries, error=ConnectionError("bank.internal:443 refused the connection"))
            left -= len(deliveries)


def _add_schedules(admin: Admin) -> None:
    admin.set_schedule(
        "reports", "nightly-report", cron="30 2 * * MON-FRI", tz="America/New_York", body={"for": "sales"}
    )
    admin.set_schedule("reminders", "forgotten-carts", every=900, jitter=30, body={})
    admin.set_schedule("reports", "stock-lists", cron="0 */6 * * *", overlap="skip")
    admin.set_schedule("reports", "old-prices", cron="@daily")
    admin.pause_schedule("reports", "old-prices")


def wait_for_traffic(settings: ProducerSettings) -> None:
    """Waits until each order is where the pictures show it."""
    wanted = (_EARLIER + _NO_PRICE + _NO_NUMBER + _AWAY, _RETRIED, _SLOW)
    with Admin(settings=settings) as admin:
        while True:
            (orders,) = admin.status("orders")
            if (orders.garbage, orders.retry, orders.delivered) == wanted:
                return
            time.sleep(0.2)
