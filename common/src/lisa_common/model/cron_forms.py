"""Cron expressions as people paste them: read into one form, or refused with the name of the form that they have.

Other programs write like cron and mean something else: Quartz and EventBridge count weekdays from 1, for example. So
nothing of theirs is guessed; the error says what to write.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

__all__ = ["read_expression"]

_NICKNAMES: Final = {
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
    "@MONTHLY": "0 0 1 * *",
    "@WEEKLY": "0 0 * * 0",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@HOURLY": "0 * * * *",
}
_OF_SYSTEMD: Final = {
    "MINUTELY": "* * * * *",
    "HOURLY": "0 * * * *",
    "DAILY": "0 0 * * *",
    "WEEKLY": "0 0 * * MON",
    "MONTHLY": "0 0 1 * *",
    "QUARTERLY": "0 0 1 1,4,7,10 *",
    "SEMIANNUALLY": "0 0 1 1,7 *",
    "YEARLY": "0 0 1 1 *",
    "ANNUALLY": "0 0 1 1 *",
}
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_FIVE, _SIX, _SEVEN = 5, 6, 7
_SUNDAY = 7
"""Sunday at the end of a range; elsewhere it is 0, too."""


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: Sequence[str] = ()

    def number(self, text: str) -> int:
        """The number that a text stands for."""
        number = self.low + self.names.index(text) if text in self.names else int(text) if text.isdigit() else -1
        if not self.low <= number <= self.high:
            raise ValueError
        return number


_FIELDS: Final = (
    _Field("second", 0, 59),
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day-of-month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day-of-week", 0, _SUNDAY, _DAYS),
)
_ITEM = re.compile(r"(\*(?!-)|[0-9A-Z]+)(?:-([0-9A-Z]+))?(?:/([0-9]+))?")
_OF_MONTH = re.compile(r"([0-9A-Z]+)(L|#[1-5])")
_OF_QUARTZ = r"[0-9]W|(?<![A-Z])L-[0-9]"


def read_expression(text: str) -> str:
    """An expression in upper case with single spaces, nicknames replaced.

    Raises ValueError, whose text says why it cannot be read, and what to write for one in another program's form.
    """
    text = " ".join(text.split())
    if reason := _form_of(text):
        raise ValueError(reason)
    fields = _NICKNAMES.get(text.upper(), text.upper()).split()
    if len(fields) not in {_FIVE, _SIX}:
        raise ValueError(f"it has {len(fields)}" if text else "it is empty")
    return " ".join(_read_field(field, each) for field, each in zip(_FIELDS[-len(fields) :], fields, strict=True))


def _read_field(field: _Field, text: str) -> str:
    try:
        return ",".join(_read_item(field, item) for item in text.split(","))
    except ValueError as error:
        raise ValueError(f"bad {field.name}" + (f": {error}" if str(error) else "")) from None


def _read_item(field: _Field, text: str) -> str:
    if not text:
        raise ValueError("an item is empty")
    if field.name == "day-of-month" and text in {"L", "LW"}:
        return text
    if field.name == "day-of-week" and (of_month := _OF_MONTH.fullmatch(text)):
        day = field.number(of_month[1])
        # CronSim reads no name before L.
        return f"{day}L" if text.endswith("L") else text
    if field.name == "day-of-week" and text == "L":
        raise ValueError("L needs a weekday, as in FRIL")
    item = _ITEM.fullmatch(text)
    if item is None:
        raise ValueError
    first, last, step = item.groups()
    low = field.low if first == "*" else field.number(first)
    high = field.number(last) if last else field.high if step or first == "*" else low
    if last == "SUN" and low:
        high, text = _SUNDAY, text.replace("-SUN", f"-{_SUNDAY}")
    if low > high:
        raise ValueError(f"the range {first}-{last} goes down")
    if step:
        _check_step(field, text, int(step), high - low + 1)
    return text


def _check_step(field: _Field, text: str, step: int, size: int) -> None:
    size = min(size, len(field.names) or size)
    if not step:
        raise ValueError("a step is 0")
    if step > size:
        raise ValueError(f"the step of {text} is larger than its {size} values")


_EVERY: Final = "give every in place of cron"

_FORMS: Final[Sequence[tuple[str, Callable[[re.Match[str]], str]]]] = (
    (r"CRON\((.*)\)", lambda found: _of_quartz(found[1].split(), "EventBridge")),
    (r"RATE\(.*\)", lambda _: f"this is EventBridge's form; {_EVERY}"),
    (r"AT\(.*\)", lambda _: "this is EventBridge's form of one moment; send one message with at"),
    (r"@EVERY .*", lambda _: f"this is Go's form; {_EVERY}"),
    (r"(?:EVERY )?(?:[0-9]+ ?[SMHDW][A-Z]* ?)+", lambda _: f"this is a period; {_EVERY}"),
    (r"(?:RRULE:|DTSTART|FREQ=).*", lambda _: "this is iCalendar's form"),
    (r"(?:R[0-9]*/.*)?P[0-9T].*", lambda _: f"this is ISO 8601's form; {_EVERY}"),
    ("|".join(_OF_SYSTEMD), lambda found: f"this is systemd's form; write {_OF_SYSTEMD[found[0]]}"),
    (r"(?:.* )?(?:\*|[0-9]{4})-.*|.*[0-9*]:[0-9*].*|[A-Z]+\.\..*", lambda _: "this is systemd's form"),
    (r"(?:CRON_)?TZ=([^ ]*) .*", lambda _: "give the zone as tz, not before the fields"),
    (r"(?:[^ ]+ ){5,6}(?:[A-Z]+/[A-Z0-9_/+-]+|UTC|GMT)", lambda _: "give the zone as tz, not behind the fields"),
    (r"(?:.* )?H[^ A-Z]*(?: .*)?", lambda _: "this is Jenkins' form; write a number in place of H, or give jitter"),
    (
        r".*[0-9* ]~.*|~.*",
        lambda _: "this is OpenBSD's form; write a number for the random one, or give jitter",
    ),
    (r".*(?:, | ,).*", lambda _: "a list has no spaces"),
    (r"@.*", lambda _: f"nicknames are {', '.join(_NICKNAMES).lower()}"),
)


def _form_of(text: str) -> str | None:
    """Why a text is no expression of cron, and what to write, for the forms of other programs."""
    if strange := next((each for each in text if not each.isascii()), None):
        return f"{strange!r} is {unicodedata.name(strange, 'no letter')}"
    text = text.upper()
    if text in _NICKNAMES:
        return None
    for pattern, reason in _FORMS:
        if found := re.fullmatch(pattern, text):
            return reason(found)
    fields = text.split()
    has_year = len(fields) == _SIX and re.search(r"[0-9]{4}", fields[-1])
    is_long = len(fields) in {_FIVE, _SIX} or (len(fields) == _SEVEN and re.fullmatch(r"[-0-9*,/?]+", fields[-1]))
    if is_long and ("?" in text or len(fields) == _SEVEN or has_year or re.search(_OF_QUARTZ, text)):
        is_amazons = len(fields) == _SIX and (has_year or "?" in (fields[2], fields[4]))
        return _of_quartz(fields, "EventBridge" if is_amazons else "Quartz")
    return None


def _of_quartz(fields: Sequence[str], program: str) -> str:
    """Returns advice for fields of Quartz (seconds first) or EventBridge (year last)."""
    reason = f"this is {program}'s form"
    if re.search(_OF_QUARTZ, " ".join(fields)):
        return f"{reason}; cron has neither W for the nearest weekday nor days before L"
    second, year = "0", "*"
    if program == "EventBridge":
        fields, year = fields[:_FIVE], fields[_FIVE] if len(fields) > _FIVE else "*"
    elif len(fields) > _FIVE:
        second, fields, year = fields[0], fields[1:_SIX], fields[_SIX] if len(fields) > _SIX else "*"
    elif re.search(r"[0-9]", fields[-1]):
        return f"{reason}; write * for ?, and names of weekdays, which count from 0 here and from 1 there"
    try:
        *others, day = fields
        written = " ".join([*([] if second == "0" else [second]), *others, _named_days(day)]).replace("?", "*")
        read_expression(written)
    except (LookupError, ValueError):
        return reason
    return f"{reason}; write {written}" + ("" if year in {"*", "?"} else ", with start and until for the year")


def _named_days(text: str) -> str:
    """Weekdays of Quartz, which count from 1 for Sunday, by their names."""
    text = re.sub(r"(?<![#/0-9])[0-9]+", lambda found: _DAYS[int(found[0]) - 1] if found[0] != "0" else "", text)
    text = re.sub(r"(?<![-A-Z])([A-Z]{3})/", r"\1-SAT/", text)
    return "SAT" if text == "L" else text
