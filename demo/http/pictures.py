"""Pictures of the dashboard for its docs, taken by a real Chromium while the day runs.

`python -m demo.http --pictures docs/dashboard` needs Debian's `chromium`, and `playwright` and `pillow` of the
development environment.
"""

import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from demo.processes import DemoFailed
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
_ERRORS = ("KeyError: 'flight'", "TimeoutError: belt 7 did not answer", "ValueError: tag must have 10 digits")


def take_pictures(url: str, directory: Path, settings: ProducerSettings) -> None:
    """Adds what the day lacks, then takes a picture of each page of the dashboard at a URL."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise DemoFailed("pictures need chromium")
    _add_bags(settings)
    _add_schedules(settings)
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
            context.close()
        browser.close()


_PAGES = {
    "topics": "",
    "topic": "topic?topic=JFK",
    "messages": "messages?topic=baggage&state=garbage&error=belt",
    "message": "message?topic=baggage&id=bag-0000000004",
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
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
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


def _add_schedules(settings: ProducerSettings) -> None:
    with Admin(settings=settings) as admin:
        admin.set_schedule("reports", "nightly-report", cron="30 2 * * MON-FRI", tz="America/New_York", body={})
        admin.set_schedule("weather", "weather", every=900, jitter=30)
        admin.set_schedule("reports", "crew-lists", cron="0 */6 * * *", overlap="skip")
        admin.set_schedule("reports", "old-fares", cron="@daily")
        admin.pause_schedule("reports", "old-fares")
        admin.note_activity(Activity("olaf", "pause schedule", "reports", 1, "old-fares"))
        admin.note_activity(Activity("erna", "replay", "baggage", 3, "error=belt"))
