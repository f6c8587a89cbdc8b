"""Calls of a send to shards, without I/O: storing, confirming, looking for ids in former shards."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from lisa_common.errors import AccessDenied, LisaError, NotConfirmed, Resharded
from lisa_common.model.keys import ShardKeys
from lisa_common.model.message import Outgoing, Replacement
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout, by_home
from lisa_common.protocol import producing
from lisa_common.protocol.call import Call, Flow, IndependentCalls, command, error_in
from lisa_common.validation import GENERATED_SUFFIX, duration_ms
from lisa_producer.message import Confirm
from lisa_producer.results import Stored
from lisa_producer.settings import ProducerSettings

__all__ = ["find_in_former", "is_repeatable", "store", "store_apart"]

_SAFE_TO_REPEAT_MS = 300_000
"""Least delay of a message with a generated id whose send is safe to repeat: the id is forgotten at ack, and the
message cannot be acked before it is due. Longer if this producer tries for longer."""

Missing = tuple[str, str]
"""The wanted and the received confirmation."""

_Answer = tuple[Any, Missing | None] | LisaError
"""The result of a call with its confirmation."""


def store(
    keys: ShardKeys, messages: Sequence[Outgoing], confirm: Confirm | None, *, repeatable: bool
) -> tuple[Call[Any], ...]:
    """The calls that store messages in one shard; the first raises Resharded where the shard is closed.

    The messages are all replacements, or none is. Results: their due times in ms, negative where they replaced others,
    0 for duplicates, maybe of the first ones only; and with `confirm` the missing confirmation, or None. The first
    raises QueueFull where the shard has no room for all.
    """
    stored = producing.send(keys, messages, repeatable=repeatable)
    # On one connection, as WAIT covers the writes of its own connection.
    return (stored,) if confirm is None else (stored, _confirmation(confirm))


def store_apart(
    parts: Sequence[tuple[ShardKeys, Outgoing]], confirm: Confirm | None, *, repeatable: bool
) -> Flow[list[Stored | None]]:
    """As `store`, but each message by itself. Returns an error or a result for each; None for a closed shard."""
    calls = [producing.send(keys, [message], repeatable=repeatable) for keys, message in parts]
    answers = yield from _apart(calls, confirm)
    return [_stored(keys, message, answer) for (keys, message), answer in zip(parts, answers, strict=True)]


def find_in_former(
    layout: Layout, batch: Sequence[Outgoing], confirm: Confirm | None, *, repeatable: bool
) -> Flow[list[Stored | None]]:
    """Looks for messages in former shards, which it closes for new ones, and carries out replacements there.

    Returns one for each message: an error is its own, and None for an id that no former shard knows. `repeatable` says
    whether replacing calls are.
    """
    found: list[Stored | None] = [None] * len(batch)
    for shards in layout.former.values():
        asked = [at for at, m in enumerate(batch) if found[at] is None and (m.is_repeated or not m.generated)]
        parts = by_home(shards, asked, lambda at: batch[at].id)
        calls = [
            producing.close_shard(layout, keys, [batch[at].id for at in part], dues=[batch[at].due for at in part])
            for keys, part in parts.items()
        ]
        answers = yield from _apart(calls, confirm)
        replacing: dict[str, list[tuple[ShardKeys, int]]] = defaultdict(list)
        for (keys, part), answer in zip(parts.items(), answers, strict=True):
            for place, at in enumerate(part):
                if isinstance(answer, LisaError):
                    found[at] = answer
                elif answer[0][place]:
                    found[at] = _stored(keys, batch[at], ([0], answer[1]))
                    if isinstance(batch[at], Replacement):
                        replacing[batch[at].id].append((keys, at))
        # Calls of one round trip may be carried out in any order, so that those with the same id take several.
        for row in zip_longest(*replacing.values()):
            places = [each for each in row if each]
            stored = yield from store_apart([(keys, batch[at]) for keys, at in places], confirm, repeatable=repeatable)
            for (_, at), result in zip(places, stored, strict=True):
                found[at] = result
    return found


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


def _apart(calls: Sequence[Call[Any]], confirm: Confirm | None) -> Flow[list[_Answer]]:
    """Makes calls in one round trip, each with its confirmation."""
    confirmed = calls if confirm is None else [each for call in calls for each in (call, _confirmation(confirm))]
    replies = iter((yield IndependentCalls(confirmed)) if confirmed else ())
    pairs = [(reply, None if confirm is None else next(replies)) for reply in replies]
    return [error_in(pair) or pair for pair in pairs]


def _stored(keys: ShardKeys, message: Outgoing, answer: _Answer) -> Stored | None:
    if isinstance(answer, LisaError):
        return None if isinstance(answer, Resharded) else answer
    [due_ms], missing = answer
    return NotConfirmed(keys.topic, [message.id], *missing) if missing else due_ms


def _confirmation(confirm: Confirm) -> Call[Missing | None]:
    """Waits for the confirmation. Returns None when it was reached."""
    timeout_ms = duration_ms("timeout", confirm.timeout)
    wanted = " and ".join([f"{confirm.replicas} replicas"] * bool(confirm.replicas) + ["fsync"] * confirm.fsync)

    def decode(reply: Any) -> Missing | None:
        if isinstance(reply, AccessDenied):
            return wanted, f"no answer: the server lacks or refuses {name[0]} (WAITAOF needs Redis ≥ 7.2 or Valkey)"
        if isinstance(reply, Exception):
            return wanted, str(reply)
        disks, replicas = reply if confirm.fsync else (0, reply)
        if replicas >= confirm.replicas and disks >= confirm.fsync:
            return None
        return wanted, f"{replicas} replicas" + (f" and {disks} local fsync" if confirm.fsync else "")

    name = ("WAITAOF", 1, confirm.replicas) if confirm.fsync else ("WAIT", confirm.replicas)
    return command(*name, timeout_ms, decode=decode, takes_errors=True)
