"""The pages in a real Chromium: live parts, charts, no error in the console, no request to another host, accessibility.

It needs Debian's `chromium`. What can be checked without a browser is in the other files.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import combinations
from typing import Any
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from lisa_gateway.access import hash_of, new_token
from lisa_manager import Admin
from lisa_producer import Message, Producer
from support.gateways import Gateways
from support.prefix_proxy import below_prefix
from support.waiting import wait_until

CHROMIUM = shutil.which("chromium")

pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")]

Kill = Callable[..., None]

_WIDEST = 3_840


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser without a window."""
    with sync_playwright() as playwright:
        # Containers run tests as root, which Chromium's sandbox does not allow.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A page, and what it did that it must not do."""

    def __init__(self, context: BrowserContext, base: str) -> None:
        self.base = f"{base}/dashboard/"
        self.page: Page = context.new_page()
        self.problems: list[str] = []
        self.page.on("console", lambda message: self._note(message.type == "error", f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("request", lambda request: self._note(not request.url.startswith(base), f"asked {request.url}"))

    def _note(self, wrong: bool, text: str) -> None:  # noqa: FBT001 - one use
        if wrong:
            self.problems.append(text)

    @contextmanager
    def refused(self) -> Iterator[None]:
        """A form is refused: Chromium notes the status of the answer."""
        yield
        assert "status of 400" in self.problems.pop()

    def open(self, path: str = "") -> Page:
        """Opens a page of the dashboard."""
        answer = self.page.goto(self.base + path)
        assert answer
        assert answer.status == 200, path
        return self.page


@pytest.fixture
def watched(chromium: Browser, base_url: str) -> Iterator[Watched]:
    """A page of a gateway without grants; fails if it had a problem."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    watching = Watched(context, base_url)
    yield watching
    context.close()
    assert watching.problems == []


@pytest.fixture
def filled(producer: Producer, admin: Admin, topic: str, kill: Kill) -> str:
    """A topic with messages in several states, and a schedule."""
    producer.send_many(topic, [Message(body={"n": n}, id=f"dead-{n}", headers={"kind": "x"}) for n in range(3)])
    kill(topic, 3, error="<b>no such order</b>")
    producer.send_many(topic, [Message(body="x", id=f"w{n}", delay=60 * 4**n) for n in range(8)])
    admin.set_schedule(topic, f"nightly-{topic}", cron="30 2 * * *", body={"id": 7})
    return topic


def _paths(topic: str) -> list[str]:
    return [
        *(
            "",
            f"topic?topic={topic}",
            f"topic?topic={topic}&due_from=1000000000000&due_to=2000000000000",
            "lateness",
            "capacity",
            "server",
            "activity",
            "schedules",
            "workers",
            f"schedule?topic={topic}&name=nightly-{topic}",
        ),
        *(f"messages?topic={topic}&state=waiting", f"messages?topic={topic}&state=garbage&header=kind"),
        *(f"message?topic={topic}&id=dead-1", f"message?topic={topic}&id=w1&view=hex"),
        *(f"confirm?what=replay&topic={topic}&state=garbage", f"confirm?what=cancel&topic={topic}&id=w1&id_only=1"),
    ]


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light"), (_WIDEST, "dark")])
def test_every_page_at_every_width(chromium: Browser, base_url: str, filled: str, width: int, scheme: Any) -> None:
    """Nothing is wider than the screen, nothing fails, and axe finds nothing in either scheme."""
    context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    watching = Watched(context, base_url)
    for path in _paths(filled):
        page = watching.open(path)
        page.wait_for_load_state("load")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
        # Most of the time is axe's, and what it finds depends on the scheme rather than the width.
        found = Axe().run(page).response["violations"] if width < _WIDEST else []
        assert [(each["id"], each["nodes"][0]["html"]) for each in found] == [], path
    context.close()
    assert watching.problems == []


def test_live_parts_charts_and_focus(watched: Watched, producer: Producer, filled: str) -> None:
    """A send is seen without a reload and without losing the focus."""
    page = watched.open(f"topic?topic={filled}")
    # With the next tick of the schedule.
    expect(page.locator("#size-waiting b")).to_have_text("9")
    expect(page.locator(".u-wrap canvas")).to_have_count(3, timeout=20_000)
    page.locator("#size-waiting").focus()
    producer.send(filled, "x", delay=3_600)
    expect(page.locator("#size-waiting b")).to_have_text("10", timeout=10_000)
    assert page.evaluate("document.activeElement.id") == "size-waiting"
    page = watched.open(f"?q={filled}")
    producer.send(filled, "x", delay=3_600)
    expect(page.get_by_role("link", name=f"11 waiting in {filled}")).to_be_visible(timeout=10_000)


_RECORD = """
window.drawn = new Map();
const { clearRect, fillText } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.clearRect = function (...place) {
  drawn.set(this.canvas, []);
  return clearRect.apply(this, place);
};
CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
  const place = this.getTransform().transformPoint(new DOMPoint(x, y));
  const width = this.measureText(text).width;
  const left = place.x - ({ center: width / 2, right: width }[this.textAlign] || 0);
  drawn.get(this.canvas)?.push({ text, left, right: left + width, top: place.y });
  return fillText.call(this, text, x, y, ...rest);
};
"""
"""Notes what stands written in each chart, and where."""


def _written(page: Page) -> Any:
    """The texts in each of the charts; the pages forbid what Playwright waits with."""
    return page.evaluate("[...document.querySelectorAll('.u-wrap canvas')].map((each) => drawn.get(each) || [])")


@pytest.mark.parametrize(
    "reader",
    [
        (360, "en-US", r"^\d\d:\d\d(:\d\d)? [AP]M$"),
        (1280, "en-US", r"^\d\d:\d\d(:\d\d)? [AP]M$"),
        (360, "de-DE", r"^\d\d:\d\d(:\d\d)?$"),
    ],
)
def test_charts_have_the_zone_of_the_page_and_the_readers_clock(
    chromium: Browser, base_url: str, producer: Producer, filled: str, reader: tuple[int, str, str]
) -> None:
    """Wherever the reader is; and no label of an axis lies on another."""
    width, locale, clock = reader
    producer.send_many(filled, [Message(body="x", delay=3_600) for _ in range(20_000)])
    context = chromium.new_context(locale=locale, timezone_id="Asia/Kolkata", viewport={"width": width, "height": 900})
    watching = Watched(context, base_url)
    watching.page.add_init_script(_RECORD)
    page = watching.open(f"topic?topic={filled}&hours=1")
    expect(page.locator(".u-wrap canvas")).to_have_count(3, timeout=20_000)
    # A chart of a few seconds may have no time to label yet.
    charts = wait_until(
        lambda: (texts := _written(page)) and re.search(r"\d\d:\d\d.*20[.,]000", str(texts)) and texts, 60
    )
    drawn = [each for chart in charts for each in chart]
    times = [each["text"] for each in drawn if ":" in each["text"]]
    assert times
    assert [each for each in times if not re.match(clock, each.replace("\u202f", " "))] == []
    # UTC: half an hour apart from Kolkata.
    now = datetime.now(UTC)
    minutes = {int(each.split(":")[1][:2]) for each in times}
    assert all((now.minute - minute) % 60 < 20 for minute in minutes), (minutes, now)
    for chart in charts:
        for one, other in combinations(chart, 2):
            apart = one["right"] <= other["left"] or other["right"] <= one["left"]
            assert apart or abs(one["top"] - other["top"]) >= 10, (one, other)
    assert min(each["left"] for each in drawn) >= 0
    context.close()
    assert watching.problems == []


def test_the_backlog_is_looked_at_closer_and_closer(watched: Watched, filled: str) -> None:
    """By choosing bars, with the keyboard, down to a single message; and back."""
    page = watched.open(f"topic?topic={filled}")
    bars = page.get_by_role("link", name="look closer")
    # The schedule's tick may be among them.
    before = sum(int(each.split(" ")[0]) for each in bars.evaluate_all("all => all.map((e) => e.ariaLabel)"))
    assert before == 9
    for _ in range(3):
        caption = page.locator(".due figcaption").inner_text()
        bars.last.press("Enter")
        expect(page.locator(".due figcaption")).not_to_have_text(caption)
        assert sum(int(each.split(" ")[0]) for each in bars.evaluate_all("all => all.map((e) => e.ariaLabel)")) >= 1
    expect(page.locator("#backlog")).to_contain_text("earlier.")
    page.get_by_role("link", name="wider").click()
    page.get_by_role("link", name="all", exact=True).click()
    expect(bars).not_to_have_count(0)
    assert page.locator("#backlog").get_by_text("earlier.").count() == 0


def test_a_refused_policy_is_mended_where_it_was_typed(watched: Watched, admin: Admin, filled: str) -> None:
    """The wrong field has the focus, and its reason beside it; the other fields have what was typed."""
    page = watched.open(f"topic?topic={filled}")
    page.get_by_label("visibility", exact=True).fill("30000")
    page.get_by_label("max_retries").fill("4")
    with watched.refused():
        page.get_by_role("button", name="Save the policy").click()
        field = page.get_by_label("visibility", exact=True)
        expect(field).to_be_focused()
    expect(field).to_have_value("30000")
    expect(page.get_by_label("max_retries")).to_have_value("4")
    expect(page.get_by_role("alert")).to_contain_text("30000ms or 30000s (8h20m)")
    assert [each["id"] for each in Axe().run(page).response["violations"]] == []
    field.fill("45s")
    field.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("policy changed: visibility_ms, max_retries")
    assert (admin.policy(filled).visibility_ms, admin.policy(filled).max_retries) == (45_000, 4)


def test_an_operator_works_with_the_keyboard(watched: Watched, admin: Admin, filled: str) -> None:
    """Finds a message, edits and replays it, purges the rest, and sees it in Activity."""
    page = watched.open(f"topic?topic={filled}")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.get_by_role("searchbox").fill("dead-1")
    page.keyboard.press("Enter")
    page.wait_for_url("**/message?**")
    page.get_by_role("textbox", name="Body").fill('{"n": "mended"}')
    page.get_by_role("button", name="Send with this body").press("Enter")
    expect(page.get_by_role("status")).to_contain_text("sent with the edited body")
    assert admin.find(filled, "dead-1") is None
    watched.open(f"messages?topic={filled}&state=garbage")
    page.get_by_role("link", name="purge …").press("Enter")
    page.get_by_role("button", name="purge 2").press("Enter")
    expect(page.locator("#operations")).to_contain_text("done", timeout=10_000)
    assert admin.count_garbage(filled) == 0
    watched.open(f"schedule?topic={filled}&name=nightly-{filled}")
    page.get_by_role("button", name="Run now").press("Enter")
    expect(page.get_by_role("status")).to_contain_text("sent as")
    watched.open("activity")
    for text in ("replay edited", "purge all", "run now"):
        expect(page.get_by_role("region", name="Who did what")).to_contain_text(text)


def test_rows_are_sorted_and_selected(watched: Watched, admin: Admin, filled: str) -> None:
    """By clicks on a heading, up and down; by a box for all of them."""
    page = watched.open(f"messages?topic={filled}&state=waiting")
    rows = page.locator("table.messages tbody tr")
    heading = page.get_by_role("button", name="id", exact=True)
    heading.click()
    expect(rows.last).to_contain_text("w7")
    heading.click()
    expect(rows.first).to_contain_text("w7")
    watched.open(f"messages?topic={filled}&state=garbage")
    page.get_by_label("Select dead-1").check()
    page.get_by_role("button", name="replay selected").click()
    expect(page.get_by_role("status")).to_contain_text("replay: 1 done")
    assert admin.count_garbage(filled) == 2
    page.get_by_label("Select all rows").check()
    page.get_by_role("button", name="purge selected …").click()
    page.get_by_role("button", name="purge 2").click()
    expect(page.get_by_role("status")).to_contain_text("purge: 2 done")
    assert admin.count_garbage(filled) == 0


def test_deliveries_are_paused_and_resumed(watched: Watched, admin: Admin, producer: Producer, topic: str) -> None:
    """In the live list, whose rows may change places, the focus stays on the button of the same topic."""
    names = [f"{topic}-{name}" for name in ("a", "b")]
    for name in names:
        producer.send(name, "x", delay=3_600)
    page = watched.open(f"?q={topic}&order=waiting")
    second = page.get_by_role("button", name=f"Pause {names[1]}")
    expect(second).to_be_visible(timeout=20_000)
    second.focus()
    producer.send_many(names[1], [Message(body="x", delay=3_600)] * 2)
    expect(page.locator("tbody tr").first).to_contain_text(names[1], timeout=10_000)
    assert page.evaluate("document.activeElement.ariaLabel") == f"Pause {names[1]}"
    second.press("Enter")
    expect(page.get_by_role("status")).to_contain_text(f"{names[1]} is paused")
    assert [admin.policy(name).paused for name in names] == [False, True]
    page = watched.open(f"topic?topic={names[1]}")
    expect(page.get_by_text("Deliveries are paused.")).to_be_visible()
    page.get_by_role("button", name="Resume deliveries").click()
    expect(page.get_by_role("status")).to_contain_text(f"{names[1]} is resumed")
    expect(page.get_by_role("button", name="Pause deliveries")).to_be_visible()
    assert not admin.policy(names[1]).paused
    watched.open("activity")
    expect(page.get_by_role("region", name="Who did what")).to_contain_text(names[1])


def test_below_a_prefix_of_a_proxy(chromium: Browser, base_url: str, producer: Producer, filled: str) -> None:
    """Every page, live parts and forms; no request leaves the prefix."""
    with below_prefix(base_url, "/tools/queue") as url:
        context = chromium.new_context()
        watching = Watched(context, url)
        for path in _paths(filled):
            watching.open(path)
        page = watching.open(f"topic?topic={filled}")
        expect(page.locator(".u-wrap canvas")).to_have_count(3, timeout=20_000)
        waiting = int(page.locator("#size-waiting b").inner_text())
        producer.send(filled, "x", delay=3_600)
        expect(page.locator("#size-waiting b")).to_have_text(str(waiting + 1), timeout=10_000)
        page = watching.open(f"message?topic={filled}&id=w7")
        page.get_by_role("button", name="Due now").click()
        expect(page.get_by_role("status")).to_contain_text("due now")
        context.close()
    assert watching.problems == []


def test_a_viewer_sees_every_page_and_no_action(
    chromium: Browser, base_url: str, gateways: Gateways, filled: str
) -> None:
    """Signed in by the browser's own password dialog; the live stream works with it."""
    assert base_url
    token = new_token()
    grant = {"name": "eve", "tokens": [hash_of(token)], "roles": ["view"]}
    _, url = gateways.gateway("--dashboard", grants=json.dumps([grant]))
    context = chromium.new_context(http_credentials={"username": "eve", "password": token})
    watching = Watched(context, url)
    for path in _paths(filled):
        if path.startswith("confirm"):
            continue
        page = watching.open(path)
        assert page.locator("main form[method=post]").count() == 0, path
        assert "viewer" in page.locator("header").inner_text()
    page = watching.open(f"topic?topic={filled}")
    expect(page.locator(".u-wrap canvas")).to_have_count(3, timeout=20_000)
    context.close()
    # Chromium notes that it was asked for a password.
    assert [problem for problem in watching.problems if "401" not in problem] == []


def test_hostile_data_runs_nothing(watched: Watched, producer: Producer, topic: str, kill: Kill) -> None:
    """No script of an id, a header, a body or an error runs."""
    nasty = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
    producer.send(topic, nasty, id=nasty, headers={nasty: nasty})
    kill(topic, 1, error=nasty)
    for path in ("messages?state=garbage&", "message?", "confirm?what=purge&id_only=1&", "find?"):
        page = watched.page
        page.goto(f"{watched.base}{path}{urlencode({'topic': topic, 'id': nasty, 'said': nasty})}")
        assert "broken" not in page.title().replace(nasty, "")
        assert page.locator("main img, main script").count() == 0


def test_everything_but_charts_works_forgottens(chromium: Browser, base_url: str, filled: str) -> None:
    """Links and forms."""
    context = chromium.new_context(java_script_enabled=False)
    watching = Watched(context, base_url)
    for path in _paths(filled):
        watching.open(path)
    page = watching.open(f"message?topic={filled}&id=w7")
    page.get_by_role("button", name="Due now").click()
    expect(page.get_by_role("status")).to_contain_text("due now")
    context.close()
