"""Operations on dead letters: list, replay and purge them."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from lisa_common.errors import InvalidInput
from lisa_gateway.polls import MAX_BATCH
from lisa_gateway.v1.content import Ms
from lisa_gateway.v1.models import Duration, Id, Input, duration_of, few
from lisa_gateway.v1.operation import Answer, Call, operation
from lisa_manager import REASONS, BulkResult, DeadLetter as StoredLetter, GarbageFilter, GarbageSummary

__all__ = ["list_garbage", "purge_garbage", "replay_garbage", "summarize_garbage"]

_GARBAGE = "/v1/topics/{topic}/garbage"


class DeadLetter(TypedDict):
    """A dead letter."""

    id: str
    group: str
    died_ms: Ms
    reason: str
    attempts: int | None
    error: str | None
    release: Annotated[str | None, Field(description="of the handler that failed; null if unknown")]
    trace: Annotated[list[str], Field(description="the last frames of its traceback, the innermost last")]


class Garbage(TypedDict):
    """Dead letters, and whether there are more."""

    letters: list[DeadLetter]
    more: bool


class Worked(TypedDict):
    """How many dead letters were replayed or purged, and how many were not, by reason."""

    done: int
    failed: dict[str, int]


def _check_reason(value: str) -> str:
    if value not in REASONS:
        raise ValueError(f"one of {', '.join(REASONS)}")
    return value


_Reason = Annotated[str, Field(json_schema_extra={"enum": list(REASONS)}), AfterValidator(_check_reason)]


class _GarbageFilter(Input):
    group: Annotated[str | None, Field(description="only copies of this group; empty: of none")] = None
    reason: Annotated[_Reason | None, Field(description="only those that died for this reason")] = None
    older_than: Annotated[Duration | None, Field(description="only those that died so long ago")] = None
    error: Annotated[str | None, Field(max_length=500, description="only those whose error holds this text")] = None
    since: Annotated[Duration | None, Field(description="only those that died within this time; over older_than")] = (
        None
    )
    release: Annotated[
        str | None, Field(max_length=64, description="only those that handlers of this release failed; empty: unknown")
    ] = None


class SummaryQuery(_GarbageFilter):
    """Which dead letters to count."""

    model_config = ConfigDict(strict=False)

    limit: Annotated[int, Field(ge=1, le=1_000_000, description="how many to look at, the latest")] = 100_000


class GarbageQuery(_GarbageFilter):
    """Which dead letters."""

    model_config = ConfigDict(strict=False)

    limit: Annotated[int, Field(ge=1, le=1_000)] = 50
    order: Annotated[Literal["newest", "oldest"], Field(description="which come first")] = "newest"


class GarbageWork(_GarbageFilter):
    """Dead letters by the ids of their messages, or all; the filters select among them."""

    ids: Annotated[Annotated[list[Id], Field(min_length=1, max_length=MAX_BATCH)] | None, few(MAX_BATCH, "ids")] = None
    all: Annotated[bool, Field(description="all dead letters; excludes `ids`")] = False


def _filter(given: GarbageQuery | GarbageWork | SummaryQuery) -> GarbageFilter:
    return GarbageFilter(
        given.group,
        given.reason,
        duration_of("older_than", given.older_than),
        error=given.error,
        since=duration_of("since", given.since),
        release=given.release,
    )


@operation(f"GET {_GARBAGE}", {200: Garbage}, query=GarbageQuery)
async def list_garbage(call: Call) -> Answer:
    """Lists dead letters, the latest first unless asked otherwise."""
    query: GarbageQuery = call.query
    oldest_first = query.order == "oldest"
    listed = await call.gateway.admin.garbage(call.topic, _filter(query), limit=query.limit, oldest_first=oldest_first)
    return Answer({"letters": [_letter(letter) for letter in listed.letters], "more": listed.more})


def _letter(letter: StoredLetter) -> DeadLetter:
    failure = letter.failure
    return {
        "id": letter.id,
        "group": letter.group,
        "died_ms": letter.died_ms,
        "reason": letter.reason,
        "attempts": failure.attempts if failure else None,
        "error": failure.error if failure else None,
        "release": letter.release or None,
        "trace": list(failure.trace) if failure else [],
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


@operation(f"POST {_GARBAGE}/replay", {200: Worked}, body=GarbageWork)
async def replay_garbage(call: Call) -> Answer:
    """Makes dead letters ready again, with all their attempts."""
    admin = call.gateway.admin
    return await _work(call, admin.replay, admin.replay_all)


@operation(f"POST {_GARBAGE}/purge", {200: Worked}, body=GarbageWork)
async def purge_garbage(call: Call) -> Answer:
    """Deletes dead letters for good."""
    admin = call.gateway.admin
    return await _work(call, admin.purge, admin.purge_all)
