"""Sorts entries that were read into deliveries and entries that must not be delivered."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lisa_common.model.delivery import Delivery, Entry, delivery_of, plain_deliveries
from lisa_common.model.follow_up import FollowUps
from lisa_common.model.keys import ShardKeys
from lisa_common.model.record import UnreadableRecord, is_cancelled, unpack_record
from lisa_common.protocol.consuming import Nack

__all__ = ["Sorted", "sort_entries"]


@dataclass(slots=True)
class Sorted:
    """The entries of one read from one shard, sorted by what to do with them."""

    deliveries: list[Delivery] = field(default_factory=list)
    skip: list[Entry] = field(default_factory=list)
    unreadable: list[Nack] = field(default_factory=list)


def sort_entries(
    keys: ShardKeys,
    group: str,
    entries: Sequence[Entry],
    records: Sequence[bytes | None],
    now_ms: int,
    *,
    max_retries: int | None = None,
    follow_ups: FollowUps | None = None,
) -> Sorted:
    """Sorts entries that a group read, by their records; `now_ms` is the server's time, `max_retries` the topic's."""
    plain = plain_deliveries(keys, group, entries, records, max_retries, follow_ups=follow_ups)
    if all(plain):
        return Sorted(plain)  # type: ignore[arg-type] # there is no None in it, and a cast would be a call
    result = Sorted()
    for entry, data, delivery in zip(entries, records, plain, strict=True):
        if delivery:
            result.deliveries.append(delivery)
            continue
        if entry.id is None or data is None or entry.group not in (None, group):
            result.skip.append(entry._replace(id=None))
            continue
        try:
            record = unpack_record(data)
        except UnreadableRecord as error:
            if is_cancelled(data):
                result.skip.append(entry)
            else:
                result.unreadable.append(Nack(entry, f"unreadable record: {error}", rejected=True))
            continue
        if record.due_ms != entry.due_ms or entry.made_ms < record.sent_ms:
            # The entry of an earlier message with the same id, which may have been due at the same time.
            result.skip.append(entry._replace(id=None))
        elif record.ttl_ms is not None and record.due_ms + record.ttl_ms <= now_ms:
            result.skip.append(entry)
        else:
            result.deliveries.append(delivery_of(keys, group, entry, record, max_retries, follow_ups=follow_ups))
    return result
