"""Who may see and do what; forms of other sites; and data that attacks the reader."""

import base64
import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from lisa_gateway.access import hash_of, new_token
from lisa_manager import Admin
from lisa_producer import Message, Producer
from support.gateways import Gateways
from support.pages import Browser, Page
from support.waiting import wait_until

Kill = Callable[..., None]

VIEWER, OPERATOR, SHOP = new_token(), new_token(), new_token()
GRANTS = [
    {"name": "eve", "tokens": [hash_of(VIEWER)], "roles": ["view"], "topics": ["t*"]},
    {"name": "olaf", "tokens": [hash_of(OPERATOR)], "roles": ["admin"], "topics": ["t*"]},
    {"name": "shop", "tokens": [hash_of(SHOP)], "roles": ["send", "consume"]},
]
SITE = {"sec-fetch-site": "same-origin"}

NASTY = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{1234567*7654321}}"
# What a template engine would make of the end of `NASTY`: long enough that no id, time or port holds it by chance.
EVALUATED = str(1234567 * 7654321)


def _basic(token: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"anybody:{token}".encode()).decode()}


@pytest.fixture(scope="module")
def guarded(gateways: Gateways, base_url: str) -> str:
    """A gateway with grants, behind a proxy on this machine, that hides bodies from viewers."""
    assert base_url
    return gateways.gateway(
        "--dashboard", "--dashboard-bodies", "operators", grants=json.dumps(GRANTS), proxies="127.0.0.0/8"
    )[1]


@pytest.fixture
def http(guarded: str) -> Iterator[httpx.Client]:
    """A plain client of the guarded gateway."""
    with httpx.Client(base_url=f"{guarded}/dashboard/", timeout=30) as client:
        yield client


def test_browsers_are_asked_for_a_password_on_pages_alone(http: httpx.Client, guarded: str) -> None:
    """The API takes bearer tokens, as before: a browser sends a password by itself, for any site."""
    refused = http.get("")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Basic realm="lisa"')
    assert http.get("", headers=_basic(VIEWER)).status_code == 200
    assert http.get("", headers={"authorization": f"Bearer {VIEWER}"}).status_code == 200
    assert http.get("", headers=_basic("wrong")).status_code == 401
    assert http.get("", headers={"authorization": "Basic %%%"}).status_code == 401
    assert http.get("", headers=_basic(SHOP)).status_code == 403
    assert httpx.get(f"{guarded}/v1/topics", headers=_basic(OPERATOR)).status_code == 401
    assert httpx.get(f"{guarded}/v1/topics", headers={"authorization": f"Bearer {VIEWER}"}).status_code == 403
    assert http.get("", headers={"x-forwarded-user": "eve"}).status_code == 200


def test_viewers_change_nothing(http: httpx.Client, producer: Producer, admin: Admin, topic: str, kill: Kill) -> None:
    """Neither do they get the forms, nor may they send them; bodies are hidden from them."""
    producer.send(topic, "secret body", id="a", headers={"x": "secret header"})
    kill(topic, 1)
    viewer = Browser(http, **_basic(VIEWER))
    for path in ("", f"topic?topic={topic}", f"messages?topic={topic}&state=garbage", f"message?topic={topic}&id=a"):
        page = viewer.get(path)
        assert page.status == 200
        assert [form for form in page.forms if form.method == "post"] == []
        assert "secret" not in page.html
    assert viewer.client.get("body", params={"topic": topic, "id": "a"}, headers=_basic(VIEWER)).status_code == 403
    assert viewer.get("messages", topic=topic, state="garbage", body="secret").status == 400
    for name, fields in (
        ("replay", {"id": "a"}),
        ("purge", {"id": "a"}),
        ("abort", {"id": "a"}),
        ("cancel", {"id": "a"}),
        ("due-now", {"id": "a"}),
        ("reschedule", {"id": "a", "when": "1h"}),
        ("replay-edited", {"id": "a", "body": "x"}),
        ("bulk", {"what": "purge", "selection": "state=garbage"}),
        ("policy", {"max_retries": "1"}),
        ("pause", {"paused": "true"}),
    ):
        refused = viewer.post(f"do-{name}", SITE, topic=topic, **fields)
        assert refused.status_code == 403, (name, refused.text)
    assert viewer.get("confirm", what="purge", topic=topic, state="garbage").status == 403
    assert admin.count_garbage(topic) == 1
    assert admin.policy(topic).model_fields_set == set()
    operator = Browser(http, **_basic(OPERATOR))
    assert "secret body" in operator.get("message", topic=topic, id="a").text


def test_bodies_are_hidden_wherever_they_are_quoted(
    http: httpx.Client, producer: Producer, admin: Admin, topic: str, kill: Kill
) -> None:
    """In errors, in the history of a dead letter, in Activity and in operations; filters do not find out either."""
    death = {"queue": "secret", "reason": "secret", "count": 1, "first-time": 1, "last-time": 1, "error": "secret"}
    producer.send(topic, "secret", id="a", headers={"x-death": json.dumps([death]), "secret": "secret"})
    kill(topic, 1, error="cannot read 'secret'")
    producer.send(topic, "b", id="b", delay=3600)
    viewer, operator = Browser(http, **_basic(VIEWER)), Browser(http, **_basic(OPERATOR))
    for field in ("body", "header", "error"):
        asked = operator.get("confirm", what="purge", topic=topic, state="garbage", id="none", **{field: "secret"})
        operator.send(asked, asked.form("do-bulk"))
        assert viewer.get("messages", topic=topic, state="garbage", **{field: "secret"}).status == 400
    wait_until(lambda: sum(each.topic == topic for each in admin.activity()) == 3, 20)
    paths = ("activity", f"messages?topic={topic}&state=garbage", f"message?topic={topic}&id=a&trace=1")
    for path in paths:
        assert "secret" in operator.get(path).html, path
        shown = viewer.get(path)
        assert (shown.status, "secret" in shown.html) == (200, False), path
    assert "body=…" in viewer.get("activity").text
    with viewer.client.stream("GET", "live?page=activity", headers=_basic(VIEWER)) as stream:
        lines = iter(stream.iter_lines())
        assert next(line for line in lines if line == "event: part")
        assert "secret" not in next(lines)


def test_grants_limit_topics(http: httpx.Client, producer: Producer) -> None:
    """A topic outside of the grant is neither listed nor shown, also not by its number or by a search."""
    producer.send("other-topic", "x", id="hidden", delay=60)
    operator = Browser(http, **_basic(OPERATOR))
    wait_until(lambda: operator.get().text.count("topics."), 20)
    assert "other-topic" not in operator.get(order="name").text
    for path in ("topic?topic=other-topic", "messages?topic=other-topic", "message?topic=other-topic&id=hidden"):
        assert operator.get(path).status == 403
    assert "other-topic" not in operator.get("find", id="hidden").text.replace("find?", "")
    assert operator.client.get("live?page=topic&topic=other-topic", headers=_basic(OPERATOR)).status_code == 403
    # The page about the server names topics, and sizes of all together.
    for page in ("server", "capacity"):
        assert operator.get(page).status == 403
        assert page not in operator.get().links
    assert "other-topic" not in operator.get("lateness").text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"origin": "https://evil.example", "sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 404),
        ({"origin": "OWN"}, 404),
        ({"origin": "https://queue.example", "x-forwarded-host": "queue.example"}, 404),
        ({"origin": "https://evil.example", "x-forwarded-host": "queue.example"}, 403),
    ],
)
def test_forms_of_other_sites_are_refused(
    http: httpx.Client, guarded: str, topic: str, headers: dict[str, str], status: int
) -> None:
    """The browser has signed in, so it would send them: the topic that the form names does not even exist."""
    if headers.get("origin") == "OWN":
        headers = {"origin": guarded}
    fields = {"topic": topic, "id": "a"}
    assert http.post("do-due-now", data=fields, headers=_basic(OPERATOR) | headers).status_code == status


def test_other_sites_may_link_to_pages_and_no_more(base_url: str) -> None:
    """Where nobody signs in, a link works; pictures, frames, scripts and forms of other sites do not."""
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    url = f"{base_url}/dashboard/"
    assert httpx.get(url, headers=link).status_code == 200
    assert httpx.get(url, headers=link | {"sec-fetch-dest": "iframe"}).status_code == 403
    assert httpx.get(url, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert httpx.post(f"{url}do-pause", headers=link, data={"topic": "t"}).status_code == 403
    assert httpx.get(f"{base_url}/v1/topics", headers=link).status_code == 403
    assert httpx.get(url, headers={"host": "evil.example"}).status_code == 403


def _is_harmless(page: Page) -> None:
    assert page.status == 200
    assert not [given for tag, given in page.tags if tag == "script" and not given.get("src", "").startswith("static/")]
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert EVALUATED not in page.text


def test_hostile_data_is_shown_as_text(browser: Browser, producer: Producer, topic: str, kill: Kill) -> None:
    """Ids, headers, bodies and errors with scripts; bytes that are no text; a body of 1 MiB."""
    producer.send(topic, NASTY, id=NASTY, headers={NASTY: NASTY})
    producer.send(topic, b"\xff\xfe\x00<script>", id="bytes")
    producer.send(topic, json.dumps({"x": "<b>" * 340_000})[:1_048_576], id="large")
    producer.send(topic, "</textarea></pre><script>alert(1)</script>", id="escape")
    kill(topic, 4, error=NASTY)
    page = browser.get("messages", topic=topic, state="garbage")
    _is_harmless(page)
    assert page.text.count(NASTY) >= 1
    for id in (NASTY, "bytes", "large", "escape"):
        for form in ("", "text", "json", "hex"):
            _is_harmless(browser.get("message", topic=topic, id=id, view=form))
        _is_harmless(browser.get("confirm", what="purge", topic=topic, id=id, id_only="1"))
    shown = browser.get("message", topic=topic, id=NASTY)
    assert shown.text.count(NASTY) >= 4
    assert len(browser.get("message", topic=topic, id="large").html) < 400_000
    assert (
        browser.get("message", topic=topic, id="escape")
        .form("do-replay-edited")
        .fields["body"]
        .startswith("</textarea>")
    )
    _is_harmless(browser.get("message", topic=topic, id=NASTY, said=NASTY))
    for path in ("messages", "message", "topic", "confirm"):
        answer = browser.get(path, topic=NASTY, id=NASTY, state=NASTY, what=NASTY, cursor=NASTY)
        assert answer.status == 400
        assert not [tag for tag, _ in answer.tags if tag == "img"]
    _is_harmless(browser.get(q=NASTY))
    producer.send(topic, "x", id="loop", delay=60)
    # A text that is cut in the middle of what UTF-8 or a URL needs is an error, and no crash.
    for query in ("topic=%ff", "topic=t&id=%ed%a0%80", "topic=t&id=%00", "q=%ff", "page_number=-1", "hours=x&topic=t"):
        assert browser.client.get(f"message?{query}").status_code in (400, 404)


def test_large_and_strange_forms(browser: Browser, topic: str) -> None:
    """Refused with a reason, before anything is done."""
    many = browser.client.post(
        "do-cancel",
        content="&".join(f"f{n}=1" for n in range(500)),
        headers=SITE | {"content-type": "application/x-www-form-urlencoded"},
    )
    assert many.status_code == 400
    for path in ("", "topic?topic=t&", "live?page=topics&"):
        asked = browser.client.get(path, params={f"f{n}": 1 for n in range(300)})
        assert (asked.status_code, "at most 200 fields" in asked.text) == (400, True)
    for entry in ("0-0", "18446744073709551616-0"):
        assert browser.get("activity", before=entry).status == 400
    parts = browser.client.post("do-cancel", files={"topic": topic}, headers=SITE)
    assert parts.status_code == 400
    assert "content-type must be" in parts.text
    huge = browser.client.post("do-cancel", data={"topic": topic, "id": "x" * 9_000_000}, headers=SITE)
    assert huge.status_code == 413
    assert browser.client.get("do-cancel").status_code == 405
    assert browser.client.post("", headers=SITE).status_code == 405
    assert browser.client.get("static/../settings.py").status_code == 404
    assert browser.client.get("static/%2e%2e%2fsettings.py").status_code == 404


def test_thousand_messages_of_an_operator_are_noted_with_the_user(
    http: httpx.Client, producer: Producer, admin: Admin, topic: str
) -> None:
    """Activity names who did it, as the proxy says."""
    producer.send_many(topic, [Message(body="x", delay=60) for _ in range(3)])
    olaf = Browser(http, **{"x-forwarded-user": "olaf"})
    asked = olaf.get("confirm", what="cancel", topic=topic, state="waiting")
    olaf.send(asked, asked.form("do-bulk"))
    wait_until(lambda: any(each.topic == topic for each in admin.activity()), 20)
    done = next(each for each in admin.activity() if each.topic == topic)
    assert (done.who, done.what, done.count) == ("olaf", "cancel all", 3)
