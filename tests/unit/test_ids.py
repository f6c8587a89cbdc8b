"""Ids that Lisa makes."""

from lisa_common.protocol.ids import new_ids
from lisa_common.validation import GENERATED_SUFFIX, check_id
from support.waiting import wait_until


def test_ids_are_marked_and_printable_and_differ() -> None:
    """They are told from callers' ids by their mark, and stand in command lines and logs as any other."""
    ids = new_ids(1_000)

    assert all(check_id(id).endswith(GENERATED_SUFFIX) for id in ids)
    assert len(set(ids)) == 1_000


def test_ids_ascend_within_a_batch_and_with_time() -> None:
    """Messages that are sent together are neighbours in the sorted sets."""
    ids = new_ids(500)
    moments = {ids[0][:7]}
    assert ids == sorted(ids)

    def is_every_digit_seen() -> bool:
        ids.extend(new_ids(1))
        moments.add(ids[-1][:7])
        return len(moments) > 64

    wait_until(is_every_digit_seen)
    assert [id[:7] for id in ids] == sorted(id[:7] for id in ids)


def test_ids_ascend_from_call_to_call() -> None:
    """Messages that are sent one after another in the same ms keep that order."""
    ids = [id for _ in range(5_000) for id in new_ids(1)]
    assert len({id[:7] for id in ids}) < 1_000
    assert ids == sorted(ids)
