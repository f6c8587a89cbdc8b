"""Where the keys alone say that messages stand: no script and no model is asked."""

from collections.abc import Iterator
from typing import Any

from lisa_common.model.keys import NO_GROUP, split_copy
from lisa_common.model.record import is_cancelled, unpack_record
from support.queue import Contents

__all__ = ["facts", "order", "places", "shown"]

Copy = tuple[str, str]


def places(contents: Contents) -> dict[Copy, list[str]]:
    """The places of each copy, as (id, group). A message that no group had yet has one copy, of no group."""
    found: dict[Copy, list[str]] = {}
    for copy, place in (*_in_zsets(contents), *_in_stream(contents)):
        found.setdefault(copy, []).append(place)
    return found


def _in_zsets(contents: Contents) -> Iterator[tuple[Copy, str]]:
    for id in contents.waiting:
        yield (id, NO_GROUP), "waiting"
    for name, members in (("retry", contents.retry), ("garbage", contents.garbage)):
        for member in members:
            group, id = split_copy(member)
            yield (id, group), name


def _in_stream(contents: Contents) -> Iterator[tuple[Copy, str]]:
    for entry, fields in contents.stream.items():
        if not _is_current(contents, fields):
            continue
        for group in [fields["g"]] if "g" in fields else contents.groups or [NO_GROUP]:
            state = contents.groups.get(group)
            if state and entry in state.pending:
                yield (fields["id"], group), "delivered"
            elif group == NO_GROUP or (state and order(entry) > order(state.last)):
                yield (fields["id"], group), "ready"


def _is_current(contents: Contents, fields: dict[str, str]) -> bool:
    data = contents.records.get(fields["id"])
    if data is None:
        return False
    due_ms = int.from_bytes(data[7:13], "big") if is_cancelled(data) else unpack_record(data).due_ms
    return due_ms == int(fields["due"])


def order(entry: str) -> tuple[int, ...]:
    """Entry ids as they follow each other: 9-0 before 10-0."""
    return tuple(map(int, entry.split("-")))


def facts(data: bytes) -> tuple[Any, ...] | None:
    """What a record says, None for a cancelled one."""
    if is_cancelled(data):
        return None
    record = unpack_record(data)
    return record.due_ms, record.ttl_ms, record.max_retries, record.priority, record.body


def shown(fields: dict[str, str]) -> tuple[str, int, str | None, int]:
    """An entry as the model has it."""
    return fields["id"], int(fields["n"]), fields.get("g"), int(fields.get("at", fields["due"]))
