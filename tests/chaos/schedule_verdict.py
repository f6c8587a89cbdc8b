"""Compares the messages of a run's schedules with the ticks that each change should have had: multiples of its period.

It shares no code with the product, but for reading messages.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from chaos.schedules import Changes, Version, layout_of
from lisa_common.client.connection import Connection
from lisa_common.model.record import unpack_record
from lisa_common.protocol.call import command

__all__ = ["Sent", "Verdict", "judge", "read_messages", "tick_ms_of"]


@dataclass(frozen=True, slots=True)
class Sent:
    """A message of a tick."""

    tick_ms: int
    number: int
    ready_ms: int


def tick_ms_of(headers: Mapping[str, str]) -> int:
    """The tick of a schedule's message, in ms."""
    return round(datetime.fromisoformat(headers["lisa-tick"]).timestamp() * 1000)


def read_messages(url: str, prefix: str, topics: Sequence[str]) -> dict[str, list[Sent]]:
    """All messages of ticks that ever became ready, by schedule. Nobody has consumed any."""
    sent: dict[str, list[Sent]] = defaultdict(list)
    with Connection(url) as connection:
        for topic in topics:
            for keys in layout_of(connection, prefix, topic).ever:
                entries: list[Any] = connection.call(command("XRANGE", keys.of("ready"), "-", "+"))
                for entry, values in entries:
                    id = values[1].decode()
                    record = unpack_record(connection.call(command("HGET", keys.of("messages"), id)))
                    number = int(record.body.split()[1])
                    ready_ms = int(entry.split(b"-")[0])
                    sent[record.headers["lisa-schedule"]].append(Sent(tick_ms_of(record.headers), number, ready_ms))
    return sent


@dataclass(slots=True)
class Verdict:
    """What was found."""

    expected: int = 0
    sent: int = 0
    violations: list[str] = field(default_factory=list)


def judge(changes: Changes, sent: dict[str, list[Sent]], end_ms: int) -> Verdict:
    """Compares the ticks that were to be sent until the end of the run with those that were."""
    verdict = Verdict(sent=sum(map(len, sent.values())))
    for name, versions in changes.versions.items():
        _judge_one(name, versions, sent.get(name, []), end_ms, verdict)
    return verdict


def _judge_one(  # noqa: C901, PLR0912 - one branch for each promise
    name: str, versions: list[Version], sent: list[Sent], end_ms: int, verdict: Verdict
) -> None:
    def report(text: str) -> None:
        verdict.violations.append(f"{name}: {text}")

    ticks = Counter(message.tick_ms for message in sent)
    for tick_ms, count in ticks.items():
        if count > 1:
            report(f"tick {tick_ms} was sent {count} times")
    for message in sent:
        if message.ready_ms < message.tick_ms:
            report(f"tick {message.tick_ms} was ready {message.tick_ms - message.ready_ms} ms early")
    for at, version in enumerate(versions):
        following = versions[at + 1] if at + 1 < len(versions) else None
        until_ms = following.since_ms if following else end_ms
        known_until_ms = following.known_ms if following else math.inf
        same = {message.tick_ms for message in sent if message.number == version.number}
        numbers = {each.number for each in versions[: at + 1]}
        # Other versions with the same number differ only in being paused.
        alike = [each for each in versions if each.number == version.number]
        for tick_ms in same if version is alike[0] else ():
            if tick_ms <= version.since_ms and at and versions[at - 1].period_ms != version.period_ms:
                report(f"tick {tick_ms} is of change {version.number}, which was written only at {version.since_ms}")
            last = alike[-1]
            after = versions[versions.index(last) + 1] if versions.index(last) + 1 < len(versions) else None
            if after is not None and tick_ms > after.known_ms:
                report(f"tick {tick_ms} is of change {version.number}, which was replaced by {after.known_ms}")
        if version.period_ms is None:
            quiet = [t for t in ticks if version.known_ms < t <= until_ms]
            for tick_ms in quiet:
                report(f"tick {tick_ms} came while it was paused or deleted, {version.known_ms} to {until_ms}")
            continue
        first = (version.known_ms // version.period_ms + 1) * version.period_ms
        for tick_ms in range(first, until_ms + 1, version.period_ms):
            verdict.expected += 1
            if tick_ms not in ticks:
                report(f"tick {tick_ms} of change {version.number} is missing ({version.since_ms} to {until_ms})")
        for tick_ms in (t for t in ticks if version.known_ms < t <= min(until_ms, known_until_ms)):
            if tick_ms % version.period_ms:
                report(f"tick {tick_ms} is none of change {version.number}, with a period of {version.period_ms}")
        for message in sent:
            # A tick that is late, and still waits as the body changes, has the new one.
            is_of_it = version.known_ms < message.tick_ms and message.ready_ms <= until_ms
            if is_of_it and message.number not in numbers:
                report(f"tick {message.tick_ms} has the body of change {message.number}, not of {version.number}")
