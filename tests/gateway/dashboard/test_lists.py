"""Lists: their order, why messages died, actions on selected rows; and the page of workers."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator

import pytest

from lisa_consumer import ConsumerSettings, Delivery, Worker
from lisa_manager import Admin
from lisa_producer import Message, Producer
from support.gateways import Gateways
from support.pages import Browser, Page
from support.waiting import wait_until

Kill = Callable[..., None]


def _ids(page: Page) -> list[str]:
    return re.findall(r'name="pick-[0-9]+" value="billing/([^"]+)"', page.html)


@pytest.fixture
def dead(producer: Producer, topic: str, kill: Kill) -> str:
    """A topic with five dead letters: two for one reason, three later for another."""
    producer.send_many(topic, [Message(body={"n": n}, id=f"money-{n}") for n in range(2)])
    kill(topic, 2, error="no money\nand no hope")
    producer.send_many(topic, [Message(body={"n": n, "at": "<b>"}, id=f"bank-{n}") for n in range(3)])
    kill(topic, 3, error="the bank: timeout")
    return topic


def test_dead_letters_come_newest_first_with_ages_and_bodies(browser: Browser, dead: str) -> None:
    """Or oldest first, as one asks; the same filters as everywhere."""
    page = browser.get("messages", topic=dead, state="garbage")
    assert {each.partition("-")[0] for each in _ids(page)[:3]} == {"bank"}
    assert _ids(browser.get("messages", topic=dead, state="garbage", order="oldest")) == _ids(page)[::-1]
    assert '{"n":2,"at":"<b>"}' in page.text
    assert ":2,<wbr>" in page.html, "lines break between fields"
    assert " ago" in page.text
    found = browser.get("messages", topic=dead, state="garbage", error="TIMEOUT", since="1h", reason="rejected")
    assert len(_ids(found)) == 3
    assert "None" in browser.get("messages", topic=dead, state="garbage", release="7").text
    assert "order must be one of" in browser.get("messages", topic=dead, state="garbage", order="up").text
    assert "since must be" in browser.get("messages", topic=dead, state="garbage", since="up").text


def test_the_page_says_why_they_died(browser: Browser, dead: str) -> None:
    """Counted by cause; each leads to its dead letters."""
    page = browser.get("messages", topic=dead, state="garbage")
    assert "Why they died" in page.text
    link = next(each for each in page.links if "error=no+money" in each)
    assert {each.partition("-")[0] for each in _ids(browser.get(link))} == {"money"}


def test_selected_rows_are_replayed_and_purged(browser: Browser, admin: Admin, dead: str) -> None:
    """Only those; a purge asks first. Nothing selected is an error, and changes nothing."""
    page = browser.get("messages", topic=dead, state="garbage")
    form = page.form("do-chosen")
    form.fields = {name: value for name, value in form.fields.items() if value.startswith("billing/bank")} | {
        name: form.fields[name] for name in ("topic", "state")
    }
    assert "replay: 3 done" in browser.send(page, form, what="replay").text
    assert admin.count_garbage(dead) == 2
    assert "3 not: they are elsewhere by now" in browser.send(page, form, what="replay").text
    page = browser.get("messages", topic=dead, state="garbage")
    form = page.form("do-chosen")
    asked = browser.send(page, form, what="purge")
    assert "Purge: sure?" in asked.text
    assert admin.count_garbage(dead) == 2
    assert "purge: 2 done" in browser.send(asked, asked.form("do-chosen")).text
    assert admin.count_garbage(dead) == 0
    assert [each.what for each in admin.activity() if each.topic == dead] == ["purge selected", "replay selected"]
    form.fields = {name: form.fields[name] for name in ("topic", "state")}
    assert "messages must be selected in the list; got none" in browser.send(page, form, what="replay").text


def test_selected_waiting_messages_are_due_now_and_cancelled(
    browser: Browser, producer: Producer, admin: Admin, topic: str
) -> None:
    """They have no group."""
    producer.send_many(topic, [Message(body="x", id=id, delay=3_600) for id in ("a", "b")])
    page = browser.get("messages", topic=topic, state="waiting")
    asked = browser.send(page, page.form("do-chosen"), what="cancel")
    assert admin.find(topic, "a")
    browser.send(asked, asked.form("do-chosen"))
    assert admin.find(topic, "a") is admin.find(topic, "b") is None
    assert (
        "what must be something that can be done to waiting"
        in browser.send(page, page.form("do-chosen"), what="replay").text
    )


def test_a_selected_message_of_two_groups_is_cancelled_once(
    browser: Browser, producer: Producer, admin: Admin, topic: str
) -> None:
    """Each group's copy of it is a row. No copy counts as elsewhere because another was selected as well."""
    admin.create_topic(topic)
    for group in ("billing", "audit"):
        admin.create_group(topic, group)
    producer.send(topic, "x", id="a")
    page = browser.get("messages", topic=topic, state="ready")
    assert {"billing/a", "audit/a"} <= set(page.form("do-chosen").fields.values())
    asked = browser.send(page, page.form("do-chosen"), what="cancel")
    said = browser.send(asked, asked.form("do-chosen")).text
    assert "cancel: 1 done" in said
    assert "elsewhere" not in said


@pytest.fixture
def worker(gateways: Gateways, topic: str) -> Iterator[Worker]:
    """A worker of the topic, with its topic's name, whose handler hangs."""
    settings = ConsumerSettings(redis_url=gateways.url, prefix=gateways.prefix, release="1.4.2", drain_s=0)
    worker = Worker("billing", name=f"w-{topic}", settings=settings)

    @worker.on(topic)
    async def handle(_: Delivery) -> None:
        await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(worker.serve()))
    thread.start()
    yield worker
    loop.call_soon_threadsafe(worker.stop)
    thread.join(30)
    loop.close()


def test_workers_are_shown_paused_resumed_and_drained(
    browser: Browser, producer: Producer, admin: Admin, topic: str, worker: Worker
) -> None:
    """With the handler that runs, which can be aborted, and in Activity."""
    producer.send(topic, "x", id="slow")
    wait_until(lambda: "id=slow" in browser.get("workers").html, 20)
    page = browser.get("workers")
    for text in (worker.name, "1.4.2", "1 of 32", "running"):
        assert text in page.text, text
    assert any("what=abort" in link and "id=slow" in link and topic in link for link in page.links)

    def act(what: str) -> str:
        page = browser.get("workers")
        form = next(
            each for each in page.forms if each.action == f"do-{what}-worker" and each.fields["worker"] == worker.name
        )
        return browser.send(page, form).text

    assert f"pause: {worker.name} does so within a second or two" in act("pause")
    wait_until(lambda: admin.worker(worker.name).status == "paused", 20)
    act("resume")
    wait_until(lambda: admin.worker(worker.name).status == "running", 20)
    act("drain")
    wait_until(lambda: worker.name not in browser.get("workers").text, 20)
    assert {"pause worker", "resume worker", "drain worker"} <= {each.what for each in admin.activity()}
