"""Messages as script arguments."""

from datetime import UTC, datetime

from lisa_common.model.policy import DEFAULT_POLICY
from lisa_producer import Message


def test_a_delay_is_left_to_the_servers_clock() -> None:
    """Delays do not depend on the producer's clock (promise 1)."""
    assert Message(body=b"x", delay=5).outgoing(DEFAULT_POLICY, "g~").due == "+5000"
    assert Message(body=b"x").outgoing(DEFAULT_POLICY, "g~").due == "+0"
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert Message(body=b"x", at=at).outgoing(DEFAULT_POLICY, "g~").due == str(int(at.timestamp()) * 1000)
