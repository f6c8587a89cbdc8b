"""Five incidents, planted for real: pages name the cause in words, and their forms have the remedy."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from lisa_producer import Message, Producer, ProducerSettings
from support import Server, wait_until
from support.pages import Browser, Page
from support.processes import Programs

pytestmark = pytest.mark.slow

_POISONED = "support.programs.failing_worker:worker"
"""Rejects a message whose body is -1."""


class Installation:
    """Programs on a server and prefix, with a browser at a dashboard and a producer."""

    def __init__(self, url: str, prefix: str, directory: Path, stack: ExitStack) -> None:
        self.programs = stack.enter_context(closing(Programs(url, prefix, directory)))
        address = self.programs.gateway("--dashboard").listens_at
        client = stack.enter_context(httpx.Client(base_url=f"http://{address}/dashboard/", timeout=30))
        self.browser = Browser(client)
        self.producer = stack.enter_context(Producer(settings=ProducerSettings(redis_url=url, prefix=prefix)))
        self.prefix = prefix

    def wait_for_page(self, path: str, text: str, **query: str) -> Page:
        """Reads a page until it has a text."""
        pages = list[Page]()

        def has_text() -> bool:
            pages[:] = [self.browser.get(path, **query)]
            return text in pages[0].text

        wait_until(has_text, 60, what=f"{text!r} on the page {path!r}")
        return pages[0]

    def wait_until_handled(self, *ids: str) -> None:
        """Waits until the worker has handled messages."""
        wait_until(lambda: set(ids) <= set(self.programs.journal.ended()), 30, what=f"{ids} are handled")


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Callable[[str, str], Installation]]:
    """Starts a gateway: `install(url, prefix)`."""
    with ExitStack() as stack:
        yield lambda url, prefix: Installation(url, prefix, tmp_path, stack)


@pytest.fixture
def site(install: Callable[[str, str], Installation], redis_url: str, prefix: str) -> Installation:
    """An installation on the server of the run."""
    return install(redis_url, prefix)


def test_no_manager_runs(site: Installation) -> None:
    """Every page has the command to start one; the topic's own says how late it is."""
    manager = site.programs.manager()
    site.programs.worker()
    site.producer.send("orders", "{}", id="a", delay=2)
    manager.kill()
    line = f"no manager runs, so messages that fall due wait; start one: lisa-manager run --prefix {site.prefix}"
    # A killed manager counts as running until its sign expires.
    page = site.wait_for_page("topic", line, topic="orders")
    assert "the oldest unread message is" in page.text
    assert all(line in site.browser.get(other).text for other in ("", "server", "workers"))
    site.programs.manager()
    site.wait_until_handled("a")
    wait_until(lambda: "no manager runs" not in site.browser.get().text, 30, what="the line goes")


def test_one_release_of_two_is_poisoned(site: Installation) -> None:
    """The dead letters are counted by release and error; one link filters them, one form replays them."""
    site.programs.manager()
    site.programs.worker("--release", "1.4.1", "--prefetch", "0")
    bad = site.programs.worker("--release", "1.4.2", "--prefetch", "0", target=_POISONED)
    sent = list[str]()

    def both_had_some() -> bool:
        sent.append(str(site.producer.send("orders", "-1").id))
        page = site.browser.get("messages", topic="orders", state="garbage")
        return site.programs.journal.ended().total() > 0 and "the test wants garbage" in page.text

    wait_until(both_had_some, 30)
    assert "1.4.1" in site.browser.get("workers").text
    page = site.browser.get("messages", topic="orders", state="garbage")
    assert all(word in page.text for word in ("Why they died", "rejected", "billing", "1.4.2"))
    cause = next(link for link in page.links if "release=1.4.2" in link and "error=" in link)
    died = site.browser.get(cause)
    assert bad.stop() == 0
    asked = site.browser.get(next(link for link in died.links if "what=replay" in link))
    site.browser.send(asked, asked.form("do-bulk"))
    site.wait_until_handled(*sent)


def test_a_pause_is_misspelt(site: Installation) -> None:
    """A topic that does not exist has no page and is not declared; one that is paused says so, beside its button."""
    site.programs.manager()
    site.programs.worker()
    site.producer.send("orders", "{}", id="a")
    site.wait_until_handled("a")
    assert site.browser.get("topic", topic="oders").status == 404
    page = site.wait_for_page("", "orders")
    refused = site.browser.send(page, page.form("do-pause"), topic="oders")
    assert (refused.status, "there is no topic 'oders'" in refused.text) == (404, True)
    site.browser.send(page, page.form("do-pause"))
    site.producer.send("orders", "{}", id="b")
    page = site.wait_for_page("", "paused")
    assert site.browser.get("topic", topic="orders").text.count("Deliveries are paused.") == 1
    site.browser.send(page, page.form("do-pause"))
    site.wait_until_handled("b")


def test_a_worker_is_stuck(site: Installation) -> None:
    """The page of workers says which, and what hangs in it; that is aborted there, and the worker goes on."""
    site.programs.manager()
    site.producer.send("orders", "{}", id="first")
    page = site.browser.get("topic", topic="orders")
    site.browser.send(page, page.form("do-policy"), visibility_ms="4s")
    site.programs.worker("--concurrency", "2", "--prefetch", "10", "--drain-s", "1")
    site.wait_until_handled("first")
    site.programs.hold.touch()
    site.producer.send_many("orders", [Message(body="{}", id=f"m{number}") for number in range(6)])
    page = site.wait_for_page("workers", "stuck: topic orders is stuck for ")
    aborts = [link for link in page.links if "what=abort" in link]
    assert [next(id for id in ("m0", "m1") if f"id={id}" in link) for link in aborts] == ["m0", "m1"]
    asked = site.browser.get(aborts[0])
    assert "Abort this message?" in asked.text
    assert "aborted" in site.browser.send(asked, asked.form("do-abort")).text
    site.programs.hold.unlink()
    site.wait_until_handled("m1", "m2", "m3", "m4", "m5")
    wait_until(lambda: "is stuck" not in site.browser.get("workers").text, what="the worker goes on")


def test_the_memory_is_nearly_full(
    own_server: Callable[..., Server], install: Callable[[str, str], Installation]
) -> None:
    """The pages of the server and of capacity say so, and of which topic; its messages are cancelled by a form."""
    server = own_server(appendonly="yes", maxmemory="20mb", maxmemory_policy="noeviction")
    site = install(server.url, "lisa")
    site.programs.manager()
    site.producer.send_many("orders", [Message(body="x" * 1_000_000, id=f"m{n}", delay=86_400) for n in range(16)])
    page = site.wait_for_page("server", "the memory is nearly full (")
    assert "of 20 MiB): a full server refuses sends; raise maxmemory, or remove messages" in page.text
    assert "% of the limit is used" in site.browser.get("capacity").text
    waiting = site.browser.get("messages", topic="orders", state="waiting")
    asked = site.browser.get(next(link for link in waiting.links if "what=cancel" in link))
    assert "16 waiting messages" in asked.text
    site.browser.send(asked, asked.form("do-bulk"))
    wait_until(lambda: "nearly full" not in site.browser.get("server").text, 30, what="room")
