"""Schedules: the list, one with its next runs, and the actions."""

from lisa_manager import Admin
from support.pages import Browser


def test_schedules_are_listed_paused_run_and_skipped(browser: Browser, admin: Admin, topic: str) -> None:
    """Each action is noted, and says what it did."""
    name = f"nightly-{topic}"
    admin.create_topic(topic)
    admin.set_schedule(topic, name, every=3_600, body={"id": 7}, headers={"kind": "<b>"})
    page = browser.get("schedules", q=topic)
    assert "1 of" in page.text
    assert "Every hour" in page.text
    assert "sent ahead" in page.text
    one = browser.get("schedule", topic=topic, name=name)
    runs = admin.schedule(topic, name).next_ticks(10)
    assert sum("data-ms" in given and int(given["data-ms"]) in runs for _, given in one.tags) >= 10
    assert "<b>" in one.text
    assert "1, with the message of the next run" in one.text
    assert "none of this rhythm yet" in one.text
    assert "skip" in browser.send(one, one.form("do-skip")).form("do-skip").action
    assert "paused" in browser.send(one, one.form("do-pause-schedule")).text
    state = admin.schedule(topic, name).schedule
    assert state
    assert state.paused
    after = browser.get("schedule", topic=topic, name=name)
    assert "with the message of the next run" not in after.text
    assert "sent as" in browser.send(after, after.form("do-run-now")).text
    browser.send(after, after.form("do-resume-schedule"))
    noted = [each.what for each in admin.activity() if each.topic == topic]
    assert noted == ["resume schedule", "run now", "pause schedule", "skip"]
    assert browser.get("schedule", topic=topic, name="nowhere").status == 404
