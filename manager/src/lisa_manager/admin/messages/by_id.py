"""Finding, aborting, cancelling and rescheduling messages by their ids, in today's shards and in former ones."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar

from lisa_common.model.keys import ShardKeys
from lisa_common.model.message import due_argument
from lisa_common.model.record import Record, read_record
from lisa_common.model.sharding import by_shard, home
from lisa_common.protocol import producing
from lisa_common.protocol.call import Call, Flow
from lisa_common.protocol.fetching import fetch
from lisa_common.protocol.managing import AbortOutcome, abort as abort_in
from lisa_common.protocol.producing import CancelOutcome, Found, RescheduleOutcome
from lisa_common.validation import Duration, check_id, check_list, is_id
from lisa_manager.queries import chunks, require_topic

__all__ = ["abort", "cancel", "find", "id_list", "records", "reschedule"]

T = TypeVar("T")

_AT_ONCE = 200


def id_list(ids: Sequence[str]) -> list[str]:
    """Message ids, each once. Raises InvalidInput."""
    return list(dict.fromkeys(map(check_id, check_list("ids", ids, "message ids"))))


def find(prefix: str, topic: str, id: str) -> Flow[Found | None]:
    """Everything known about a message; None if nothing is known."""
    return (yield from _ask_homes(prefix, topic, id, producing.find, None))


def abort(prefix: str, topic: str, id: str) -> Flow[AbortOutcome]:
    """Aborts the deliveries of a message."""
    return (yield from _ask_homes(prefix, topic, id, abort_in, AbortOutcome.UNKNOWN))


def _ask_homes(prefix: str, topic: str, id: str, call: Callable[[ShardKeys, str], Call[T]], unknown: T) -> Flow[T]:
    """Asks the shards that may have a message, until one knows it."""
    check_id(id)
    layout = yield from require_topic(prefix, topic)
    for keys in layout.homes(id):
        answer: T = yield call(keys, id)
        if answer != unknown:
            return answer
    return unknown


def records(prefix: str, topic: str, ids: Sequence[str]) -> Flow[dict[str, Record]]:
    """The records of messages by id, without those that are missing, cancelled or unreadable."""
    ids = check_list("ids", ids, "message ids")
    # Lists of dead letters may hold ids that other programs wrote, which no message of ours can have.
    ids = list(dict.fromkeys(filter(is_id, ids)))
    layout = yield from require_topic(prefix, topic)
    read: dict[str, Record] = {}
    for shards in (layout.shards, *layout.former.values()):
        places = by_shard([id for id in ids if id not in read], partial(home, shards))
        replies: list[list[bytes | None] | str] = yield [fetch(keys, of_shard) for keys, of_shard in places.items()]
        for of_shard, reply in zip(places.values(), replies, strict=True):
            found = zip(of_shard, reply, strict=True) if not isinstance(reply, str) else ()
            for id, data in found:
                record, _ = read_record(data)
                read |= {id: record} if record else {}
    return read


def cancel(prefix: str, topic: str, ids: Sequence[str]) -> Flow[dict[str, CancelOutcome]]:
    """Cancels messages. Returns the outcome for each id."""
    return (yield from _change(prefix, topic, ids, CancelOutcome.UNKNOWN, producing.cancel))


def reschedule(
    prefix: str, topic: str, ids: Sequence[str], *, delay: Duration | None, at: datetime | None
) -> Flow[dict[str, RescheduleOutcome]]:
    """Gives messages another due time. Returns the outcome for each id."""
    due = due_argument(delay, at)

    def call(keys: ShardKeys, batch: Sequence[str]) -> Call[list[tuple[RescheduleOutcome, int]]]:
        return producing.reschedule(keys, [(id, due) for id in batch])

    outcomes = yield from _change(prefix, topic, ids, (RescheduleOutcome.UNKNOWN, 0), call)
    return {id: outcome for id, (outcome, _) in outcomes.items()}


def _change(
    prefix: str, topic: str, ids: Sequence[str], unknown: T, call: Callable[[ShardKeys, Sequence[str]], Call[list[T]]]
) -> Flow[dict[str, T]]:
    outcomes = dict.fromkeys(id_list(ids), unknown)
    layout = yield from require_topic(prefix, topic)
    for shards in (layout.shards, *layout.former.values()):
        missing = [id for id, outcome in outcomes.items() if outcome == unknown]
        for keys, of_shard in by_shard(missing, partial(home, shards)).items():
            for batch in chunks(of_shard, _AT_ONCE):
                outcomes.update(zip(batch, (yield call(keys, batch)), strict=True))
    return outcomes
