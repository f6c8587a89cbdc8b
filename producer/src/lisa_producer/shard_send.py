"""Calls of a send to shards, without I/O: storing, confirming, looking for ids in former shards."""

from collections.abc import Sequence
from typing import Any

from lisa_common.errors import LisaError, Resharded
from lisa_common.model.keys import ShardKeys
from lisa_common.model.message import Outgoing, Replacement
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout, by_home
from lisa_common.protocol import producing
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command, error_in
from lisa_common.validation import GENERATED_SUFFIX, duration_ms
from lisa_producer.message import Confirm
from lisa_producer.settings import ProducerSettings

__all__ = ["Known", "Missing", "find_in_former", "is_repeatable", "store", "store_apart"]

_SAFE_TO_REPEAT_MS = 300_000
"""Least delay of a message with a generated id whose send is safe to repeat: the id is forgotten at ack, and the
message cannot be acked before it is due. Longer if this producer tries for longer."""

Missing = tuple[str, str]
"""The wanted and the received confirmation."""

Known = dict[tuple[str, type[Outgoing]], tuple[int, Missing | None]]
"""By an id, and whether the message replaces others: what `store` returns of it."""


def store(
    keys: ShardKeys, messages: Sequence[Outgoing], confirm: Confirm | None, *, repeatable: bool
) -> tuple[Call[Any], ...]:
    """The calls that store messages in one shard; the first raises Resharded where the shard is closed.

    The messages are all replacements, or none is. Results: their due times in ms, negative where they replaced others,
    0 for duplicates; and with `confirm` the missing confirmation, or None. The first raises QueueFull where the shard
    has no room for all.
    """
    stored = producing.send(keys, messages, repeatable=repeatable)
    # On one connection, as WAIT covers the writes of its own connection.
    return (stored,) if confirm is None else (stored, _confirmation(confirm))


def store_apart(
    keys: ShardKeys, messages: Sequence[Outgoing], confirm: Confirm | None, *, repeatable: bool
) -> Flow[list[tuple[int, Missing | None] | LisaError]]:
    """As `store`, but each message by itself: for messages of several callers. Returns a result or error for each."""
    calls: list[Call[Any]] = []
    for message in messages:
        calls += store(keys, [message], confirm, repeatable=repeatable)
    replies = iter((yield IndependentCalls(calls)))
    results: list[tuple[int, Missing | None] | LisaError] = []
    for stored in replies:
        missing = next(replies) if confirm is not None else None
        error = error_in((stored, missing))
        results.append(error or (stored[0], missing))
    return results


def find_in_former(
    layout: Layout, batch: Sequence[Outgoing], confirm: Confirm | None, *, repeatable: bool
) -> Flow[Known]:
    """Messages whose ids former shards know. Closes these shards for new messages.

    `repeatable` says whether replacing calls are.
    """
    asked = [m for m in batch if m.is_repeated or not m.generated]
    known: Known = {}
    for shards in layout.former.values():
        for keys, part in by_home(shards, asked, lambda m: m.id).items():
            call = producing.close_shard(layout, keys, [m.id for m in part], dues=[m.due for m in part])
            answers, missing = ((yield call), None) if confirm is None else (yield (call, _confirmation(confirm)))
            for message in (m for m, is_known in zip(part, answers, strict=True) if is_known):
                known[message.id, type(message)] = 0, missing
                if isinstance(message, Replacement):
                    yield from _replace_in_former(keys, message, confirm, known, repeatable=repeatable)
    return known


def _replace_in_former(
    keys: ShardKeys, message: Outgoing, confirm: Confirm | None, known: Known, *, repeatable: bool
) -> Flow[None]:
    """Replaces a message in the shard that holds it, and notes the result; forgets the id if it has become free."""
    key = message.id, type(message)
    try:
        dues, *confirmed = yield store(keys, [message], confirm, repeatable=repeatable)
        known[key] = dues[0], confirmed[0] if confirmed else None
    except Resharded:
        del known[key]


def is_repeatable(messages: Sequence[Outgoing], policy: Policy, settings: ProducerSettings) -> bool:
    """Whether the server knows all ids for as long as this producer may retry, or duplicates are accepted."""
    if settings.at_least_once:
        return True
    # The last try begins within the patience; it connects, and waits for its reply.
    tried_ms = (settings.patience_s + 2 * settings.timeout_s) * 1000
    remembers = policy.dedup_window_ms >= tried_ms
    far_off_ms = max(_SAFE_TO_REPEAT_MS, tried_ms)
    judged = ""
    for id, due, _ in messages:
        # Many messages of a batch have the same delay.
        if due != judged and (not remembers or id.endswith(GENERATED_SUFFIX)):
            if due[:1] != "+" or int(due) < far_off_ms:
                return False
            judged = due
    return True


def _confirmation(confirm: Confirm) -> Call[Missing | None]:
    """Waits for the confirmation. Returns None when it was reached."""
    timeout_ms = duration_ms("timeout", confirm.timeout)
    wanted = f"{confirm.replicas} replicas" + (" and fsync" if confirm.fsync else "")

    def decode(reply: Any) -> Missing | None:
        if isinstance(reply, Exception):
            return wanted, str(reply)
        disks, replicas = reply if confirm.fsync else (0, reply)
        if replicas >= confirm.replicas and disks >= confirm.fsync:
            return None
        return wanted, f"{replicas} replicas" + (f" and {disks} local fsync" if confirm.fsync else "")

    name = ("WAITAOF", 1, confirm.replicas) if confirm.fsync else ("WAIT", confirm.replicas)
    return command(*name, timeout_ms, decode=decode, takes_errors=True)
