"""Moves the schedules of a development version, which kept them in one hash, to their topics.

No manager of that version may run any more. The release after this one has no part of this.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import astuple
from functools import lru_cache
from typing import Any
from zlib import crc32

from lisa_common.logs import event
from lisa_common.model.keys import ShardKeys, schedules_key, text_of
from lisa_common.model.schedule import Definition, Mark, Schedule
from lisa_common.protocol import producing
from lisa_common.protocol.call import Flow, command
from lisa_common.protocol.consuming import server_time
from lisa_common.protocol.registry import Topics
from lisa_common.protocol.replies import pairs
from lisa_common.protocol.schedules import get_mark, write_schedule
from lisa_common.protocol.scheduling import find_home

__all__ = ["migrate_schedules"]

logger = logging.getLogger(__name__)


def migrate_schedules(topics: Topics) -> Flow[int]:
    """Moves what can be read, in steps that anybody may repeat. Returns the number of moved schedules."""
    key = schedules_key(topics.prefix)
    stored: list[bytes] = yield command("HGETALL", key)
    count = 0
    for field, text in pairs(stored):
        name = text_of(field)
        if name:
            try:
                fields = json.loads(text)
                count += yield from _migrate(topics, name, fields)
            except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:  # InvalidInput is one
                _log_once(name, str(error))
                continue
        yield command("HDEL", key, field)
    return count


@lru_cache(maxsize=10_000)
def _log_once(name: str, error: str) -> None:
    fields = event("schedule_damaged", schedule=name, error=error)
    logger.error("damaged schedule %r, which is not moved: %s", name, error, extra=fields)


def _migrate(topics: Topics, name: str, fields: Mapping[str, Any]) -> Flow[int]:
    loaded = fields.get("schedule")
    for topic in fields.get("left", {}):
        yield from _latest_mark(topics, topic, name)
    if loaded is None:
        return 0
    schedule = Schedule.load(loaded["topic"], name, {key: loaded[key] for key in loaded if key != "topic"})
    version, since_ms = int(fields["version"]), int(fields.get("since", 0))
    yield from topics.resolve_again(schedule.topic)
    layout = yield from topics.declare(schedule.topic)
    home = yield from find_home(layout)
    keys = layout.shards[0] if home.clock is None else home.keys
    mark = yield from _latest_mark(topics, schedule.topic, name, home=keys)
    if mark is None:
        mark = Mark(version, since_ms, since_ms, 0, 0, 0, "-")
    stored = f"{version} {since_ms} ".encode() + schedule.stored_form()
    # The definition last, as a mark alone does nothing.
    yield command("HSETNX", keys.of("ticks"), name, " ".join(map(str, astuple(mark))))
    yield command("HSETNX", keys.of("schedules"), name, stored)
    # A new version, so that all managers see it.
    definition = Definition(schedule, version, since_ms)
    yield write_schedule(keys, name, stored, before=definition, after=schedule, first=True)
    return 1


def _latest_mark(topics: Topics, topic: str, name: str, home: ShardKeys | None = None) -> Flow[Mark | None]:
    """The latest mark of a schedule. Takes back what was sent ahead elsewhere; the marks there do nothing any more."""
    layout = yield from topics.resolve(topic)
    latest: Mark | None = None
    for shards in (layout.shards, *layout.former.values()):
        # Where that version kept the mark.
        keys = shards[crc32(name.encode()) % len(shards)]
        mark, now_ms = yield [get_mark(keys, name), server_time()]
        if mark is None:
            continue
        if keys != home and mark.is_ahead(now_ms):
            yield producing.cancel(keys, [mark.id])
            mark = Mark(mark.version, mark.base_ms, mark.base_ms, 0, mark.sent - 1, mark.skipped, "-")
        if latest is None or mark.last_ms > latest.last_ms:
            latest = mark
    return latest
