"""Messages of schedules beside their ticks: one now, or those of a range once more."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from lisa_common.errors import InvalidInput, Refused, Resharded, Verbatim
from lisa_common.model.localtime import iso_of
from lisa_common.model.message import Outgoing
from lisa_common.model.schedule import Schedule
from lisa_common.model.sharding import by_shard
from lisa_common.protocol import producing
from lisa_common.protocol.call import Flow
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import Topics
from lisa_common.validation import moment_ms
from lisa_manager.admin.schedules.states import read_schedule
from lisa_manager.resharding import known_in_former

__all__ = ["Backfilled", "backfill", "run_now"]

_AT_ONCE: Final = 200
_MOST: Final = 100_000
"""Most ticks of one backfill."""

_AHEAD_MS: Final = 60_000
"""By so much the caller's clock may be ahead of the server's, for an end that means now."""

_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Backfilled:
    """The result of a backfill."""

    ticks: int
    """Ticks in the range."""
    sent: int
    """Messages sent; the others were sent by an earlier backfill, and the dedup window still knows them."""


def run_now(topics: Topics, topic: str, name: str) -> Flow[str]:
    """Sends the message of a schedule now, in addition to its ticks. Returns its id."""
    schedule = yield from _existing(topics, topic, name)
    now_ms: int = yield server_time()
    id = f"{name}@now-{secrets.token_hex(8)}"
    yield from _send(topics, schedule, [(id, now_ms)], caught_up=False)
    return id


def backfill(topics: Topics, topic: str, name: str, start: datetime, end: datetime) -> Flow[Backfilled]:
    """Sends the ticks of a range once more, or for the first time. Raises InvalidInput for a future or too long one."""
    from_ms, to_ms = moment_ms("from", start), moment_ms("to", end)
    schedule = yield from _existing(topics, topic, name)
    now_ms: int = yield server_time()
    if to_ms > now_ms + _AHEAD_MS:
        raise InvalidInput("to", Verbatim(iso_of(to_ms)), "a time up to now")
    if from_ms > to_ms:
        raise InvalidInput("from", Verbatim(iso_of(from_ms)), "a time up to that of to")
    ticks = list(islice(_between(schedule, from_ms, min(to_ms, now_ms)), _MOST + 1))
    if len(ticks) > _MOST:
        span = Verbatim(f"{iso_of(from_ms)} to {iso_of(to_ms)}")
        raise InvalidInput("range", span, f"one of at most {_MOST} ticks")
    sent = 0
    for at in range(0, len(ticks), _AT_ONCE):
        page = [(f"{name}@{iso_of(tick)}", tick) for tick in ticks[at : at + _AT_ONCE]]
        sent += yield from _send(topics, schedule, page, caught_up=True)
    return Backfilled(len(ticks), sent)


def _existing(topics: Topics, topic: str, name: str) -> Flow[Schedule]:
    state = yield from read_schedule(topics, topic, name)
    if state.schedule is None:
        raise InvalidInput("stored schedule", Verbatim(state.damage), "one that Lisa has written; set it again")
    return state.schedule


def _between(schedule: Schedule, from_ms: int, to_ms: int) -> Iterator[int]:
    for tick in schedule.ticks_after(from_ms - 1):
        if tick > to_ms:
            return
        yield tick


def _send(topics: Topics, schedule: Schedule, ticks: Sequence[tuple[str, int]], *, caught_up: bool) -> Flow[int]:
    """Sends messages of a schedule with ids of their own. Returns how many were new."""
    yield from topics.resolve(schedule.topic)
    layout = yield from topics.declare(schedule.topic)
    sent = 0
    for _ in range(_TRIES):
        try:
            known = yield from known_in_former(layout, [id for id, _ in ticks])
            messages = [
                Outgoing(id, "+0", schedule.content(layout.policy, tick, caught_up=caught_up))
                for id, tick in ticks
                if id not in known
            ]
            for keys, part in by_shard(messages, lambda message: layout.home(message.id)).items():  # noqa: B023
                dues: list[int] = yield producing.send(keys, part, repeatable=True)
                sent += sum(1 for due in dues if due)
        except Resharded:
            layout = yield from topics.resolve_again(schedule.topic)
        else:
            return sent
    raise Refused(f"{schedule.topic} was resharded, and the registry does not say where new messages go")
