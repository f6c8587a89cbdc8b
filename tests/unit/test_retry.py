"""What is made again of a pipeline that failed, and what is not."""

import math
import time
from typing import Any

import pytest
from redis.exceptions import NoScriptError

from lisa_common.client.refusals import Refusals
from lisa_common.client.retry import PipelineRetry
from lisa_common.client.wire import repeats
from lisa_common.errors import (
    AccessDenied,
    Closed,
    LisaError,
    OutcomeUnknown,
    QueueFull,
    Refused,
    ServerError,
    Unreachable,
)
from lisa_common.model.keys import ShardKeys
from lisa_common.model.sharding import Layout
from lisa_common.protocol.call import (
    Call,
    IndependentCalls,
    Unfinished,
    command,
    complete,
    rests,
    unfinished,
    units,
)
from lisa_common.protocol.jobs import claim_part, keep_written
from lisa_common.protocol.producing import close_shard

SEND: Call[Any] = command("HSET", "k", repeatable=False)
READ: Call[Any] = command("HGET", "k")
WAIT: Call[Any] = command("WAIT", 1, 0)


def test_units() -> None:
    """A call with a key begins one; what has no key belongs to the call before it."""
    assert units([]) == []
    assert units([WAIT, WAIT]) == [range(2)]
    assert units([WAIT, READ, WAIT, WAIT, READ]) == [range(1), range(1, 4), range(4, 5)]


def test_only_what_failed_is_left() -> None:
    """Results find their places, whichever try brought them; delays grow."""
    retry = PipelineRetry([SEND, READ, SEND], [1, Refused("full"), Unreachable("away")], math.inf)
    assert retry.left == [READ, SEND]
    assert retry.delay_s > 0
    retry.take([Refused("full"), 3])
    assert (retry.left, retry.results[2]) == ([READ], 3)
    retry.take([2])
    assert (retry.left, retry.results) == ([], [1, 2, 3])


def test_a_unit_is_made_again_as_a_whole() -> None:
    """A WAIT is about the send before it, which was refused; it tells nothing by itself."""
    retry = PipelineRetry([SEND, WAIT, SEND, WAIT], [1, 1, Refused("full"), 0], math.inf)
    assert retry.left == [SEND, WAIT]
    retry.take([2, 1])
    assert retry.results == [1, 1, 2, 1]


@pytest.mark.parametrize(
    ("calls", "results"),
    [
        ([SEND], [OutcomeUnknown("broke")]),
        ([READ, SEND], [OutcomeUnknown("broke")] * 2),
        ([READ, READ], [Refused("full"), ServerError("WRONGTYPE")]),
    ],
    ids=["may be done", "one may be done", "would never be done"],
)
def test_what_must_not_be_made_again(calls: list[Call[Any]], results: list[Any]) -> None:
    """Its error is raised."""
    [error] = {result for result in results if isinstance(result, LisaError) and not isinstance(result, Refused)} or {
        result for result in results if isinstance(result, LisaError)
    }
    with pytest.raises(type(error), match=str(error)):
        PipelineRetry(calls, results, math.inf)


def test_what_may_be_made_twice_is() -> None:
    """Also when it may have been done."""
    assert PipelineRetry([READ, WAIT], [OutcomeUnknown("broke")] * 2, math.inf).left == [READ, WAIT]


def test_an_unknown_outcome_stays_unknown() -> None:
    """That a later try did nothing says nothing of the tries before it."""
    retry = PipelineRetry([READ], [OutcomeUnknown("broke")], time.monotonic() + 1)
    retry._deadline = 0
    with pytest.raises(OutcomeUnknown, match="broke") as caught:
        retry.take([Unreachable("away")])
    assert isinstance(caught.value.__cause__, Unreachable)


@pytest.mark.parametrize("later", [AccessDenied("password"), Closed("closed"), Refused("full"), Unreachable("away")])
def test_a_later_try_that_did_nothing_does_not_say_that_nothing_was_done(later: LisaError) -> None:
    """The reply of the first one was lost. An error that is about the call itself is told as it is."""
    retry = PipelineRetry([READ], [OutcomeUnknown("broke")], time.monotonic() + 1)
    retry._deadline = 0
    with pytest.raises(OutcomeUnknown, match="broke") as caught:
        retry.take([later])
    assert caught.value.__cause__ is later
    retry = PipelineRetry([READ], [OutcomeUnknown("broke")], time.monotonic() + 1)
    with pytest.raises(QueueFull):
        retry.take([QueueFull("orders holds 5 messages of at most 5")])


def test_patience_ends() -> None:
    """The error is that of the last try."""
    with pytest.raises(Refused, match="full"):
        PipelineRetry([READ], [Refused("full")], time.monotonic())


def test_patience_has_no_end_of_its_own() -> None:
    """A server may be away for days: the delays between tries stay at a second at most."""
    retry = PipelineRetry([READ], [Unreachable("away")], math.inf)
    for _ in range(2_000):
        retry.take([Unreachable("away")])
        assert 0 <= retry.delay_s <= 1
    retry.take([5])
    assert (retry.left, retry.results) == ([], [5])


def test_of_calls_of_several_callers_each_has_its_own_error() -> None:
    """What must not be made again, or is too late, is a result: it ends no other call."""
    calls = IndependentCalls([SEND, READ, READ])
    retry = PipelineRetry(calls, [OutcomeUnknown("broke"), Refused("full"), ServerError("bad")], math.inf)
    assert retry.left == [READ]
    assert [type(result) for result in retry.results] == [OutcomeUnknown, Refused, ServerError]
    retry.take([3])
    assert (retry.left, retry.results[1]) == ([], 3)
    late = PipelineRetry(calls, [1, Refused("full"), 2], time.monotonic())
    assert (late.left, type(late.results[1])) == ([], Refused)


def test_scripts_that_cannot_be_loaded_are_an_error_of_their_calls_only() -> None:
    """The others have been done, and may be of those that must not be done twice."""
    keys = ShardKeys("lisa", "orders")
    call: Call[Any] = close_shard(Layout("lisa", "orders"), keys)
    replies: list[Any] = [7, NoScriptError(), 8]
    steps = repeats([SEND, call, READ], replies, Refusals())
    assert [load.args[0] for load in next(steps)] == ["SCRIPT"]
    with pytest.raises(StopIteration):
        steps.throw(Unreachable("away"))
    assert (replies[0], replies[2]) == (7, 8)
    assert isinstance(replies[1], Unreachable)


def test_rows_that_are_left_are_independent() -> None:
    """Each of them fails by itself; its error is that of the whole call, of which a part was done."""
    results: list[Any] = [Unfinished([1], SEND), [2], Unfinished([3], SEND)]
    calls = IndependentCalls([SEND, READ, SEND])
    left = rests(calls, results, unfinished(results))
    assert left == (SEND, SEND)
    assert isinstance(left, IndependentCalls)
    complete(calls, results, [0, 2], [Refused("full"), [4]])
    assert isinstance(results[0], OutcomeUnknown)
    assert results[1:] == [[2], [3, 4]]


def test_rows_that_are_left_and_refused_are_an_error_of_the_pipeline() -> None:
    """It is raised, as the calls are not independent, once all others are done."""
    results: list[Any] = [Unfinished([1], SEND), Unfinished([3], READ)]
    calls = [SEND, READ]
    assert isinstance(rests(calls, results, [0, 1]), IndependentCalls)
    with pytest.raises(OutcomeUnknown, match="another was not: full"):
        complete(calls, results, [0, 1], [[2], Refused("full")])
    assert results[0] == [1, 2]


@pytest.mark.parametrize("other", [1, OutcomeUnknown("broke")], ids=["done", "may be done"])
def test_a_refusal_beside_what_was_done_does_not_say_that_nothing_was(other: Any) -> None:
    """The error of the pipeline says that a part of it was done; a pipeline that only reads has no such part."""
    with pytest.raises(OutcomeUnknown):
        PipelineRetry([SEND, SEND], [Refused("full"), other], -math.inf)
    with pytest.raises(OutcomeUnknown):
        PipelineRetry([SEND, WAIT], [other, Refused("busy")], math.inf)
    with pytest.raises(Refused):
        PipelineRetry([SEND, READ], [Refused("full"), other], -math.inf)


def test_a_part_of_a_job_has_one_owner_whichever_call_came_first() -> None:
    """A claim that was refused at first is repeated after the look, and the key gets its end after it."""
    keys = ShardKeys("lisa", "orders")
    claim = claim_part(keys, "job", "0", "us", 1_000)
    next(claim)
    assert [call.args[0] for call in claim.send([0, None, 1])] == ["PEXPIRE", "HGET"]
    with pytest.raises(StopIteration) as ended:
        claim.send([1, "others"])
    assert ended.value.value == "others"
    kept = keep_written(keys, "job", {"0": "x"}, 1_000)
    next(kept)
    again = kept.send([1, 0])
    assert isinstance(again, Call)
    assert again.args[0] == "PEXPIRE"
