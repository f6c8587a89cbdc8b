"""What every send has in common, without I/O: shards and stores, what is repeatable, what is confirmed."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from lisa_common.errors import OutcomeUnknown, Refused, Unreachable
from lisa_common.model.keys import ShardKeys
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout, by_shard, home
from lisa_common.protocol import producing
from lisa_common.protocol.call import Call, Flow, command
from lisa_common.protocol.producing import Outgoing
from lisa_common.protocol.registry import Topics
from lisa_common.validation import duration_ms
from lisa_producer.message import Confirm, SendOutcome, SendResult
from lisa_producer.settings import ProducerSettings

__all__ = ["Missing", "is_repeatable", "known_before", "layout_since", "result_of", "store"]

_SAFE_TO_REPEAT_MS = 300_000
"""A generated id is forgotten at ack. Repeating its send is safe only while it cannot have been acked: of a message due
in so long, or in longer than this producer tries, if that is more."""

Missing = tuple[str, str]
"""What was wanted of a confirmation, and what was got."""


def layout_since(topics: Topics, before: Layout) -> Flow[Layout]:
    """The layout since a reshard, of which a closed shard has told."""
    try:
        layout = yield from topics.resolve_anew(before.topic)
    except (Unreachable, Refused) as error:
        # The send may have been tried before, and carried out.
        raise OutcomeUnknown(f"{before.topic} was resharded, and the registry does not answer: {error}") from error
    if layout is before:
        raise Refused(
            f"{before.topic} takes no new messages where they belong, and the registry does not say where else"
        )
    return layout


def store(
    keys: ShardKeys, messages: Sequence[Outgoing], confirm: Confirm | None, *, repeatable: bool
) -> Flow[tuple[list[int], Missing | None]]:
    """Stores messages in one shard. Result: their due times, 0 for duplicates; and what is missing of the confirmation.

    Raises Resharded where the shard is closed.
    """
    stored = producing.send(keys, messages, repeatable=repeatable)
    if confirm is None:
        return (yield stored), None
    # On one connection, as WAIT asks about what this connection wrote.
    dues, missing = yield (stored, _confirmation(confirm))
    return dues, missing


def known_before(
    layout: Layout, batch: Sequence[Outgoing], confirm: Confirm | None, *, generated_too: bool
) -> Flow[dict[str, Missing | None]]:
    """Which of these ids the former shards know, and what is missing where they were not confirmed.

    They take no new ones from then on.
    """
    ids = [m.id for m in batch if generated_too or not m.generated]
    found: dict[str, Missing | None] = {}
    for shards in layout.former.values():
        for keys, some in by_shard(ids, partial(home, shards)).items():
            asked = producing.close(keys, some)
            known, missing = ((yield asked), None) if confirm is None else (yield (asked, _confirmation(confirm)))
            found.update((id, missing) for id, is_known in zip(some, known, strict=True) if is_known)
    return found


def result_of(position: int, outgoing: Outgoing, due_ms: int) -> SendResult:
    """What became of a message that was asked to be stored; `due_ms` is 0 where its id was known."""
    if due_ms:
        return SendResult(position, outgoing.id, SendOutcome.SENT, due_ms)
    # A generated id can only be known from an earlier try of this same send, whose reply was lost.
    outcome = SendOutcome.SENT if outgoing.generated else SendOutcome.DUPLICATE
    return SendResult(position, outgoing.id, outcome)


def is_repeatable(messages: Sequence[Outgoing], policy: Policy, settings: ProducerSettings) -> bool:
    """Whether all of them are known to the server for as long as their send may be tried, or that does not matter."""
    if settings.at_least_once:
        return True
    # The last try begins within the patience; it connects, and waits for its reply.
    tried_ms = (settings.patience_s + 2 * settings.timeout_s) * 1000
    remembers = policy.dedup_window_ms >= tried_ms
    far_off_ms = max(_SAFE_TO_REPEAT_MS, tried_ms)
    judged = ""
    for message in messages:
        due = message.due
        # Many messages of a batch have the same delay.
        if due != judged and (not remembers or message.generated):
            if not due.startswith("+") or int(due) < far_off_ms:
                return False
            judged = due
    return True


def _confirmation(confirm: Confirm) -> Call[Missing | None]:
    """Result: what was wanted and what was got, None when it was reached."""
    timeout_ms = duration_ms("timeout", confirm.timeout)
    wanted = f"{confirm.replicas} replicas" + (" and fsync" if confirm.fsync else "")

    def decode(reply: Any) -> tuple[str, str] | None:
        if isinstance(reply, RedisError):
            return wanted, str(reply)
        disks, replicas = reply if confirm.fsync else (0, reply)
        if replicas >= confirm.replicas and disks >= confirm.fsync:
            return None
        return wanted, f"{replicas} replicas" + (f" and {disks} local fsync" if confirm.fsync else "")

    name = ("WAITAOF", 1, confirm.replicas) if confirm.fsync else ("WAIT", confirm.replicas)
    return command(*name, timeout_ms, decode=decode, takes_errors=True)
