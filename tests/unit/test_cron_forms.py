"""Cron expressions as people paste them: each is read with its own meaning, or refused by the name of its form."""

import pytest

from lisa_common.errors import InvalidInput
from lisa_common.model.rhythm import check_cron, explain_cron

NOW = 1_795_000_000_000

READ = [
    ("30 2 * * mon-fri", "30 2 * * MON-FRI", "At 02:30 on Monday through Friday"),
    ("\t30  2\n* * *\r\n", "30 2 * * *", "At 02:30 every day"),
    ("30\N{NO-BREAK SPACE}2 * * *", "30 2 * * *", "At 02:30 every day"),
    ("@Daily", "0 0 * * *", "At 00:00 every day"),
    ("0 0 * * 7", "0 0 * * 7", "At 00:00 on Sunday"),
    ("0 0 * * sat-sun", "0 0 * * SAT-7", "At 00:00 on Saturday and Sunday"),
    ("0 0 * * SUN-TUE", "0 0 * * SUN-TUE", "At 00:00 on Sunday through Tuesday"),
    ("0 0 * * FRIL", "0 0 * * 5L", "At 00:00 on the last Friday of the month"),
    ("0 0 * * MON#2", "0 0 * * MON#2", "At 00:00 on the second Monday of the month"),
    ("0 0 * JUL-9 *", "0 0 * JUL-9 *", "At 00:00 in every month from July through September"),
    ("0 0 LW * *", "0 0 LW * *", "At 00:00 on the last weekday of every month"),
    ("5/15 * * * *", "5/15 * * * *", "Every 15th minute from 5 through 59 of every hour"),
    ("*/60 */24 * * *", "*/60 */24 * * *", "Every 60th minute past every 24th hour"),
    ("0 0 13 * FRI", "0 0 13 * FRI", "At 00:00 either on the 13th day of month or on Friday"),
    ("0 0 */2 * MON", "0 0 */2 * MON", "At 00:00 on every second day of month if it's on Monday"),
    ("0 0 1-31 * MON", "0 0 1-31 * MON", "At 00:00 every day"),
    ("0 0 13 6 0-6", "0 0 13 6 0-6", "At 00:00 every day in June"),
]

REFUSED = [
    ("0 0 12 ? * MON-FRI", "this is Quartz's form; write 0 12 * * MON-FRI"),
    ("0 0 12 ? * 2-6", "this is Quartz's form; write 0 12 * * MON-FRI"),
    ("0 0 12 1 * ? *", "this is Quartz's form; write 0 12 1 * *"),
    ("0 0 12 1 1 ? 2027", "this is Quartz's form; write 0 12 1 1 *, with start and until for the year"),
    ("0/30 0 12 ? * *", "this is Quartz's form; write 0/30 0 12 * * *"),
    ("0 0 12 ? * 6L", "this is Quartz's form; write 0 12 * * FRIL"),
    ("0 0 12 ? * 6#3", "this is Quartz's form; write 0 12 * * FRI#3"),
    ("0 0 12 ? * 2/2", "this is Quartz's form; write 0 12 * * MON-SAT/2"),
    ("0 0 12 ? * L", "this is Quartz's form; write 0 12 * * SAT"),
    ("0 0 12 ? * 9", "this is Quartz's form)"),
    ("0 0 15W * *", "this is Quartz's form; cron has neither W for the nearest weekday nor days before L"),
    ("0 0 12 L-3 * ?", "this is Quartz's form; cron has neither W for the nearest weekday nor days before L"),
    ("0 0 ? * MON", "this is Quartz's form; write 0 0 * * MON"),
    ("0 0 ? * 2-6", "write * for ?, and names of weekdays, which count from 0 here and from 1 there"),
    ("0 12 ? * 2-6 *", "this is EventBridge's form; write 0 12 * * MON-FRI"),
    ("cron(0/15 9 * * ? *)", "this is EventBridge's form; write 0/15 9 * * *"),
    ("0 12 * * MON 2027", "this is EventBridge's form; write 0 12 * * MON, with start and until for the year"),
    ("rate(5 minutes)", "this is EventBridge's form; give every in place of cron"),
    ("at(2027-01-01T00:00:00)", "this is EventBridge's form of one moment"),
    ("@every 1h30m", "this is Go's form; give every in place of cron"),
    ("@every 1.5h", "this is Go's form; give every in place of cron"),
    ("every 30 seconds", "this is a period; give every in place of cron"),
    ("@reboot", "nicknames are @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly"),
    ("weekly", "this is systemd's form; write 0 0 * * MON"),
    ("Mon..Fri *-*-* 10:00", "this is systemd's form"),
    ("RRULE:FREQ=DAILY;BYHOUR=9", "this is iCalendar's form"),
    ("R/2027-01-01T00:00:00Z/P1DT2H", "this is ISO 8601's form; give every in place of cron"),
    ("P1M", "this is ISO 8601's form; give every in place of cron"),
    ("H(0-29)/10 * * * *", "this is Jenkins' form; write a number in place of H"),
    ("0~59 * * * *", "this is OpenBSD's form; write a number"),
    ("CRON_TZ=Asia/Tokyo 0 5 * * *", "give the zone as tz, not before the fields"),
    ("0 5 * * * Europe/Berlin", "give the zone as tz, not behind the fields"),
    ("0 5 * * * root /usr/bin/backup", "(it has 7)"),
    ("0 0 12 * * MONDAY", "bad day-of-week"),
    ("*/90 * * * *", "bad minute: the step of */90 is larger than its 60 values)"),
    ("0-29/40 * * * *", "bad minute: the step of 0-29/40 is larger than its 30 values"),
    ("0 0 * * */8", "bad day-of-week: the step of */8 is larger than its 7 values"),
    ("*/0 * * * *", "bad minute: a step is 0"),
    ("0 22-2 * * *", "bad hour: the range 22-2 goes down)"),
    ("0 0 * * FRI-MON", "bad day-of-week: the range FRI-MON goes down)"),
    ("0 0 * * 6-0", "bad day-of-week: the range 6-0 goes down)"),
    ("0 22-2/2 * * *", "bad hour: the range 22-2 goes down)"),
    ("0 0 * * L", "bad day-of-week: L needs a weekday, as in FRIL"),
    ("1,,2 * * * *", "bad minute: an item is empty"),
    ("0 9 * * MON, FRI", "a list has no spaces"),
    ("0 9 * * MON\N{EN DASH}FRI", "is EN DASH"),
    ("0\N{ZERO WIDTH SPACE} 9 * * *", "is ZERO WIDTH SPACE"),
    ("0 0 31 2,4 *", "its months have no such day"),
    ("* * * *", "(it has 4)"),
    ("0 0 L/2 * *", "bad day-of-month"),
    ("*/5/2 * * * *", "bad minute"),
]


@pytest.mark.parametrize(("given", "stored", "words"), READ)
def test_cron_is_read_in_one_form(given: str, stored: str, words: str) -> None:
    """In upper case with single spaces; the words say what it means, as either of two days."""
    assert check_cron(given, "UTC", now_ms=NOW) == stored
    assert explain_cron(stored) == words


@pytest.mark.parametrize(("given", "reason"), REFUSED)
def test_other_forms_are_refused_by_name(given: str, reason: str) -> None:
    """In one line, with what to write; that is an expression of Lisa's own."""
    with pytest.raises(InvalidInput) as refused:
        check_cron(given, "UTC", now_ms=NOW)
    told = str(refused.value)
    assert told.startswith("cron must be five fields, as in 30 2 * * MON-FRI, or six with the seconds first (")
    assert reason in told
    assert "\n" not in told
    if "form; write " in reason and reason.split("write ")[1][0] in "0123456789*":
        written = reason.split("write ")[1].partition(", with")[0]
        assert check_cron(written, "UTC", now_ms=NOW) is not None
