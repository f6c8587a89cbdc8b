"""Messages as script arguments."""

from datetime import UTC, datetime

import pytest

from lisa_common.errors import InvalidInput
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


def test_a_new_due_time_is_given() -> None:
    """None means now for a new message; for one that waits it would end its delay for good."""
    with pytest.raises(InvalidInput, match="delay must be set, 0 for now, unless at is; got None"):
        new_due(None, None)
    assert new_due(0, None) == "+0"
