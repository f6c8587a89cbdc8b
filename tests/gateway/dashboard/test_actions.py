"""Actions by forms alone: what they do, what they ask before, and what Activity says of them."""

import time
from collections.abc import Callable
from dataclasses import replace

from lisa_common.model.keys import ShardKeys, activity_key
from lisa_consumer import Consumer, ConsumerSettings
from lisa_gateway.dashboard.selection import Selection
from lisa_manager import Admin, Operation, new_operation_id
from lisa_producer import Message, Producer
from support.gateways import Gateways
from support.pages import Browser, Page
from support.plain import plain_client
from support.waiting import wait_until

Kill = Callable[..., None]


def _act(browser: Browser, topic: str, id: str, name: str, **fields: str) -> Page:
    page = browser.get("message", topic=topic, id=id)
    return browser.send(page, page.form(f"do-{name}"), **fields)


def _last(admin: Admin, topic: str) -> tuple[str, str, int]:
    # An operation is noted after its end.
    done = wait_until(lambda: next((each for each in admin.activity(limit=100) if each.topic == topic), None))
    assert done is not None
    return done.who, done.what, done.count


def _ended(admin: Admin, topic: str) -> str:
    return next((each.status for each in admin.operations() if each.topic == topic), "")


def _operation(admin: Admin, topic: str) -> Operation | None:
    return next((each for each in admin.operations() if each.topic == topic), None)


def test_one_message_is_cancelled_rescheduled_and_due_now(
    browser: Browser, producer: Producer, admin: Admin, topic: str
) -> None:
    """Each leads back to the message, and is noted; a cancel asks first."""
    producer.send_many(topic, [Message(body="x", id=id, delay=3_600) for id in ("a", "b", "c")])
    before = admin.find(topic, "a")
    assert "due 2h" in _act(browser, topic, "a", "reschedule", when="2h").text
    after = admin.find(topic, "a")
    assert before
    assert after
    assert 3_500_000 < (after.due_ms or 0) - (before.due_ms or 0) < 3_700_000
    assert _last(admin, topic) == ("anybody", "reschedule", 1)
    assert "when must be" not in _act(browser, topic, "a", "reschedule", when="2031-01-31T12:00:00+01:00").text
    assert "when must be a time in ISO 8601" in _act(browser, topic, "a", "reschedule", when="2031-01-31T12:00").text
    assert "due now" in _act(browser, topic, "b", "due-now").text
    wait_until(lambda: (found := admin.find(topic, "b")) and found.state == "ready", 20)
    asked = browser.get(f"confirm?what=cancel&id_only=1&topic={topic}&id=c")
    assert "Cancel this message?" in asked.text
    assert admin.find(topic, "c")
    browser.send(asked, asked.form("do-cancel"))
    assert admin.find(topic, "c") is None
    assert _last(admin, topic) == ("anybody", "cancel", 1)


def test_a_delivered_message_is_aborted(browser: Browser, producer: Producer, gateways: Gateways, topic: str) -> None:
    """It asks first; where no consumer has the message any more, it says so."""
    settings = ConsumerSettings(redis_url=gateways.url, prefix=gateways.prefix)
    producer.send(topic, "x", id="a")
    with Consumer(topic, "g", settings=settings) as consumer:
        assert consumer.read(wait=30)
        assert "confirm?what=abort" in browser.get("message", topic=topic, id="a").html
        asked = browser.get(f"confirm?what=abort&id_only=1&topic={topic}&id=a")
        assert "Abort this message?" in asked.text
        assert "aborted" in browser.send(asked, asked.form("do-abort")).text
        assert "not aborted: the message is garbage" in browser.send(asked, asked.form("do-abort")).text


def test_a_dead_letter_is_replayed_edited_and_purged(
    browser: Browser, producer: Producer, admin: Admin, topic: str, kill: Kill
) -> None:
    """An edited body is a new message with the same headers; the dead letter goes."""
    for id in ("a", "b", "c"):
        producer.send(topic, f"body {id}\nsecond line", id=id, headers={"kind": "x"}, ttl=3_600, priority=3)
    kill(topic, 3)
    assert "replayed: 1 copy" in _act(browser, topic, "a", "replay").text
    assert (found := admin.find(topic, "a"))
    assert found.state == "ready"
    page = browser.get("message", topic=topic, id="b")
    form = page.form("do-replay-edited")
    assert form.fields["body"] == "body b\nsecond line"
    edited = browser.send(page, form, body="mended\r\nsecond line")
    assert "sent with the edited body as b.edited-" in edited.text
    assert admin.find(topic, "b") is None
    found = admin.find(topic, edited.query["id"])
    assert found
    assert found.record
    assert found.record.body == b"mended\nsecond line"
    assert (found.record.headers, found.record.ttl_ms, found.record.priority) == ({"kind": "x"}, 3_600_000, 3)
    # Sent twice, as by a reload: one message, and an error that says why.
    again = browser.send(page, form, body="mended\r\nsecond line")
    assert "id must be the id of a dead letter that can be read" in again.text
    asked = browser.get(f"confirm?what=purge&id_only=1&topic={topic}&id=c")
    browser.send(asked, asked.form("do-purge"))
    assert admin.find(topic, "c") is None
    assert _last(admin, topic) == ("anybody", "purge", 1)


def test_no_edited_message_is_taken_for_another(browser: Browser, producer: Producer, topic: str, kill: Kill) -> None:
    """Ids that begin alike, a body that another message was given, too, and an id that is sent again; any length."""
    ids = ["p" * 120 + "-1", "p" * 120 + "-2", "é" * 95, "again", "again"]
    edited = set()
    for id in ids:
        producer.send(topic, "bad", id=id)
        kill(topic, 1)
        page = _act(browser, topic, id, "replay-edited", body="mended")
        assert "sent with the edited body as" in page.text
        edited.add(page.query["id"])
        producer.cancel(topic, page.query["id"])
    assert len(edited) == len(ids)


def test_all_that_match_are_named_and_replayed(
    browser: Browser, producer: Producer, admin: Admin, topic: str, kill: Kill
) -> None:
    """The number is that of the filter, not of the page, and only what matches is changed."""
    producer.send_many(topic, [Message(body="x", id=f"m{n}", headers={"n": str(n % 2)}) for n in range(600)])
    kill(topic, 600)
    for number, where in ((300, {"header": "n=1"}), (300, {})):
        asked = browser.get("confirm", what="replay", topic=topic, state="garbage", **where)
        assert f"{number} garbage messages will be changed" in asked.text, asked.text
        browser.send(asked, asked.form("do-bulk"))
        wait_until(lambda: _ended(admin, topic) == "done", 30)
        assert _last(admin, topic) == ("anybody", "replay all", number)
    assert admin.count_garbage(topic) == 0
    page = browser.get("activity")
    assert "replay all" in page.text
    assert "header=n%3D1" in page.text


def test_what_comes_after_the_number_was_shown_stays(
    browser: Browser, producer: Producer, admin: Admin, topic: str, kill: Kill
) -> None:
    """Whatever the filter is; so it does where the operation is resumed later."""

    def work(what: str, count: int, **where: str) -> None:
        page = browser.get("confirm", what=what, topic=topic, **where)
        assert f"{count} {where['state']} message" in page.text
        more()
        browser.send(page, page.form("do-bulk"))
        wait_until(lambda: _ended(admin, topic) == "done", 30)
        assert _last(admin, topic) == ("anybody", f"{what} all", count)

    def more() -> None:
        producer.send(topic, "x", id=f"late-{time.monotonic_ns()}")
        kill(topic, 1)
        producer.send(topic, "x", delay=3_600)

    for count, where in ((1, {}), (1, {"since": "1h"}), (1, {"body": "x"})):
        producer.send(topic, "x", id="dead")
        kill(topic, 1)
        work("purge", count, state="garbage", **where)
        assert admin.count_garbage(topic) == 1
        admin.purge_all(topic)
    work("cancel", 3, state="waiting")
    work("cancel", 1, state="waiting", body="x")
    assert admin.sizes(topic)[0].waiting == 1
    # An operation that was interrupted, as it is stored.
    where = Selection.of(topic, {"state": "waiting"}, sees_bodies=True)
    stopped = Operation(
        new_operation_id(),
        "anybody",
        "cancel",
        topic,
        replace(where, as_of=admin.server_time()).text,
        1,
        status="stopped",
    )
    admin.save_operation(stopped)
    more()
    page = browser.get("activity")
    browser.send(page, next(form for form in page.forms if form.fields.get("operation") == stopped.id))
    wait_until(lambda: _last(admin, topic)[1:] == ("cancel all", 1), 30)
    assert admin.sizes(topic)[0].waiting == 1


def test_waiting_messages_are_cancelled_moved_and_made_due(
    browser: Browser, producer: Producer, admin: Admin, topic: str
) -> None:
    """Reschedule ends, although what it moves comes again later in the list."""
    producer.send_many(topic, [Message(body="x", id=f"m{n}", delay=3_600 + n) for n in range(450)])
    asked = browser.get("confirm", what="reschedule", topic=topic, state="waiting")
    browser.send(asked, asked.form("do-bulk"), to="2031-01-31T12:00:00+01:00")
    wait_until(lambda: _ended(admin, topic) == "done", 30)
    assert _last(admin, topic) == ("anybody", "reschedule all", 450)
    dues = {message.at_ms for message in admin.messages(topic, "waiting", limit=1_000).messages}  # type: ignore[arg-type]
    assert dues == {1_927_623_600_000}
    asked = browser.get("confirm", what="cancel", topic=topic, state="waiting", id="m1")
    assert "111 waiting messages" in asked.text
    browser.send(asked, asked.form("do-bulk"))
    wait_until(lambda: _last(admin, topic)[1] == "cancel all", 30)
    assert admin.sizes(topic)[0].waiting == 339
    asked = browser.get("confirm", what="due-now", topic=topic, state="waiting")
    browser.send(asked, asked.form("do-bulk"))
    wait_until(lambda: admin.sizes(topic)[0].ready == 339, 30)


def test_an_operation_is_stopped_and_resumed_and_loses_none(
    browser: Browser, producer: Producer, admin: Admin, topic: str, kill: Kill
) -> None:
    """Progress is stored as it runs; whoever asks for its end need not be at the same gateway."""
    # It notices a stop within half a second, and takes more than one for so many.
    count = 25_000
    producer.send_many(topic, [Message(body="x") for _ in range(count)])
    kill(topic, count)
    asked = browser.get("confirm", what="replay", topic=topic, state="garbage", body="x")
    assert "at least" in asked.text
    browser.send(asked, asked.form("do-bulk"))
    running = wait_until(lambda: _operation(admin, topic), 20)
    assert running.status == "running"
    page = browser.get("activity")
    stop = next(form for form in page.forms if form.fields.get("operation") == running.id)
    assert "it stops after its present step" in browser.send(page, stop).text
    wait_until(lambda: _ended(admin, topic) == "stopped", 20)
    done = _operation(admin, topic)
    assert done
    assert 0 < done.done < count
    [sizes] = admin.sizes(topic)
    assert (sizes.garbage, sizes.stored) == (count - done.done, count)
    page = browser.get("activity")
    browser.send(
        page, next(form for form in page.forms if form.action == "do-resume" and form.fields["operation"] == done.id)
    )
    wait_until(lambda: _ended(admin, topic) == "done", 60)
    [sizes] = admin.sizes(topic)
    assert (sizes.garbage, sizes.ready, sizes.stored) == (0, count, count)
    # What is done is not begun again: it would take what came later.
    ended = _operation(admin, topic)
    assert ended
    again = browser.send(page, next(form for form in page.forms if form.action == "do-resume"), operation=ended.id)
    assert (again.status, "ended before it was done" in again.text) == (400, True)


def test_an_operation_that_fails_says_what_it_has_done(
    browser: Browser, producer: Producer, admin: Admin, topic: str, *, kill: Kill, gateways: Gateways
) -> None:
    """One of two shards is damaged."""
    admin.create_topic(topic, shards=2)
    producer.send_many(topic, [Message(body="x") for _ in range(40)])
    kill(topic, 40)
    asked = browser.get("confirm", what="purge", topic=topic, state="garbage")
    damaged = ShardKeys(gateways.prefix, topic, "1").of("failures")
    with plain_client(gateways.url) as client:
        client.set(damaged, "of another program")
        browser.send(asked, asked.form("do-bulk"))
        wait_until(lambda: _ended(admin, topic) == "failed", 30)
        client.delete(damaged)
    purged = 40 - admin.sizes(topic)[0].garbage
    failed = _operation(admin, topic)
    assert failed
    assert 0 < failed.done == purged
    assert _last(admin, topic) == ("anybody", "purge all", purged)


def test_policy_is_changed_field_by_field(browser: Browser, admin: Admin, topic: str) -> None:
    """What was not touched stays a default; an empty field goes back to it; a wrong value changes nothing."""
    admin.create_topic(topic, ttl_ms=60_000)
    page = browser.get("topic", topic=topic)
    after = browser.send(page, page.form("do-policy"), max_retries="3", ttl_ms="", on_expire="drop")
    assert "policy changed:" in after.text
    policy = admin.policy(topic)
    assert (policy.max_retries, policy.ttl_ms, policy.on_expire) == (3, None, "drop")
    assert policy.model_fields_set == {"max_retries", "on_expire"}
    assert _last(admin, topic) == ("anybody", "set policy", 1)
    for changes, text in (
        ({"max_retries": "many"}, "policy field max_retries must be"),
        ({"visibility_ms": "1"}, "policy field visibility_ms must be"),
        ({"backoff": "none"}, "policy field backoff must be"),
        ({"dead_letter_topic": "a/b"}, "policy field dead_letter_topic must be"),
    ):
        refused = browser.send(page, page.form("do-policy"), **changes)
        assert (refused.status, text in refused.text) == (400, True), refused.text
    assert admin.policy(topic) == policy
    # Somebody else has changed another field since the form was shown.
    page = browser.get("topic", topic=topic)
    admin.set_policy(topic, priority=7)
    browser.send(page, page.form("do-policy"), max_retries="4")
    assert (admin.policy(topic).max_retries, admin.policy(topic).priority) == (4, 7)
    page = browser.get("topic", topic=topic)
    assert "nothing to change" in browser.send(page, page.form("do-policy")).text


def test_times_have_units_as_in_commands(browser: Browser, admin: Admin, topic: str) -> None:
    """They are shown so, and read so; a number alone could be seconds or ms, and is refused."""
    admin.create_topic(topic, ttl_ms=5_000_000)
    page = browser.get("topic", topic=topic)
    form = page.form("do-policy")
    shown = {name: form.fields[name] for name in ("visibility_ms", "ttl_ms", "garbage_retention_ms", "expire_idle_ms")}
    assert shown == {
        "visibility_ms": "30s",
        "ttl_ms": "1h23m20s",
        "garbage_retention_ms": "7d",
        "expire_idle_ms": "",
    }
    assert "in ms" not in page.text.partition("Policy")[2]
    browser.send(page, form, visibility_ms="1m30s", backoff_base_ms="250ms", dedup_window_ms="0", ttl_ms="1.5h")
    policy = admin.policy(topic)
    assert (policy.visibility_ms, policy.backoff_base_ms, policy.dedup_window_ms) == (90_000, 250, 0)
    assert policy.ttl_ms == 5_400_000
    page = browser.get("topic", topic=topic)
    for name, typed, text in (
        ("visibility_ms", "30000", "must be a number with its unit, as in 30000ms or 30000s (8h20m); got '30000'"),
        ("visibility_ms", "1ms", "policy field visibility_ms must be 100ms to 1d; got '1ms'"),
        ("ttl_ms", "soon", "policy field ttl_ms must be numbers with units"),
    ):
        refused = browser.send(page, page.form("do-policy"), **{name: typed})
        assert text in refused.text, refused.text
    assert admin.policy(topic) == policy


def test_a_refused_form_keeps_what_was_typed(browser: Browser, admin: Admin, producer: Producer, topic: str) -> None:
    """With the error, on the page of the form, and marked at its field; mended there, it is done."""
    producer.send(topic, "x", id="a", delay=3_600)
    page = browser.get("topic", topic=topic)
    refused = browser.send(page, page.form("do-policy"), max_retries="3", ttl_ms="30", on_expire="drop")
    form = refused.form("do-policy")
    assert (refused.status, form.fields["max_retries"], form.fields["ttl_ms"]) == (400, "3", "30")
    assert form.fields["on_expire"] == "drop"
    assert [given["name"] for _, given in refused.tags if "aria-invalid" in given] == ["ttl_ms"]
    # Somebody else changes a field that was not touched here.
    admin.set_policy(topic, priority=7)
    browser.send(refused, form, ttl_ms="30s")
    policy = admin.policy(topic)
    assert (policy.max_retries, policy.ttl_ms, policy.on_expire, policy.priority) == (3, 30_000, "drop", 7)
    # What only the server knows.
    page = browser.get("topic", topic=topic)
    refused = browser.send(page, page.form("do-policy"), dead_letter_topic=topic, max_retries="4")
    assert (refused.status, refused.form("do-policy").fields["max_retries"]) == (400, "4")

    page = browser.get("message", topic=topic, id="a")
    refused = browser.send(page, page.form("do-reschedule"), when="half past nine")
    assert "when must be" in refused.text
    form = refused.form("do-reschedule")
    assert (refused.status, form.fields["when"]) == (400, "half past nine")
    assert "due 15m" in browser.send(refused, form, when="15m").text

    page = browser.get("confirm", what="reschedule", topic=topic, state="waiting", id="a")
    refused = browser.send(page, page.form("do-bulk"), to="later")
    assert "to must be" in refused.text
    assert (refused.status, refused.form("do-bulk").fields["to"]) == (400, "later")

    page = browser.get("messages", topic=topic, state="waiting", id="a", age="soon")
    assert "age must be" in page.text
    fields = page.form("messages").fields
    assert (page.status, fields["id"], fields["age"]) == (400, "a", "soon")
    page = browser.get("find", id="a" * 201)
    assert (page.status, page.form("find").fields["id"]) == (400, "a" * 201)


def test_many_messages_are_moved_by_a_time_from_now(
    browser: Browser, producer: Producer, admin: Admin, topic: str
) -> None:
    """As one message is; the operation notes the moment."""
    producer.send_many(topic, [Message(body="x", id=f"m{n}", delay=60) for n in range(3)])
    asked = browser.get("confirm", what="reschedule", topic=topic, state="waiting")
    browser.send(asked, asked.form("do-bulk"), to="2d")
    wait_until(lambda: _ended(admin, topic) == "done", 30)
    [due] = {message.at_ms for message in admin.messages(topic, "waiting").messages}
    assert 1.9 < (due - admin.server_facts().now_ms) / 86_400_000 < 2.1


def test_deliveries_are_paused_and_resumed(browser: Browser, producer: Producer, admin: Admin, topic: str) -> None:
    """From the list or the topic's page: nothing becomes ready meanwhile, and all of it afterwards."""
    producer.send(topic, "x", id="before")
    # The list is as old as the latest sample.
    wait_until(lambda: any(form.action == "do-pause" for form in browser.get(q=topic).forms), 20)
    page = browser.get(q=topic)
    assert f"{topic} is paused" in browser.send(page, page.form("do-pause")).text
    assert admin.policy(topic).paused
    producer.send(topic, "x", id="after")
    assert admin.status(topic)[0].ready == 1
    page = browser.get("topic", topic=topic)
    assert "Deliveries are paused" in page.text
    assert f"{topic} is resumed" in browser.send(page, page.form("do-pause")).text
    assert _last(admin, topic) == ("anybody", "resume", 1)
    wait_until(lambda: admin.status(topic)[0].ready == 2, 20, what="what was sent during the pause")


def test_wrong_forms_change_nothing(browser: Browser, producer: Producer, admin: Admin, topic: str) -> None:
    """One clear error each."""
    producer.send(topic, "x", id="a", delay=60)
    page = browser.get("messages", topic=topic)
    base = browser.get("message", topic=topic, id="a").form("do-due-now")
    for form, changes, text in (
        (base, {"id": ""}, "id must be"),
        (base, {"topic": "a b"}, "topic must be"),
        (base, {"topic": "nowhere"}, "nowhere"),
    ):
        assert text in browser.send(page, form, **changes).text
    for path in ("confirm?what=dance", "confirm?what=replay&state=waiting", "confirm?what=replay&state=all"):
        assert browser.get(f"{path}&topic={topic}").status == 400
    found = admin.find(topic, "a")
    assert found
    assert found.state == "waiting"


def test_what_was_done_is_said_where_it_cannot_be_noted(
    browser: Browser, producer: Producer, gateways: Gateways, topic: str
) -> None:
    """Whatever the error of the note is: another program has put another type into its key."""
    producer.send(topic, "x", id="a", delay=3_600)
    key = activity_key(gateways.prefix)
    with plain_client(gateways.url) as client:
        client.delete(key)
        client.set(key, "of another type")
        try:
            answered = _act(browser, topic, "a", "reschedule", when="2h")
            assert "due 2h" in answered.text, (answered.status, answered.url, answered.text)
        finally:
            client.delete(key)
