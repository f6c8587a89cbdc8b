"""Pictures by a real Chromium: of the dashboard's pages, and of what a terminal shows."""

import io
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from demo.processes import DemoFailed

__all__ = ["chromium", "draw_terminal", "take_pages"]

_WIDTH, _HEIGHT = 1280, 480
_DOWN_TO = {"garbage": 900, "refused": 260}
_MOST = 1_400
"""In pixels; what is longer is cut there."""
_PATIENCE_MS = 300_000
_COLORS = 256
"""A palette keeps files small; with fewer colors, greys would turn pink."""

_PAGES = {
    "topics": "",
    "topic": "topic?topic=orders",
    "garbage": "messages?topic=orders&state=garbage",
    "messages": "messages?topic=orders&state=garbage&error=bank&release=1.4.2",
    "message": "message?topic=orders&id=order-7000",
    "lateness": "lateness",
    "capacity": "capacity",
    "workers": "workers",
    "schedules": "schedules",
    "schedule": "schedule?topic=reports&name=nightly-report",
    "server": "server",
    "activity": "activity",
}
_DARK = {"topic-dark": "topic?topic=orders"}


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    program = shutil.which("chromium")
    if program is None:
        raise DemoFailed("pictures need chromium")
    expect.set_options(timeout=_PATIENCE_MS)
    with sync_playwright() as playwright:
        # Containers run programs as root, which Chromium's sandbox does not allow.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=_PATIENCE_MS)
        yield browser
        browser.close()


def take_pages(browser: Browser, url: str, directory: Path) -> None:
    """Takes each page of the dashboard at a URL."""
    for scheme, pages in (("light", _PAGES), ("dark", _DARK)):
        page = browser.new_page(
            viewport={"width": _WIDTH, "height": _HEIGHT},
            color_scheme="dark" if scheme == "dark" else "light",
            locale="en-GB",
            timezone_id="UTC",
        )
        page.set_default_timeout(_PATIENCE_MS)
        for name, path in pages.items():
            page.goto(f"{url}/dashboard/{path}")
            if name.startswith("topic"):
                _wait_for_rates(page, name)
            _save(page.screenshot(full_page=True), directory / f"{name}.png")
        if scheme == "light":
            _look_closer(page, f"{url}/dashboard/topic?topic=orders", directory)
        page.close()


def _wait_for_rates(page: Page, name: str) -> None:
    """Rates come with the second sample, and charts with a script."""
    if name == "topics":
        expect(page.get_by_role("row", name="reminders")).not_to_contain_text("-")
    else:
        expect(page.locator(".u-wrap canvas")).to_have_count(3)
        expect(page.locator("#part")).not_to_contain_text("in -")


def _look_closer(page: Page, url: str, directory: Path) -> None:
    """Takes an hour of a backlog, and a policy that is refused."""
    page.goto(url)
    page.get_by_role("link", name="next hour").click()
    _save(page.locator("#backlog").screenshot(), directory / "backlog.png")
    page.get_by_label("visibility", exact=True).fill("30000")
    page.get_by_role("button", name="Save the policy").click()
    expect(page.get_by_role("alert")).to_be_visible()
    policy = page.locator("section", has=page.locator("#policy-title"))
    _save(policy.screenshot(), directory / "refused.png")


def draw_terminal(browser: Browser, svg: str, path: Path) -> None:
    """Takes a picture of a terminal from its SVG."""
    width, height = map(float, re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0])
    page = browser.new_page(viewport={"width": int(width) + 1, "height": int(height) + 1})
    page.set_content(f'<body style="margin:0;background:#fff">{svg}</body>')
    _save(page.locator("svg").first.screenshot(), path)
    page.close()


def _save(content: bytes, path: Path) -> None:
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(picture.height, _DOWN_TO.get(path.stem, _MOST))))
    # Of few pixels, too: a state has its color.
    picture = picture.quantize(_COLORS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
