"""The pages of lateness by hour and of memory, read without scripts."""

import httpx
import pytest
import redis

from lisa_common.model.keys import history_key
from lisa_manager import Admin
from lisa_producer import Message, Producer
from support.gateways import Gateways
from support.pages import Browser, Page
from support.waiting import wait_until

HOUR = 3_600_000


def _sample(gateways: Gateways, topic: str, at_ms: int, *, late_ms: int = 0, lags: str = "") -> None:
    """Writes a sample as a manager does."""
    counts = f"1 5 0 0 0 0 10 10 {late_ms} 5 0 0 0 0 0 0 0 0 {lags}".strip()
    with redis.Redis.from_url(gateways.url) as client:
        client.xadd(history_key(gateways.prefix, topic), {"s": counts}, id=f"{at_ms}-0")


def _row(page: Page, topic: str) -> list[str]:
    """The cells of a topic; of hours, the oldest first."""
    row = page.html.partition(f"<bdi>{topic}</bdi>")[2].partition("</tr>")[0]
    return [cell.partition(">")[2].partition("</td>")[0] for cell in row.split("<td")[1:]]


def test_lateness_is_shown_by_topic_and_hour(browser: Browser, admin: Admin, gateways: Gateways, topic: str) -> None:
    """Quantiles over all samples of an hour, and the longest that a message was unread; the worst topic first."""
    now = admin.server_facts().now_ms
    hour = now - now % HOUR
    for name, late_ms in ((f"{topic}-a", 0), (f"{topic}-b", 700_000)):
        # Before managers know the topic: they add later ones. Of steps, 41 is about 1 s, and 61 about 33 s.
        _sample(gateways, name, hour - 3 * HOUR + 60_000, lags="41:98", late_ms=5_000)
        _sample(gateways, name, hour - 3 * HOUR + 120_000, lags="41:1 61:1", late_ms=late_ms)
        # The lags of a sample are those of the interval before: of the hour that has ended.
        _sample(gateways, name, hour - 2 * HOUR, lags="1:7")
        admin.create_topic(name)

    def read() -> Page | None:
        page = browser.get("lateness", q=topic)
        return page if f"{topic}-b" in page.text and f"{topic}-a" in page.text else None

    page = wait_until(read, 20)
    assert page.html.index(f"{topic}-b") < page.html.index(f"{topic}-a")
    cells = _row(page, f"{topic}-a")
    assert len(cells) == 12
    assert "level1" in page.html
    for text in ("p50 1.02s", "p99 1.02s", "unread 5s"):
        assert text in cells[8], cells[8]
    assert "on time" in cells[9]
    assert "no sample" in cells[0]
    worst = _row(page, f"{topic}-b")[8]
    assert "unread 11m40s" in worst, worst
    earlier = browser.get(next(link for link in page.links if link.startswith("lateness?") and "ago=12" in link))
    assert all("no sample" in cell for cell in _row(earlier, f"{topic}-a"))
    assert any("ago" not in link for link in earlier.links if link.startswith("lateness?"))
    assert browser.get("lateness", ago="soon").status == 400


def test_capacity_names_memory_now_and_in_a_day(
    browser: Browser, producer: Producer, admin: Admin, gateways: Gateways, topic: str
) -> None:
    """Of the server, and of each topic by its change in the last hour."""
    # Half an hour ago it had five messages.
    _sample(gateways, topic, admin.server_facts().now_ms - HOUR // 2)
    producer.send_many(topic, [Message(body="x" * 1_000, delay=86_400) for _ in range(2_000)])
    wait_until(lambda: admin.history([topic])[topic][-1].waiting == 2_000, 30, what="a second sample")
    memory = admin.memory([topic])[topic]
    cells = wait_until(lambda: (found := _row(browser.get("capacity"), topic)) and found[2] == "2,000" and found, 20)
    assert abs(float(cells[0].removesuffix(" MiB")) - memory / 1024 / 1024) < 0.2
    in_a_day = int(cells[3].replace(",", ""))
    assert 90_000 < in_a_day < 100_000
    size, unit = cells[1].split()
    assert unit == "MiB"
    assert 40 < float(size) / (memory / 1024 / 1024) < 55
    assert 1_000 < int(cells[4].replace(",", "")) < 2_000


@pytest.mark.parametrize("refused", ["memory|usage", "info"])
def test_capacity_says_what_the_server_refuses(
    gateways: Gateways, producer: Producer, topic: str, refused: str
) -> None:
    """As rented servers do; the rest is shown."""
    producer.send(topic, "x", delay=60)
    user = f"{gateways.prefix}-{refused[:4]}"
    with redis.Redis.from_url(gateways.url) as client:
        client.execute_command("ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all", f"-{refused}")
        try:
            url = str(httpx.URL(gateways.url).copy_with(userinfo=f"{user}:secret".encode()))
            process, base = gateways.gateway("--dashboard", redis_url=url)
            with httpx.Client(base_url=f"{base}/dashboard/", timeout=30) as http:
                page = wait_until(lambda: (read := Browser(http).get("capacity")) and topic in read.text and read, 20)
            assert process.stop() == 0
        finally:
            client.execute_command("ACL", "DELUSER", user)
    assert page.status == 200
    assert ("MEMORY USAGE" in page.text) == (refused == "memory|usage")
    assert ("The server does not say how much memory it has" in page.text) == (refused == "info")
