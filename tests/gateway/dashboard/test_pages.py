"""Each page, read without scripts: what it shows, and that it can be sent to a colleague."""

import re
from collections.abc import Callable

import httpx
import pytest

from lisa_manager import Admin
from lisa_producer import Message, Producer
from support.gateways import Gateways
from support.pages import Browser
from support.waiting import wait_until

Kill = Callable[..., None]


def test_the_first_page_is_a_directory(base_url: str) -> None:
    """All links are relative to it, so that they work below any prefix."""
    answer = httpx.get(f"{base_url}/dashboard")
    assert (answer.status_code, answer.headers["location"]) == (307, "dashboard/")


def test_topics_with_problems_come_first(browser: Browser, producer: Producer, topic: str, kill: Kill) -> None:
    """Sizes by state, each with a link to those messages."""
    producer.send_many(f"{topic}-a", [Message(body="x", delay=60), Message(body="x", delay=70)])
    producer.send(f"{topic}-b", "x")
    kill(f"{topic}-b", 1)

    def listed() -> bool:
        page = browser.get(q=topic)
        names = [line for line in page.text.split() if line.startswith(topic)]
        return names == [f"{topic}-b", f"{topic}-a"] and "2 of" in page.text

    wait_until(listed, 20, what="the topic with garbage is first")
    by_name = browser.get(q=topic, order="name").text
    assert by_name.index(f"{topic}-a") < by_name.index(f"{topic}-b")
    assert f"messages?topic={topic}-b&state=garbage" in browser.get(q=topic).links
    assert browser.get(order="beauty").status == 400


def test_topic_shows_sizes_histogram_groups_consumers_and_policy(
    browser: Browser, producer: Producer, topic: str, kill: Kill
) -> None:
    """What waits is counted by when it falls due."""
    producer.send(topic, "x")
    kill(topic, 1)
    producer.send_many(topic, [Message(body="x", delay=delay) for delay in (30, 300, 3_000, 300_000)])
    page = wait_until(lambda: (read := browser.get("topic", topic=topic)) and "4 waiting" in read.text and read, 20)
    assert "1 garbage" in page.text
    assert "billing" in page.text
    fields = page.form("do-policy").fields
    assert (fields["max_retries"], fields["ttl_ms"]) == ("10", "")
    assert browser.get("topic", topic="nowhere").status == 404
    assert browser.get("topic", topic="no/name").status == 400


def test_history_survives_the_gateway(browser: Browser, producer: Producer, topic: str, gateways: Gateways) -> None:
    """Managers write the samples, so any gateway shows the same, also one that has just begun."""
    producer.send_many(topic, [Message(body="x", delay=0.5), Message(body="x", delay=3_600)])

    def sampled(client: httpx.Client) -> bool:
        data = client.get("data", params={"topic": topic, "hours": "1"}).json()
        return data["waiting"][-1:] == [1] and data["ready"][-1:] == [1] and any(lag is not None for lag in data["p99"])

    wait_until(lambda: sampled(browser.client), 20, what="samples with lags")
    process, url = gateways.gateway("--dashboard")
    with httpx.Client(base_url=f"{url}/dashboard/", timeout=30) as client:
        assert sampled(client)
    assert process.stop() == 0


@pytest.mark.parametrize("state", ["waiting", "ready", "garbage"])
def test_messages_of_a_state_page_by_page(
    browser: Browser, producer: Producer, topic: str, kill: Kill, state: str
) -> None:
    """Fifty at a time, in order of time, each one once."""
    ids = [f"m{number:03}" for number in range(120)]
    delay = 60 if state == "waiting" else 0
    producer.send_many(topic, [Message(body="x", id=id, delay=delay) for id in ids])
    wait_until(lambda: "120" in browser.get("messages", topic=topic, state="waiting" if delay else "ready").text, 20)
    if state == "garbage":
        kill(topic, 120)
    page, seen = browser.get("messages", topic=topic, state=state), []
    while True:
        seen += [link.rpartition("id=")[2] for link in page.links if link.startswith("message?")]
        following = [link for link in page.links if "cursor=" in link]
        if not following:
            break
        page = browser.get(following[0])
    assert sorted(seen) == ids


def test_search_says_how_far_it_has_looked(browser: Browser, producer: Producer, topic: str, kill: Kill) -> None:
    """By header, body, part of an id, error and reason; the filters are in the URL."""
    headers = [{"Customer": "7"}, {"customer": "77"}, {}]
    producer.send_many(topic, [Message(body=f"order {n}", id=f"m{n}", headers=each) for n, each in enumerate(headers)])
    kill(topic, 3, error="card declined")

    def found(**filters: str) -> str:
        page = browser.get("messages", topic=topic, state="garbage", **filters)
        assert "of 3 messages match." in page.text, page.text
        return " ".join(sorted(link.rpartition("id=")[2] for link in page.links if link.startswith("message?")))

    assert found(header="customer") == "m0 m1"
    assert found(header="CUSTOMER=77") == "m1"
    assert found(body="der 2") == "m2"
    assert found(id="1") == "m1"
    assert found(error="DECLINED") == "m0 m1 m2"
    assert found(reason="rejected", group="billing") == "m0 m1 m2"
    assert found(reason="expired") == ""
    assert found(age="1h") == ""
    page = browser.get("messages", topic=topic, state="garbage", age="soon")
    assert page.status == 400
    assert "age must be seconds, or numbers with units" in page.text
    page = browser.get("messages", topic=topic, state="garbage", group="biling", error="declined")
    assert page.status == 404
    assert "has no group 'biling'" in page.text
    assert 'value="declined"' in page.html


def test_message_shows_all_that_is_known(browser: Browser, producer: Producer, topic: str, kill: Kill) -> None:
    """Headers, the body as JSON, text and hex, the failure, the timeline; the whole body can be saved."""
    producer.send(topic, {"n": 1}, id="a/b c", headers={"kind": "x"})
    kill(topic, 1, error="line 1\nline 2")
    page = browser.get("message", topic=topic, id="a/b c")
    for text in ('"n": 1', "kind", "line 1\nline 2", "rejected", "became garbage in group billing", "sent"):
        assert text in page.text, text
    assert "00000000  7b 22 6e" in browser.get("message", topic=topic, id="a/b c", view="hex").text
    saved = browser.client.get("body", params={"topic": topic, "id": "a/b c"})
    assert saved.content == b'{"n":1}'
    assert saved.headers["content-disposition"].startswith("attachment")
    assert browser.get("message", topic=topic, id="nobody").status == 404


def test_message_shows_where_its_handler_failed(browser: Browser, producer: Producer, topic: str, kill: Kill) -> None:
    """The last frames of the traceback, below the error; the release in a column of its own."""
    producer.send(topic, "x", id="a")
    try:
        _ = 1 / 0
    except ZeroDivisionError as error:
        kill(topic, 1, error=error)
    text = browser.get("message", topic=topic, id="a").text
    assert re.search(
        r"ZeroDivisionError: division by zero\n  at \S+test_pages.py:[0-9]+ in test_message_shows", text
    ), text
    assert "1.4.2" in text


def test_find_by_id_in_one_topic_and_in_all(browser: Browser, producer: Producer, topic: str) -> None:
    """One place is shown at once; several are listed; and it says in how many topics it looked."""
    for name in (f"{topic}-1", f"{topic}-2"):
        producer.send(name, "x", id=f"{topic}-both", delay=60)
    producer.send(f"{topic}-1", "x", id=f"{topic}-one", delay=60)
    wait_until(lambda: f"{topic}-2" in browser.get(q=topic).text, 20)
    assert browser.get("find", id=f"{topic}-one").url.endswith(f"message?topic={topic}-1&id={topic}-one")
    both = browser.get("find", id=f"{topic}-both")
    assert [f"{topic}-1" in both.text, f"{topic}-2" in both.text] == [True, True]
    missing = browser.get("find", id="nobody")
    assert "No topic knows it" in missing.text
    assert "Looked in" in missing.text


def test_server_shows_managers_memory_and_clock(browser: Browser) -> None:
    """A manager reports with its samples."""
    page = wait_until(lambda: (read := browser.get("server")) and "ago" in read.text and read, 20)
    for text in ("Doctor", "commands/s", "MiB", "The server's clock says"):
        assert text in page.text, text


def test_static_files_have_hashed_names_and_licences(browser: Browser) -> None:
    """Browsers keep them for ever; each library has its licence beside it."""
    page = browser.get()
    names = [given.get("src") or given.get("href", "") for tag, given in page.tags if tag in ("script", "link")]
    assert len(names) == 8
    for name in names:
        answer = browser.client.get(name)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["content-encoding"] == "gzip"
        plain = browser.client.get(name, headers={"accept-encoding": "identity"})
        assert plain.content == answer.content
    assert browser.client.get("static/dashboard.css").status_code == 404


def test_counts_of_a_damaged_topic_hurt_no_other(
    browser: Browser, admin: Admin, producer: Producer, topic: str
) -> None:
    """It is shown first, with what is wrong."""
    producer.send(f"{topic}-good", "x", delay=60)
    admin.create_topic(f"{topic}-bad")
    connection = admin._connection
    from lisa_common.protocol.call import command  # noqa: PLC0415 - damage is not done by Admin

    connection.call(command("SET", f"{admin._prefix}:{{{topic}-bad}}:waiting", "x"))

    def shown() -> bool:
        text = browser.get(q=topic).text
        return "cannot be read" in text and f"{topic}-good" in text

    wait_until(shown, 20)
    assert "WRONGTYPE" in browser.get("topic", topic=f"{topic}-bad").text
    connection.call(command("DEL", f"{admin._prefix}:{{{topic}-bad}}:waiting"))
