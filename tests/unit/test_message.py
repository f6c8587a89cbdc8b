"""Messages as script arguments."""

from datetime import UTC, datetime

import pytest

from lisa_common.errors import CannotCombine, InvalidInput
from lisa_common.model.policy import DEFAULT_POLICY
from lisa_producer import Message
from lisa_producer.message import new_due


def test_a_delay_is_left_to_the_servers_clock() -> None:
    """Delays do not depend on the producer's clock (promise 1)."""
    assert Message(body=b"x", delay=5).outgoing(DEFAULT_POLICY, "g~").due == "+5000"
    assert Message(body=b"x").outgoing(DEFAULT_POLICY, "g~").due == "+0"
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert Message(body=b"x", at=at).outgoing(DEFAULT_POLICY, "g~").due == str(int(at.timestamp()) * 1000)


def test_a_message_is_no_body() -> None:
    """As JSON it would be sent at once, with its options inside."""
    with pytest.raises(InvalidInput, match="body must be a body; send_many takes a Message with its options"):
        Message(body=Message(body=b"x", delay=5)).outgoing(DEFAULT_POLICY, "g~")


def test_due_times_exclude_each_other() -> None:
    """The error names both fields, and shows a time in ISO 8601."""
    at = datetime(2030, 1, 1, tzinfo=UTC)
    with pytest.raises(CannotCombine, match="delay cannot be combined with at"):
        Message(body=b"x", delay=5, at=at).outgoing(DEFAULT_POLICY, "g~")
    with pytest.raises(CannotCombine, match="at cannot be combined with at_local"):
        Message(body=b"x", at=at, at_local="2030-01-01 00:00", tz="UTC").outgoing(DEFAULT_POLICY, "g~")
    with pytest.raises(InvalidInput, match=r"got 9999-01-01T00:00:00$"):
        Message(body=b"x", at=datetime(9999, 1, 1)).outgoing(DEFAULT_POLICY, "g~")  # noqa: DTZ001 - the error


def test_a_new_due_time_is_given() -> None:
    """None means now for a new message; for one that waits it would end its delay for good."""
    with pytest.raises(InvalidInput, match="delay must be given, 0 for now, or at in its place; got None"):
        new_due(None, None)
    assert new_due(0, None) == "+0"
