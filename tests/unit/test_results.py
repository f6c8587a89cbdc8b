"""Results of many messages are made when they are asked for, and look like a list of them."""

import copy
import gc
from collections import Counter

import pytest

from lisa_common.errors import InvalidInput, Unreachable
from lisa_producer import BatchResults, SendOutcome, SendReport, SendResult, SendResults

GONE = Unreachable("gone")
BAD = InvalidInput("delay", -1, "0 or more")

BATCH = BatchResults(7, ["a", "b", "1~", None, "c"], [5_000, 0, 0, BAD, GONE])
SAME = [
    SendResult(7, "a", SendOutcome.SENT, 5_000),
    SendResult(8, "b", SendOutcome.DUPLICATE),
    SendResult(9, "1~", SendOutcome.SENT),
    SendResult(10, None, SendOutcome.FAILED, error=BAD),
    SendResult(11, "c", SendOutcome.FAILED, error=GONE),
]


def _sent(first: int, count: int) -> BatchResults:
    return BatchResults(first, [f"{first + at}" for at in range(count)], [1_000 + at for at in range(count)])


def test_results_of_a_batch_are_those_of_its_messages() -> None:
    """By position, in slices and in any direction."""
    assert list(BATCH) == SAME
    assert len(BATCH) == len(SAME)
    assert [BATCH[at] for at in range(-5, 5)] == SAME + SAME
    assert BATCH[1:-1] == SAME[1:-1]
    assert BATCH[::-2] == SAME[::-2]
    assert list(reversed(BATCH)) == SAME[::-1]
    for at in (5, -6):
        with pytest.raises(IndexError):
            BATCH[at]
    assert BATCH.outcomes() == Counter(sent=2, duplicate=1, failed=2)
    assert _sent(0, 3).outcomes() == Counter(sent=3)
    assert BatchResults(0, [], []).outcomes() == Counter()


def test_results_of_many_batches_are_one_list() -> None:
    """By all that a list can be asked."""
    results, same = SendResults(), list[SendResult]()
    for size in (3, 0, 1, 500, 2):
        batch = _sent(len(same), size)
        results.add(batch)
        same += batch
    assert results == same
    assert results == SendResults(same)
    assert same == results
    assert results != same[1:]
    assert len(results) == len(same) == 506
    assert [results[at] for at in range(-506, 506)] == same + same
    assert results[2:9:3] == same[2:9:3]
    for at in (506, -507):
        with pytest.raises(IndexError):
            results[at]
    assert results.index(same[4]) == 4
    assert same[505] in results
    assert repr(results) == repr(same)
    assert copy.deepcopy(results) == same
    assert not SendResults()
    with pytest.raises(TypeError):
        hash(results)


@pytest.mark.parametrize("callback", ["none", "result", "batch", "both"])
def test_a_report_counts_a_batch_and_passes_it_on(callback: str) -> None:
    """To either callback, or both; without one it keeps the results."""
    report, results, batches = SendReport(), list[SendResult](), list[BatchResults]()
    on_result = results.append if callback in {"result", "both"} else None
    on_batch = batches.append if callback in {"batch", "both"} else None
    report.take(_sent(0, 7), on_result, on_batch)
    report.take(BATCH, on_result, on_batch)
    assert (report.sent, report.duplicates, report.failed, report.first_error) == (9, 1, 2, BAD)
    everything = [*_sent(0, 7), *SAME]
    assert report.results == (everything if callback == "none" else [])
    assert results == (everything if on_result else [])
    assert [list(batch) for batch in batches] == ([everything[:7], SAME] if on_batch else [])


def test_kept_results_add_nothing_to_what_the_garbage_collector_looks_at() -> None:
    """A full collection looks at every object; a million results made it take a quarter of the time of a send."""
    results = SendResults()
    gc.collect()
    before = len(gc.get_objects())
    for first in range(0, 50_000, 500):
        results.add(_sent(first, 500))
    gc.collect()
    assert len(gc.get_objects()) - before < 500
    assert len(results) == 50_000
