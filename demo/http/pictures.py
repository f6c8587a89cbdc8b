"""Pictures of the dashboard for its docs, taken by a real Chromium while the day runs.

`python -m demo.http --pictures docs/dashboard` needs Debian's `chromium`, and `playwright` and `pillow` of the
development environment.
"""

import io
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from demo.processes import DemoFailed
from lisa_common.client.connection import Connection
from lisa_common.model.keys import history_key
from lisa_common.protocol.call import command
from lisa_common.protocol.consuming import server_time
from lisa_consumer import Consumer, ConsumerSettings
from lisa_manager import Activity, Admin
from lisa_producer import Message, Producer, ProducerSettings

__all__ = ["take_pictures"]

_WIDTH, _HEIGHT = 1280, 480
"""In pixels; longer pages are taken whole."""
_COLORS = 64
"""Pages have few colors, so that a palette keeps files small."""

_BAGS = 60
_LOST = 12
_AWAY = 3
"""The hour in which no manager ran."""

_ERRORS = ("KeyError: 'flight'", "TimeoutError: belt 7 did not answer", "ValueError: tag must have 10 digits")


def take_pictures(url: str, directory: Path, settings: ProducerSettings) -> None:
    """Adds what the day lacks, then takes a picture of each page of the dashboard at a URL."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise DemoFailed("pictures need chromium")
    _add_bags(settings)
    _add_schedules(settings)
    _add_late_hours(settings)
    directory.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme, pages in (("light", _PAGES), ("dark", _DARK)):
            context = browser.new_context(
                viewport={"width": _WIDTH, "height": _HEIGHT}, color_scheme="dark" if scheme == "dark" else "light"
            )
            page = context.new_page()
            for name, path in pages.items():
                _take(page, f"{url}/dashboard/{path}", directory / f"{name}.png")
            if scheme == "light":
                _look_closer(page, f"{url}/dashboard/topic?topic=baggage", directory)
            context.close()
        browser.close()


_PAGES = {
    "topics": "",
    "topic": "topic?topic=JFK",
    "messages": "messages?topic=baggage&state=garbage&error=belt",
    "message": "message?topic=baggage&id=bag-0000000004",
    "lateness": "lateness",
    "capacity": "capacity",
    "workers": "workers",
    "schedules": "schedules",
    "schedule": "schedule?topic=reports&name=nightly-report",
    "server": "server",
    "activity": "activity",
}
_DARK = {"topic-dark": "topic?topic=JFK"}


def _take(page: Page, url: str, path: Path) -> None:
    page.goto(url)
    if "topic?" in url:
        expect(page.locator(".u-wrap canvas")).to_have_count(3, timeout=30_000)
    # Rates come with the second sample.
    page.wait_for_timeout(3_500)
    _save(page.screenshot(full_page=True), path)


def _look_closer(page: Page, url: str, directory: Path) -> None:
    """Takes an hour of a backlog, and a policy that is refused."""
    page.goto(url)
    page.get_by_role("link", name="next hour").click()
    _save(page.locator("#backlog").screenshot(), directory / "backlog.png")
    page.get_by_label("visibility", exact=True).fill("30000")
    page.get_by_role("button", name="Save the policy").click()
    expect(page.get_by_role("alert")).to_be_visible()
    _save(page.locator("section", has=page.locator("#policy-title")).screenshot(), directory / "refused.png")


def _save(content: bytes, path: Path) -> None:
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    picture.quantize(_COLORS, dither=Image.Dither.NONE).save(path, optimize=True)


def _add_bags(settings: ProducerSettings) -> None:
    """A topic with dead letters: bags that were not brought to their flights."""
    with Producer(settings=settings) as producer:
        bags = [
            Message(
                body={"bag": f"{number:010}", "flight": f"UA {300 + number}", "belt": number % 9},
                id=f"bag-{number:010}",
                headers={"airport": ("EWR", "JFK", "LGA")[number % 3]},
                delay=0 if number < _LOST else 240 * number,
            )
            for number in range(_BAGS)
        ]
        producer.send_many("baggage", bags)
    reading = ConsumerSettings(redis_url=settings.redis_url, prefix=settings.prefix)
    with Consumer("baggage", "belts", settings=reading) as consumer:
        left = _LOST
        while left:
            deliveries = consumer.read(left, wait=10)
            for number, delivery in enumerate(deliveries):
                consumer.reject(delivery, error=_ERRORS[number % len(_ERRORS)])
            left -= len(deliveries)


def _add_late_hours(settings: ProducerSettings) -> None:
    """Topics whose samples tell of a night: workers of one were away for hours, and managers were for one."""
    hour_ms = 3_600_000
    nights: Mapping[str, Callable[[int], tuple[int, int]]] = {
        "crew-calls": lambda hour: (4 + hour % 3, 0),
        "gate-changes": lambda hour: (28 if hour == _AWAY else 6, 900_000 * (hour - 4) if hour in range(5, 9) else 0),
        "meals": lambda hour: (52 if hour == _AWAY else 9, 40_000 if hour == _AWAY else 0),
    }
    with Connection.of(settings, name="demo") as connection, Admin(settings=settings) as admin:
        first = connection.call(server_time()) // hour_ms * hour_ms - 11 * hour_ms
        for topic, night in nights.items():
            for at in range(66):
                step, late_ms = night(at // 6)
                sample = f"1 400 0 0 0 0 {at} {at} {late_ms} 400 0 0 0 0 0 0 0 0 {step}:90 {step + 9}:10"
                entry = f"{first + at * hour_ms // 6 + 60_000}-0"
                connection.call(command("XADD", history_key(settings.prefix, topic), entry, "s", sample))
            # From now on, managers add to it.
            admin.create_topic(topic)


def _add_schedules(settings: ProducerSettings) -> None:
    with Admin(settings=settings) as admin:
        admin.set_schedule("reports", "nightly-report", cron="30 2 * * MON-FRI", tz="America/New_York", body={})
        admin.set_schedule("weather", "weather", every=900, jitter=30)
        admin.set_schedule("reports", "crew-lists", cron="0 */6 * * *", overlap="skip")
        admin.set_schedule("reports", "old-fares", cron="@daily")
        admin.pause_schedule("reports", "old-fares")
        admin.note_activity(Activity("olaf", "pause schedule", "reports", 1, "old-fares"))
        admin.note_activity(Activity("erna", "replay", "baggage", 3, "error=belt"))
