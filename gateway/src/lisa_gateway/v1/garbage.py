"""Operations on dead letters: list, replay and purge them."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from lisa_common.errors import InvalidInput
from lisa_gateway.v1 import answers
from lisa_gateway.v1.models import GarbageQuery, GarbageWork, SummaryQuery, duration_of
from lisa_gateway.v1.operation import Answer, Call, operation
from lisa_manager import BulkResult, DeadLetter, GarbageFilter, GarbageSummary

__all__ = ["list_garbage", "purge_garbage", "replay_garbage", "summarize_garbage"]

_GARBAGE = "/v1/topics/{topic}/garbage"


def _filter(given: GarbageQuery | GarbageWork | SummaryQuery) -> GarbageFilter:
    return GarbageFilter(
        given.group,
        given.reason,
        duration_of("older_than", given.older_than),
        error=given.error,
        since=duration_of("since", given.since),
        release=given.release,
    )


@operation(f"GET {_GARBAGE}", {200: answers.Garbage}, query=GarbageQuery)
async def list_garbage(call: Call) -> Answer:
    """Lists dead letters, the latest first unless asked otherwise."""
    query: GarbageQuery = call.query
    oldest_first = query.order == "oldest"
    listed = await call.gateway.admin.garbage(call.topic, _filter(query), limit=query.limit, oldest_first=oldest_first)
    return Answer({"letters": [_letter(letter) for letter in listed.letters], "more": listed.more})


def _letter(letter: DeadLetter) -> dict[str, Any]:
    failure = letter.failure
    return {
        "id": letter.id,
        "group": letter.group,
        "died_ms": letter.died_ms,
        "reason": letter.reason,
        "attempts": failure.attempts if failure else None,
        "error": failure.error if failure else None,
        "release": letter.release or None,
        "trace": failure.trace if failure else (),
    }


@operation(f"GET {_GARBAGE}/summary", {200: GarbageSummary}, query=SummaryQuery)
async def summarize_garbage(call: Call) -> Answer:
    """Counts dead letters by reason, first line of the error, group and release of the handler."""
    query: SummaryQuery = call.query
    return Answer(asdict(await call.gateway.admin.summarize_garbage(call.topic, _filter(query), limit=query.limit)))


_Named = Callable[..., Awaitable[BulkResult]]


async def _work(call: Call, named: _Named, everything: _Named) -> Answer:
    given: GarbageWork = call.body
    if given.all == (given.ids is not None):
        raise InvalidInput("ids", given.ids, "given unless all is true, and absent where it is")
    where = _filter(given)
    done = await (everything(call.topic, where) if given.ids is None else named(call.topic, given.ids, where))
    return Answer({"done": done.done, "failed": dict(done.failed)})


@operation(f"POST {_GARBAGE}/replay", {200: answers.Worked}, body=GarbageWork)
async def replay_garbage(call: Call) -> Answer:
    """Makes dead letters ready again, with all their attempts."""
    admin = call.gateway.admin
    return await _work(call, admin.replay, admin.replay_all)


@operation(f"POST {_GARBAGE}/purge", {200: answers.Worked}, body=GarbageWork)
async def purge_garbage(call: Call) -> Answer:
    """Deletes dead letters for good."""
    admin = call.gateway.admin
    return await _work(call, admin.purge, admin.purge_all)
